"""A training of one process starts without `accelerate launch`, and with all that it would have given it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from accelerate.commands.config import default_config_file
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils.launch import prepare_simple_launcher_cmd_env

from kohya_gui.runs.launch_command import LaunchCommand, build
from sd_scripts.runs import process
from sd_scripts.runs.folder import RunFolder
from sd_scripts.settings.launching.direct_start import default_config
from sd_scripts.settings.reading import from_values
from tests.support.runs import wait_for
from tests.support.scripts import SDXL_LORA

pytestmark = pytest.mark.run


@pytest.fixture(autouse=True)
def no_config_of_accelerate(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))


def command(*, cpu: bool = False, **values: object) -> LaunchCommand:
    return build(from_values(SDXL_LORA, values), SDXL_LORA, Path("/my runs/cat.toml"), cpu=cpu)


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"mixed_precision": "bf16", "num_cpu_threads_per_process": 5, "compile": True},
        {"mixed_precision": "fp16", "gpu_ids": "2, 3"},
        {"mixed_precision": "no", "gpu_ids": "all"},
    ],
    ids=["plain", "compiled", "one of the GPUs", "all GPUs"],
)
def test_command_and_environment_match_accelerate_launch(values: dict[str, object]) -> None:
    built = command(**values)
    flags, _, _ = _validate_launch_command(launch_command_parser().parse_args(built.argv[2:]))
    argv, environment = prepare_simple_launcher_cmd_env(flags)
    added = {name: value for name, value in environment.items() if os.environ.get(name) != value}
    ours = {name: value for name, value in built.started.environment.items() if os.environ.get(name) != value}
    assert (built.started.argv, ours) == (argv, added)


def test_secrets_reach_a_directly_started_run_too() -> None:
    assert command(wandb_api_key="key").started.environment["WANDB_API_KEY"] == "key"


@pytest.mark.parametrize(
    ("values", "cpu"),
    [
        ({"num_processes": 2}, False),
        ({"num_processes": 2}, True),
        ({"num_machines": 2}, False),
        ({"extra_accelerate_launch_args": "--enable_cpu_affinity"}, False),
        ({"gpu_ids": "1"}, True),
    ],
    ids=["two processes", "without a GPU", "two machines", "more arguments", "GPUs of another kind"],
)
def test_options_only_accelerate_knows_are_left_to_it(values: dict[str, object], cpu: bool) -> None:
    built = command(cpu=cpu, **values)
    assert built.started == (built.argv, built.environment)


def test_a_config_file_of_accelerate_is_left_to_it(tmp_path: Path) -> None:
    assert command().started.argv[0] == sys.executable
    (tmp_path / "accelerate").mkdir()
    (tmp_path / "accelerate" / "default_config.yaml").write_text("debug: true\n")
    assert command().started == (command().argv, {})


def test_the_accelerate_config_file_is_searched_in_the_same_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # accelerate read the environment when it was imported
    assert default_config() == Path(default_config_file)


GUI = """
import sys, time
from pathlib import Path
from sd_scripts.runs import process
from sd_scripts.runs.folder import RunFolder
process.start([sys.executable, "-c", sys.argv[2]], {"ACCELERATE_MIXED_PRECISION": "no"}, RunFolder(Path(sys.argv[1])))
time.sleep(600)
"""
TRAINING = """
import time
from sd_scripts.training.process import parent_watchdog
parent_watchdog.end_with_launcher()
for second in range(600):
    print("alive", second, flush=True)
    time.sleep(0.1)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows signals no death of a parent")
def test_the_training_outlives_the_gui_that_started_it(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    gui = subprocess.Popen([sys.executable, "-c", GUI, str(folder.path), TRAINING], env=environment)
    wait_for(lambda: folder.console.is_file() and folder.console.stat().st_size > 0)
    gui.kill()
    gui.wait()
    told = folder.console.stat().st_size
    try:
        wait_for(lambda: folder.console.stat().st_size > told + 200)  # two more seconds
    finally:
        found = process.find(folder)
        assert found is not None
        found.terminate()
