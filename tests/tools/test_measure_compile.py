"""measure_compile times variants of a user's run, and the next plan knows the result."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from sd_scripts.formats.toml_files import write_toml
from sd_scripts.machine.measurements import remembered
from sd_scripts.planning.run_plan import plan_run
from sd_scripts.runs import tool
from sd_scripts.runs.folder import RunFolder
from sd_scripts.runs.reporter import Reporter
from sd_scripts.runs.run_state import RunState
from sd_scripts.settings.reading import from_values
from sd_scripts.settings.settings import Settings
from sd_scripts.tools import measure_compile
from sd_scripts.tools.measure_compile import (
    VARIANTS,
    Row,
    best,
    by_shape,
    main,
    not_compiled,
    table,
    values_for,
    with_variant,
)
from sd_scripts.tools.timed_run import WARM_UP, Run, Stopped
from tests.support.runs import wait_for
from tests.support.training import images, settings_for


def file_for(miniature: Any, folder: Path, **values: Any) -> Path:
    """Settings of a LoRA run as the page saves them."""
    data = {"train_data_dir": images(folder / "data"), "output_dir": folder / "out", **values}
    given = {**settings_for(miniature), **data, "family": miniature.family, "method": "lora"}
    path = folder / "run.toml"
    write_toml(path, {name: str(value) if isinstance(value, Path) else value for name, value in given.items()})
    return path


def settings_in(file: Path) -> Settings:
    return measure_compile.read_settings(file, None, None)


@pytest.mark.run
@pytest.mark.usefixtures("warm_python")
def test_variants_are_timed_remembered_and_compared(
    any_miniature: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LOCALAPPDATA" if sys.platform == "win32" else "XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setitem(VARIANTS, "default", {"compile": True, "compile_backend": "eager"})
    file = file_for(any_miniature, tmp_path, save_every_n_steps=1, sample_every_n_steps=1, max_train_steps=40)
    result = tmp_path / "measured.json"
    told = ["--config_file", str(file), "--variants", "eager", "default", "--steps", "3"]
    assert main([*told, "--json", str(result)]) == 0
    eager, compiled = json.loads(result.read_text())["rows"]
    assert (eager["graphs"], eager["first_warm"]) == (0, None)
    assert compiled["graphs"] == 2
    assert compiled["first"] > max(compiled["seconds"].values())
    assert {"eager", "default"} >= {json.loads(result.read_text())["best"]}
    assert "Fastest for this run:" in capsys.readouterr().out
    assert [found.graphs for found in remembered()] == [2, 0]
    assert not (tmp_path / "out").exists()
    settings = settings_in(file)
    plan = plan_run(from_values(settings.script, {**settings.changed(), **VARIANTS["default"]}))
    assert plan.break_even is not None
    assert plan.step_time is not None
    assert plan.step_time.seconds == compiled["seconds"]["64x64x1"]


@pytest.mark.run
@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not tell a process that its parent died")
@pytest.mark.usefixtures("warm_python")
def test_a_measurement_that_is_killed_leaves_no_training_behind(any_miniature: Any, tmp_path: Path) -> None:
    file = file_for(any_miniature, tmp_path)
    flags = ["--config_file", str(file), "--variants", "eager", "--steps", "100000"]
    command = [sys.executable, "-m", "sd_scripts.tools.measure_compile", *flags]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as tool:
        wait_for(lambda: list(tmp_path.glob("measure-*/run/run/events.jsonl")))
        (training,) = psutil.Process(tool.pid).children()
        tool.kill()
    wait_for(lambda: not training.is_running() or training.status() == psutil.STATUS_ZOMBIE)
    assert not list(tmp_path.glob("measure-*/run/*.safetensors"))


def test_settings_that_cannot_be_trained_or_measured_are_reported_immediately(
    any_miniature: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = file_for(any_miniature, tmp_path)
    assert main(["--config_file", str(file), "--variants", "fastest"]) == 2
    assert "unknown variant fastest; choose from eager, default" in capsys.readouterr().err
    assert main(["--config_file", str(file), "--steps", "0"]) == 2
    assert "--steps: 0 is not between" in capsys.readouterr().err
    assert main(["--config_file", str(tmp_path / "none.toml")]) == 2
    assert "none.toml" in capsys.readouterr().err
    wrong = file_for(any_miniature, tmp_path, ae="nowhere.safetensors", resolution="wide")
    assert main(["--config_file", str(wrong)]) == 2
    told = capsys.readouterr().err
    assert "resolution: 'wide'" in told
    assert "nowhere.safetensors" in told


def test_a_variant_neither_saves_nor_samples_nor_resumes(any_miniature: Any, tmp_path: Path) -> None:
    more = {
        "save_state": True,
        "sample_prompts": "a.txt",
        "resume": "latest",
        "log_with": "wandb",
        "max_train_epochs": 3,
    }
    settings = from_values(settings_in(file_for(any_miniature, tmp_path)).script, {**more, "learning_rate": 1e-3})
    values = values_for(settings, 60)
    assert values["learning_rate"] == 1e-3
    assert values["max_train_steps"] == 60
    assert values.keys().isdisjoint(more)


def test_a_variant_of_a_run_on_several_gpus_is_measured_in_one_process(any_miniature: Any, tmp_path: Path) -> None:
    settings = settings_in(
        file_for(any_miniature, tmp_path, num_processes=2, compile=True, compile_mode="max-autotune")
    )
    changed = with_variant(settings, VARIANTS["default"]).changed()
    assert "num_processes" not in changed
    assert (changed["compile"], changed.get("compile_mode")) == (True, None)


def test_steps_are_separated_by_shape_without_the_warm_up() -> None:
    run = Run(began=0.0)
    for number in range(WARM_UP + 4):
        shape = {0: {"shape": "64x64x1"}, WARM_UP + 2: {"shape": "64x32x1"}, WARM_UP + 3: {"shape": ""}}.get(number, {})
        run.events.append({"kind": "step", "step": number + 1, "seconds": float(number), **shape})
    assert by_shape(run) == {"64x64x1": [WARM_UP, WARM_UP + 1], "64x32x1": [WARM_UP + 2]}


def test_a_run_that_continued_without_compiling_is_not_measured() -> None:
    run = Run(began=0.0, events=[{"kind": "warning", "text": "torch.compile failed: no compiler"}])
    assert not_compiled(run) == "torch.compile failed: no compiler"
    run.events.append({"kind": "compile", "graphs": 2, "recompiles": 0, "breaks": 0})
    assert not_compiled(run) == ""


def test_the_reason_a_run_ended_is_its_own_message_or_the_end_of_its_console() -> None:
    run = Run(began=0.0)
    assert Stopped(run, "loading\noptimizer_type: unknown\n").why == "optimizer_type: unknown"
    run.events.append({"kind": "failed", "error": "CUDA out of memory"})
    assert Stopped(run, "loading").why == "CUDA out of memory"


def row(name: str, total: float | None, **more: Any) -> Row:
    return Row(variant=name, options=VARIANTS[name], seconds={"64x64x1": 0.1}, total=total, **more)


def test_compilation_is_noted_until_a_step_is_trained(tmp_path: Path) -> None:
    run = Run(began=0.0)
    assert run.compiling == ""
    run.events += [{"kind": "phase", "name": "compiling", "note": "4 of about 6 graphs"}, {"kind": "compile"}]
    assert run.compiling == "4 of about 6 graphs"
    reporter = Reporter(RunFolder(tmp_path))
    tool.start_phase(reporter, "measuring dynamic")(0, 12, run.compiling)
    reporter.close()
    shown = RunState()
    for event in RunFolder(tmp_path).events():
        shown.apply(event)
    assert (shown.phase, shown.total, shown.phase_note) == ("measuring dynamic", 12, "4 of about 6 graphs")
    run.events += [{"kind": "step", "seconds": 0.1}]
    assert run.compiling == ""


def test_the_best_variant_stays_within_the_memory_of_the_settings() -> None:
    rows = [row("eager", 9.0), row("default", 8.0), row("checkpointed", 12.0), row("checkpointed default", None)]
    assert (best(rows, saves=False) or rows[0]).variant == "default"
    assert (best(rows, saves=True) or rows[0]).variant == "checkpointed"
    assert best(rows[3:], saves=False) is None


def test_the_table_is_aligned_and_shows_failures() -> None:
    rows = [
        row("default", 8.0, fastest=0.09, slowest=0.12, first=31.0, first_warm=3.0, gpu_bytes=2**31, graphs=14),
        Row(variant="eager", options={}, seconds={}, failed="CUDA out of memory"),
    ]
    assert table(rows) == [
        "variant  median    fastest to p90  first step  with cache  GPU memory  graphs  breaks",
        "default  100.0 ms  90 to 120 ms    31 s        3.0 s       2.00 GiB    14      0",
        "eager    failed    CUDA out of memory",
    ]
