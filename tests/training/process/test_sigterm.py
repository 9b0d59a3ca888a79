"""Two processes over gloo, one of which is terminated: both end, between steps with a state, and also while one of
them compiles and the other waits for it."""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from sd_scripts.runs.folder import RunFolder
from sd_scripts.training.process import sigterm
from sd_scripts.training.saving.train_state import damage, read_saved
from tests.support.data import make_folder
from tests.support.runs import wait_for
from tests.support.stuck_training import train_in_group
from tests.support.suite.fresh import group, launch, outcome, told_in
from tests.training.methods.test_ddp import configure

pytestmark = [
    pytest.mark.deep,
    pytest.mark.skipif(sys.platform != "linux", reason="gloo without CUDA is tried on Linux"),
]


def events(config: Path, kind: str) -> list[dict[str, Any]]:
    return [event for event in RunFolder(config.parent / "out" / "run").events() if event["kind"] == kind]


@pytest.mark.parametrize("sent", ["to the second", "twice to both"])
def test_both_processes_save_and_stop_when_terminated(sent: str, flux_miniature: Any, tmp_path: Path) -> None:
    """Slurm sends SIGTERM to all processes, and so does the launcher, which receives it too."""
    config = configure(tmp_path, flux_miniature, max_train_steps=100_000)
    ranks = group(2, tmp_path, train_in_group, config, tmp_path / "marker")
    wait_for(lambda: len(events(config, "step")) >= 2)
    for _ in range(2 if sent == "twice to both" else 1):
        for each in ranks if sent == "twice to both" else ranks[1:]:
            assert each.pid
            os.kill(each.pid, signal.SIGTERM)
        wait_for(lambda: "Stopping after this step" in told_in(tmp_path))
    assert [outcome(each) for each in ranks] == [0, 0], told_in(tmp_path)
    (stopped,) = events(config, "stopped")
    assert (tmp_path / "out" / f"short-step{stopped['step']:08d}-state").is_dir()


def assert_saved(config: Path) -> None:
    """The state of the last complete step exists, and the failure mentions it."""
    last = events(config, "step")[-1]["step"]
    state = config.parent / "out" / f"short-step{last:08d}-state"
    (failed,) = events(config, "failed")
    assert "SIGTERM during a step" in failed["error"]
    assert str(state) in failed["remedy"]
    assert damage(read_saved(str(state))) == ""


def two_shapes(folder: Path, model: Any) -> Path:
    """Settings of a run that compiles at its first step, and again later."""
    make_folder(folder / "images" / "1_noise", [(64, 64)] * 4 + [(64, 96)] * 4)
    return configure(folder, model, max_train_steps=100, compile=True, compile_backend="eager", resolution="64,96")


def test_both_processes_end_when_one_is_terminated_while_the_other_compiles(
    flux_miniature: Any, tmp_path: Path
) -> None:
    config, marker = two_shapes(tmp_path, flux_miniature), tmp_path / "marker"
    ranks = group(2, tmp_path, train_in_group, config, marker, "compiling")
    wait_for(lambda: marker.exists() or not all(each.is_alive() for each in ranks))
    assert ranks[1].pid
    os.kill(ranks[1].pid, signal.SIGTERM)
    assert [outcome(each) for each in ranks] == [sigterm.STATUS, sigterm.STATUS], told_in(tmp_path)
    assert_saved(config)


DRIVER = """
import sys
from pathlib import Path
from sd_scripts.machine import garbage_collection

with garbage_collection.importing():
    from tests.support.stuck_training import train_in_group
sys.exit(train_in_group(Path(sys.argv[1]), Path(sys.argv[2]), "in a step"))
"""


def test_both_processes_end_when_the_launcher_is_terminated_while_one_is_stuck(
    flux_miniature: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, marker = configure(tmp_path, flux_miniature, max_train_steps=100), tmp_path / "marker"
    (tmp_path / "driver.py").write_text(DRIVER)
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    console = tmp_path / "console.txt"
    launcher = launch(["--multi_gpu"], [str(tmp_path / "driver.py"), str(config), str(marker)], console)
    try:
        wait_for(lambda: marker.exists() or not launcher.is_alive())
        launcher.terminate()
    finally:
        outcome(launcher)
    told = console.read_text()
    assert told.count("Terminated by SIGTERM during a step") == 2, told
    assert_saved(config)
