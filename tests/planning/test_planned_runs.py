"""Runs match their plans: shapes, steps and graphs; and they remember how fast they were."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from sd_scripts.families.sdxl import tiny
from sd_scripts.machine.measurements import Measurement, remembered
from sd_scripts.planning.run_plan import RunPlan, plan_run
from sd_scripts.settings.catalog import script_for
from sd_scripts.settings.reading import from_values
from tests.support.data import make_folder
from tests.support.training import FULL, Run, settings_for, train, train_whole

SIZES = [(192, 192), (160, 224), (224, 160), (96, 320), (320, 96)]
"""As buckets; the last two have the same number of tokens, and so have the two before them. No number of tokens is a
width of the models, for which dynamic graphs would be made once more."""
STRUCTURE = tiny.UNET | {"block_out_channels": (32, 64, 128), "attention_head_dim": (1, 1, 2)}
"""Widths that differ from level to level as in SDXL, so that the same number of graphs is needed; the miniature's are
equal."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, any_miniature: Any, qwen_image_miniature: Any) -> dict[str, Any]:
    narrow = tiny.write_miniature(tmp_path_factory.mktemp("narrow"), STRUCTURE)
    return {"sdxl": narrow, "flux": any_miniature, "qwen_image": qwen_image_miniature}


@pytest.fixture(autouse=True)
def _own_measurements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALAPPDATA" if sys.platform == "win32" else "XDG_STATE_HOME", str(tmp_path / "state"))


def values_for(folder: Path, sizes: list[tuple[int, int]], **more: Any) -> dict[str, Any]:
    make_folder(folder / "data" / "1_cat", sizes)
    return {
        "train_data_dir": str(folder / "data"),
        "resolution": "192,192",
        "max_bucket_reso": 512,
        **{"max_train_epochs": 2, **more},
    }


def planned(model: Any, method: str, values: dict[str, Any]) -> RunPlan:
    whole = FULL if method == "full" else {}
    files = {name: str(path) for name, path in model.files.items()}
    given = {**settings_for(model), **files, **whole, **values}
    return plan_run(from_values(script_for(model.family, method), {n: v for n, v in given.items() if v is not None}))


TWO, THREE, EQUAL = SIZES[:2], SIZES[:3], SIZES[1:3]
"""The last two of THREE, which are EQUAL, have the same number of tokens."""


@pytest.mark.deep
@pytest.mark.usefixtures("no_graphs")
@pytest.mark.parametrize(
    ("family", "method", "sizes", "more"),
    [
        # graphs of resnets for each shape, of transformer blocks once for both whose numbers of tokens are equal
        ("sdxl", "lora", EQUAL, {}),
        ("sdxl", "full", TWO, {"compile_dynamic": "true"}),
        ("flux", "full", THREE, {"max_train_epochs": 2}),
        ("flux", "lora", TWO, {"compile_dynamic": "true"}),
        ("flux", "lora", SIZES, {"equal_token_buckets": True}),
        ("qwen_image", "lora", TWO, {"compile_dynamic": "true"}),
    ],
    ids=lambda value: (
        value if isinstance(value, str) else " ".join(value) if isinstance(value, dict) else str(len(value))
    ),
)
def test_the_planned_number_of_graphs_is_compiled(
    family: str, method: str, sizes: list[tuple[int, int]], more: dict[str, Any], models: dict[str, Any], tmp_path: Path
) -> None:
    values = values_for(tmp_path, sizes, compile=True, compile_backend="eager", **{"max_train_epochs": 1, **more})
    plan = planned(models[family], method, values).compile
    made: Run = (train if method == "lora" else train_whole)(models[family], tmp_path / "out", **values)
    assert made.status == 0
    assert plan is not None
    counted = made.events_of("compile")[-1]
    assert (plan.graphs, plan.recompiles) == (counted["graphs"], counted["recompiles"])


@pytest.mark.run
def test_a_run_has_the_shapes_and_steps_of_its_plan(any_miniature: Any, tmp_path: Path) -> None:
    values = values_for(tmp_path, SIZES[:4], train_batch_size=2, gradient_accumulation_steps=3, num_processes=1)
    plan = planned(any_miniature, "lora", values)
    (started,) = train(any_miniature, tmp_path / "out", **values).events_of("started")
    shapes = [f"{shape.size}x{shape.images}" for shape in plan.shapes]
    told = {name: started[name] for name in ("images", "batches_per_epoch", "max_steps", "epochs", "shapes")}
    assert told == {
        "images": plan.images,
        "batches_per_epoch": plan.batches_per_epoch,
        "max_steps": plan.steps,
        "epochs": plan.epochs,
        "shapes": shapes,
    }


@pytest.mark.run
def test_the_next_plan_knows_how_fast_the_last_run_was(any_miniature: Any, tmp_path: Path) -> None:
    values = values_for(tmp_path, SIZES[:1], max_train_epochs=15)
    before = planned(any_miniature, "lora", values)
    made = train(any_miniature, tmp_path / "out", **values)
    (found,) = remembered()
    times = sorted(event["seconds"] for event in made.events_of("step")[3:])
    assert found.seconds == {"192x192x1": times[len(times) // 2] if len(times) % 2 else sum(times[5:7]) / 2}
    assert (found.device, found.torch, found.graphs) == ("cpu", torch.__version__, 0)
    after = planned(any_miniature, "lora", values)
    assert before.step_time is None
    assert after.step_time is not None
    assert (after.step_time.source, after.step_time.seconds) == ("remembered", found.seconds["192x192x1"])
    assert planned(any_miniature, "lora", {**values, "network_dim": 8}).step_time is None


@pytest.mark.run
def test_a_run_too_short_to_be_timed_is_not_remembered(any_miniature: Any, tmp_path: Path) -> None:
    train(any_miniature, tmp_path / "out", **values_for(tmp_path, SIZES[:1]))
    assert remembered() == list[Measurement]()
