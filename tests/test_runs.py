"""Run folders, processes and stories: what the GUI relies on without ever reading what a trainer prints."""

import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest

from sd_scripts.runs import process
from sd_scripts.runs.book import FRESH, RunBook, WatchedRun
from sd_scripts.runs.folder import RunFolder, new_run_folder
from sd_scripts.runs.process import RunningRun
from sd_scripts.runs.store import RunStore
from sd_scripts.runs.story import Curve, RunStory

REPO = Path(__file__).parents[1]
TRAINER = """
import sys, time
from pathlib import Path
from sd_scripts.runs.folder import RunFolder
folder = RunFolder(Path(sys.argv[1]))
log, commands = folder.log(), folder.commands()
log("started", max_steps=1000, epochs=1, pid=1, version="0")
print("hello")
for step in range(1, 1001):
    log("step", step=step, epoch=1, loss=0.5, seconds=0.01)
    if any(command["kind"] == "stop" for command in commands):
        log("stopped", step=step)
        break
    time.sleep(0.01)
"""
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up'); time.sleep(60)"


def begin(folder: RunFolder, program: str = TRAINER) -> RunningRun:
    return process.start([sys.executable, "-c", program, str(folder.path)], {"PYTHONPATH": str(REPO)}, folder)


def wait_for(what, seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_run_is_started_watched_and_stopped_at_the_end_of_a_step(tmp_path):
    watched = WatchedRun(RunFolder(tmp_path), begin(RunFolder(tmp_path)))
    wait_for(lambda: watched.refresh().step > 2)
    watched.stop()
    assert watched.story.state == "stopping"
    wait_for(lambda: watched.refresh().over)
    assert watched.story.state == "stopped"
    assert watched.folder.console_tail() == "hello"
    wait_for(lambda: not watched.alive)
    assert watched.run.exit_code == 0


def test_a_gui_that_starts_again_finds_the_run_by_pid_and_birth(tmp_path):
    run = begin(RunFolder(tmp_path), "import time; time.sleep(60)")
    found = process.find(RunFolder(tmp_path))
    assert found is not None
    assert (found.pid, found.born) == (run.pid, run.born)
    other = RunningRun(RunFolder(tmp_path), run.pid, "another birth")
    assert not other.alive
    found.terminate(grace=5)
    assert run.wait(5)
    assert process.find(RunFolder(tmp_path)) is None


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_a_run_that_does_not_listen_is_ended_after_the_grace_time(tmp_path):
    run = begin(RunFolder(tmp_path), DEAF)
    wait_for(lambda: run.folder.console_tail() == "up")
    run.stop(grace=0.1)
    assert [command["kind"] for command in run.folder.commands()] == ["stop"]
    time.sleep(0.5)
    assert run.alive  # SIGTERM is ignored, SIGKILL comes later
    os.killpg(run.pid, signal.SIGKILL)
    assert run.wait(5)
    assert run.exit_code == -signal.SIGKILL


def test_a_process_that_dies_without_a_word_is_told_as_lost(tmp_path):
    watched = WatchedRun(RunFolder(tmp_path), begin(RunFolder(tmp_path), "print('last words'); raise SystemExit(7)"))
    wait_for(lambda: watched.refresh().over)
    assert watched.story.state == "lost"
    assert "exit code 7" in watched.story.failure["error"]
    assert watched.story.failure["details"] == "last words"


def test_a_stop_is_remembered_by_the_folder_not_by_the_gui(tmp_path):
    folder = RunFolder(tmp_path)
    run = begin(folder, "import time; time.sleep(60)")
    folder.command("stop")
    watched = WatchedRun(folder, process.find(folder))
    assert watched.refresh().state == "stopping"
    run.terminate()
    watched.run = None
    time.sleep(FRESH)
    assert "ended before it could save" in watched.refresh().failure["error"]


def test_one_run_at_a_time(tmp_path):
    book = RunBook(RunStore(tmp_path / "runs.jsonl"))
    first = book.start([sys.executable, "-c", "import time; time.sleep(60)"], {}, RunFolder(tmp_path / "a"))
    with pytest.raises(ValueError, match="a run is on already"):
        book.start([sys.executable, "-c", "pass"], {}, RunFolder(tmp_path / "b"))
    first.end_now()
    second = book.start([sys.executable, "-c", "pass"], {}, RunFolder(tmp_path / "b"))
    assert [f.path.name for f in RunBook(RunStore(tmp_path / "runs.jsonl")).folders()] == ["b", "a"]
    assert second.run.wait(5)


def test_a_run_whose_folder_is_deleted_under_it_can_still_be_stopped(tmp_path):
    book = RunBook(RunStore(tmp_path / "runs.jsonl"))
    book.start([sys.executable, "-c", "import time; time.sleep(60)"], {}, RunFolder(tmp_path / "a"))
    shutil.rmtree(tmp_path / "a")
    with pytest.raises(ValueError, match="a run is on already"):
        book.check_free()
    running = book.running()
    assert running
    running.end_now()
    assert book.running() is None


def test_a_run_that_ended_well_and_told_nothing_is_not_called_killed(tmp_path):
    watched = RunBook(RunStore(tmp_path / "runs.jsonl")).start(
        [sys.executable, "-c", ""], {}, RunFolder(tmp_path / "a")
    )
    assert watched.run
    assert watched.run.wait(10)
    assert "was its folder deleted?" in watched.refresh().failure["error"]


def test_a_program_that_is_not_there_is_one_sentence(tmp_path):
    with pytest.raises(ValueError, match="cannot be started"):
        process.start([str(tmp_path / "no such program")], {}, RunFolder(tmp_path))


def test_two_runs_of_one_second_get_two_folders(tmp_path):
    folders = [new_run_folder(tmp_path, "my cat/1", now=0) for _ in range(2)]
    assert folders[0].path != folders[1].path
    assert all(f.path.parent == tmp_path and f.path.is_dir() for f in folders)


def test_the_console_is_shown_as_a_terminal_would(tmp_path):
    folder = RunFolder(tmp_path)
    folder.console.write_bytes(b"one\r\nsteps 1\rsteps 2\rsteps 3\n\x1b[31mred\x1b[0m\n")
    assert folder.console_tail() == "one\nsteps 3\nred"


def test_a_line_that_a_full_disk_cut_is_passed_over(tmp_path):
    (tmp_path / "events.jsonl").write_text('{"kind": "step", "st{"kind": "warning"}\n{"kind": "step"}\n{"kind": ')
    assert [event["kind"] for event in RunFolder(tmp_path).events()] == ["step"]


def test_speed_leaves_out_warm_up_and_compiling():
    story = RunStory()
    story.tell({"kind": "started", "max_steps": 100, "epochs": 2, "time": 0.0})
    for step in range(1, 41):
        slow = step <= 3 or step == 20
        story.tell({"kind": "step", "step": step, "loss": 1.0, "seconds": 30.0 if slow else 0.5})
    assert story.seconds_per_step == pytest.approx(0.5)
    assert story.seconds_left == pytest.approx(30.0)
    assert story.fraction == pytest.approx(0.4)


def test_a_run_that_goes_on_begins_where_it_was():
    story = RunStory()
    story.tell({"kind": "phase", "name": "loading", "time": 1.0})
    story.tell({"kind": "started", "max_steps": 100, "epochs": 2, "step": 40, "time": 9.0})
    assert (story.step, story.fraction, story.started) == (40, 0.4, 1.0)


def test_a_loss_that_is_no_number_breaks_no_curve():
    story = RunStory()
    story.tell(json.loads('{"kind": "step", "step": 1, "loss": NaN}'))
    story.tell({"kind": "step", "step": 2, "loss": 0.5})
    assert story.losses.points == [(2.0, 0.5)]


def test_a_long_curve_keeps_its_mean_and_stays_small():
    curve = Curve(most=100)
    for x in range(10_000):
        curve.add(x, float(x % 2))
    assert 50 <= len(curve.points) < 100
    assert {y for _, y in curve.points} == {0.5}
    assert curve.points[-1][0] > 9_800


def test_an_event_of_a_later_version_is_no_accident():
    story = RunStory()
    story.tell({"kind": "confetti", "colour": "red"})
    assert story.state == "running"
    assert story.told == 1
