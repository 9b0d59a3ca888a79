"""compile_auto chooses the fastest here, gives the reason, and checks it against uncompiled steps."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from sd_scripts.machine.compile_fingerprint import torch_version
from sd_scripts.machine.measurements import Measurement, remember, remembered
from sd_scripts.machine.nvidia import CPU, Gpu
from sd_scripts.options.model import ModelOptions
from sd_scripts.planning.run_plan import RunPlan, plan_run
from sd_scripts.planning.speeds import DECIDING, deciding, model_size
from sd_scripts.settings.reading import from_values
from sd_scripts.settings.settings import Script, Settings
from sd_scripts.training.execution.speed_log import SpeedLog
from sd_scripts.training.execution.timed import means_of_same_shapes, slower
from tests.support.data import make_folder
from tests.support.scripts import FLUX_LORA, SDXL_FULL, SDXL_LORA
from tests.support.training import train

RTX, NO_GPU = Gpu("NVIDIA GeForce RTX 4090", "580.95"), Gpu(CPU)
AUTO: Mapping[str, Any] = {"compile": True, "compile_auto": True}


def auto(folder: Path, script: Script = SDXL_LORA, **values: Any) -> Settings:
    make_folder(folder / "1_cat", [(64, 64)])
    return from_values(script, {"train_data_dir": str(folder), "resolution": "1024,1024", **AUTO, **values})


def measured(settings: Settings, seconds: float, gpu: Gpu, first: float, **changes: Any) -> Measurement:
    """A run with these compile options instead of compile_auto."""
    ran = settings.replaced({"compile": False, **changes})
    return Measurement(
        device=gpu.name,
        driver=gpu.driver,
        torch=torch_version(),
        family=settings.script.family,
        method=settings.script.method,
        model_size=model_size(settings[ModelOptions]),
        settings=deciding(ran.changed()) if changes else deciding(ran.changed(), DECIDING),
        seconds={"1024x1024x1": seconds},
        first_seconds=first,
    )


def planned(settings: Settings, gpu: Gpu, *known: Measurement) -> tuple[str, RunPlan]:
    found = plan_run(settings, gpu, known)
    name, _, reason = found.choice.partition(" (")
    assert reason
    return name, found


def test_the_fastest_measured_choice_is_used(tmp_path: Path) -> None:
    settings = auto(tmp_path, max_train_steps=1000)
    eager = measured(settings, 0.20, RTX, 0.2)
    default = measured(settings, 0.15, RTX, 30.0, compile=True)
    graphs = measured(settings, 0.10, RTX, 60.0, compile=True, compile_mode="reduce-overhead")
    name, found = planned(settings, RTX, eager, default, graphs)
    assert name == "reduce-overhead"
    assert "measured on this machine: 160 s in all; no compiling 200 s, default 180 s" in found.choice
    assert found.step_time is not None
    assert (found.step_time.seconds, found.step_time.source) == (0.10, "remembered")
    short = settings.replaced({"max_train_steps": 300})
    assert planned(short, RTX, eager, default, graphs)[0] == "no compiling"
    assert planned(short, RTX, eager, default, graphs)[1].compile is None
    # with a different driver nothing is known
    assert "rule of thumb" in planned(settings, Gpu(RTX.name, "590.1"), eager, default, graphs)[1].choice


@pytest.mark.parametrize(
    ("script", "gpu", "values", "chosen"),
    [
        (SDXL_LORA, RTX, {"max_train_steps": 2000}, "default"),
        (SDXL_LORA, RTX, {"max_train_steps": 2000, "record_steps": False}, "default"),
        (SDXL_LORA, RTX, {"max_train_steps": 100}, "no compiling"),
        (SDXL_LORA, RTX, {"max_train_steps": 2000, "train_batch_size": 4}, "default"),
        (SDXL_LORA, RTX, {"max_train_steps": 2000, "gradient_checkpointing": True}, "default"),
        (SDXL_LORA, RTX, {"max_train_steps": 20, "gradient_checkpointing": True}, "no compiling"),
        (SDXL_LORA, RTX, {"max_train_steps": 2000, "gradient_checkpointing": True, "network_dropout": 0.1}, "default"),
        (SDXL_FULL, RTX, {"max_train_steps": 2000, "mixed_precision": "bf16"}, "no compiling"),
        (SDXL_FULL, RTX, {"max_train_steps": 20000, "mixed_precision": "bf16"}, "default"),
        (FLUX_LORA, RTX, {"max_train_steps": 2000, "train_batch_size": 2, "blocks_to_swap": 8}, "default"),
        (FLUX_LORA, RTX, {"max_train_steps": 2000}, "default"),
        (FLUX_LORA, RTX, {"max_train_steps": 20}, "no compiling"),
        (FLUX_LORA, NO_GPU, {"max_train_steps": 2000}, "no compiling"),
    ],
)
def test_a_rule_of_thumb_decides_where_nothing_is_measured(
    script: Script, gpu: Gpu, values: dict[str, Any], chosen: str, tmp_path: Path
) -> None:
    name, found = planned(auto(tmp_path, script, **values), gpu)
    assert (name, "rule of thumb" in found.choice) == (chosen, True)


def test_a_mode_next_to_auto_is_reported_as_without_effect(tmp_path: Path) -> None:
    (told,) = [str(each) for each in auto(tmp_path, compile_mode="max-autotune").remarks if "compile_auto" in str(each)]
    assert told.startswith("compile_mode: has no effect with compile_auto")


def test_the_check_compares_steps_of_the_same_shapes() -> None:
    plain = SpeedLog()
    compiled = SpeedLog()
    for seconds in [9.0, *[0.2] * 12]:
        assert not plain.medians()
        plain.add("64x64x1", seconds)
    for shape, seconds in [("64x64x1", 30.0), *[("64x64x1", 0.1)] * 12, *[("96x64x1", 0.3)] * 12]:
        assert means_of_same_shapes(plain.medians(), compiled.medians()) in (None, (0.2, 0.1))
        compiled.add(shape, seconds)
    assert means_of_same_shapes(plain.medians(), compiled.medians()) == (0.2, 0.1)
    assert not slower((0.2, 0.1))
    assert slower((0.1, 0.2))


@pytest.mark.deep
def test_a_run_checks_the_choice_and_continues_with_the_faster_steps(
    flux_miniature: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compile_fx(graph: torch.fx.GraphModule, inputs: Sequence[Any], **_: Any) -> Any:
        return graph.forward  # what inductor would compile

    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", compile_fx)
    values = {"max_train_steps": 30, "network_args": ["train_blocks=single"]}  # half as long to trace
    plain = train(flux_miniature, tmp_path / "plain", **values)
    (known,) = [each for each in remembered() if each.family == flux_miniature.family][:1]
    told = {**known.settings, "compile": True}
    remember(Measurement(**{**vars(known), "settings": told, "seconds": dict.fromkeys(known.seconds, 1e-3)}))
    run = train(flux_miniature, tmp_path / "run", **values, **AUTO)
    assert run.status == plain.status == 0
    assert run.losses == pytest.approx(plain.losses, rel=1e-3)
    said = [event["text"] for event in run.events_of("compile") if "compile_auto" in event.get("text", "")]
    assert "compile_auto: default (measured on this machine" in said[0]
    compared = [
        *said[1:],
        *(e["text"] for e in run.events_of("warning") if e["text"].startswith("compile_auto: compiled")),
    ]
    assert len(compared) == 1
    assert any(event.get("graphs") for event in run.events_of("compile"))
    # both kinds of steps are remembered, each with its own settings
    newest = [each.settings.get("compile", False) for each in remembered()[:2]]
    assert sorted(newest) == [False, True]
