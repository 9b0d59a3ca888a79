"""Run folders, processes and states: the GUI relies on them without reading a trainer's output."""

import json
import os
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from sd_scripts.runs import process, tool
from sd_scripts.runs.folder import CONSOLE_MOST_BYTES, RunFolder, new_run_folder
from sd_scripts.runs.process import RunningRun
from sd_scripts.runs.reporter import Reporter
from sd_scripts.runs.run_state import Mark, RunState
from sd_scripts.runs.watched import FRESH, WatchedRun
from tests.support.runs import PATIENCE, wait_for

REPO = Path(__file__).parents[2]
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
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up'); time.sleep(600)"


def begin(folder: RunFolder, program: str = TRAINER) -> RunningRun:
    return process.start([sys.executable, "-c", program, str(folder.path)], {"PYTHONPATH": str(REPO)}, folder)


def test_a_run_is_started_watched_and_stopped_at_the_end_of_a_step(tmp_path):
    watched = WatchedRun(RunFolder(tmp_path), begin(RunFolder(tmp_path)))
    wait_for(lambda: watched.refresh().step > 2)
    watched.stop()
    assert watched.run_state.state == "stopping"
    wait_for(lambda: watched.refresh().over)
    assert watched.run_state.state == "stopped"
    assert watched.folder.console_tail() == "hello"
    wait_for(lambda: not watched.alive)
    assert watched.run.exit_code == 0


def test_a_gui_that_starts_again_finds_the_run_by_pid_and_birth(tmp_path):
    run = begin(RunFolder(tmp_path), "import time; time.sleep(600)")
    found = process.find(RunFolder(tmp_path))
    assert found is not None
    assert (found.pid, found.born) == (run.pid, run.born)
    other = RunningRun(RunFolder(tmp_path), run.pid, "another birth")
    assert not other.alive
    if sys.platform == "linux":
        run.folder.process.unlink()  # the GUI was killed before it wrote it down
        marked = process.find(RunFolder(tmp_path))
        assert marked is not None
        assert (marked.pid, marked.born) == (run.pid, run.born)
    found.terminate(grace=5)
    assert run.wait(PATIENCE)
    assert process.find(RunFolder(tmp_path)) is None


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_a_run_that_does_not_listen_is_ended_after_the_grace_time(tmp_path):
    run = begin(RunFolder(tmp_path), DEAF)
    wait_for(lambda: run.folder.console_tail() == "up")
    WatchedRun(run.folder, run, grace=0.1).ask("stop")
    assert [command["kind"] for command in run.folder.commands()] == ["stop"]
    assert run.wait(PATIENCE)
    assert run.exit_code == -signal.SIGKILL  # SIGTERM is ignored


def test_a_process_that_dies_without_a_final_event_is_lost(tmp_path):
    watched = WatchedRun(RunFolder(tmp_path), begin(RunFolder(tmp_path), "print('last words'); raise SystemExit(7)"))
    wait_for(lambda: watched.refresh().over)
    assert watched.run_state.state == "lost"
    assert "exit code 7" in watched.run_state.failure["error"]
    assert watched.run_state.failure["details"] == "last words"


def test_every_command_is_a_line_in_the_folder_and_visible_immediately(tmp_path):
    watched = WatchedRun(RunFolder(tmp_path), None)
    for kind in ("save", "sample", "stop"):
        watched.ask(kind)
    assert [command["kind"] for command in watched.folder.commands()] == ["save", "sample", "stop"]
    assert watched.run_state.pending_commands == ["save", "sample", "stop"]
    assert watched.run_state.state == "stopping"
    assert watched.run_state.stop_sent.kind == "stop"


def test_a_run_in_a_used_folder_ignores_the_previous_stop(tmp_path):
    folder = RunFolder(tmp_path)
    killed = Reporter(folder)
    killed.emit("started", max_steps=9)
    watched = WatchedRun(folder, None)
    for kind in ("save", "stop"):
        watched.ask(kind)
    killed.emit("step", step=1)
    assert watched.run_state.state == "stopping"
    Reporter(folder).emit("phase", name="loading the model")
    watched.ask("sample")
    seen = WatchedRun(folder, None)
    seen.ask("sample")
    for state in (watched.run_state, seen.run_state):
        assert state.state == "running"
        assert set(state.pending_commands) == {"sample"}
    seen.ask("stop")
    assert seen.run_state.state == "stopping"


def test_a_stop_is_remembered_by_the_folder_not_by_the_gui(tmp_path):
    folder = RunFolder(tmp_path)
    run = begin(folder, "import time; time.sleep(600)")
    folder.command("stop")
    watched = WatchedRun(folder, process.find(folder))
    assert watched.refresh().state == "stopping"
    run.terminate()
    watched.run = None
    time.sleep(FRESH)
    assert "ended before it could save" in watched.refresh().failure["error"]


def test_a_missing_program_is_reported_in_one_sentence(tmp_path):
    with pytest.raises(ValueError, match="cannot be started"):
        process.start([str(tmp_path / "no such program")], {}, RunFolder(tmp_path))


ORPHANS = """
import subprocess, sys, time
child = "import signal, sys, time; signal.signal(signal.SIGTERM, {0}); print('up', flush=True); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", child.format("signal.SIG_IGN")])
time.sleep({1})
"""


@pytest.mark.skipif(sys.platform != "linux", reason="orphans are found by their environment")
def test_processes_left_by_a_dead_leader_still_belong_to_the_run(tmp_path):
    run = begin(RunFolder(tmp_path), ORPHANS.replace("{1}", "60"))
    wait_for(lambda: run.folder.console_tail() == "up")
    os.kill(run.pid, signal.SIGKILL)
    wait_for(lambda: not run.leader_alive)
    assert run.alive
    assert run.orphaned
    found = process.find(run.folder)
    assert found is not None
    assert found.orphaned
    stranger = RunFolder(tmp_path / "of another run")
    assert not RunningRun(stranger, run.pid, run.born).alive  # the same group, but not its own
    run.folder.process.unlink()
    marked = process.find(run.folder)  # by the mark alone
    assert marked is not None
    assert (marked.pid, marked.orphaned) == (run.pid, True)
    found.terminate(grace=0.2)  # they ignore SIGTERM
    assert run.wait(PATIENCE)
    assert process.find(run.folder) is None


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_a_process_that_reuses_the_pid_of_a_run_is_never_touched(tmp_path):
    stranger = begin(RunFolder(tmp_path / "stranger"), "import time; time.sleep(600)")
    run = RunningRun(RunFolder(tmp_path / "stranger"), stranger.pid, "an earlier birth")
    assert not run.alive
    run.terminate(grace=0.1)
    time.sleep(0.1)
    assert stranger.alive
    stranger.terminate()


def test_two_runs_of_one_second_get_two_folders(tmp_path):
    folders = [new_run_folder(tmp_path, "my cat/1", now=0) for _ in range(2)]
    assert folders[0].path != folders[1].path
    assert all(f.path.parent == tmp_path and f.path.is_dir() for f in folders)


def test_the_console_is_shown_as_a_terminal_would(tmp_path):
    folder = RunFolder(tmp_path)
    folder.console.write_bytes(b"one\r\nsteps 1\rsteps 2\rsteps 3\n\x1b[31mred\x1b[0m\n")
    assert folder.console_tail() == "one\nsteps 3\nred"


def test_the_console_has_line_numbers_and_is_searched(tmp_path):
    folder = RunFolder(tmp_path)
    assert folder.console_lines() == ([], 0)
    progress = "".join(f"\rsteps {i}" for i in range(1000))
    lines = "".join(f"line {i}\n" for i in range(1, 1001))
    folder.console.write_text(f"{lines}{progress}\n\x1b[31mEr\x1b[0mror: full\n")
    assert folder.console_lines(last=3) == ([(1000, "line 1000"), (1001, "steps 999"), (1002, "Error: full")], 1002)
    assert len(folder.console_lines(last=5000).lines) == 1002
    assert folder.console_lines("error") == ([(1002, "Error: full")], 1)
    assert folder.console_lines("LINE 99", last=2) == ([(998, "line 998"), (999, "line 999")], 11)
    assert folder.console_lines("steps 5") == ([], 0)  # a terminal does not show it any more


def test_a_very_long_console_shows_its_end(tmp_path):
    folder = RunFolder(tmp_path)
    folder.console.write_bytes(b"x" * 999 + b"\n" + b"y\n" * (CONSOLE_MOST_BYTES // 2))
    shown = folder.console_lines(last=1)
    assert shown.lines[0][1] == "y"
    assert shown.total == CONSOLE_MOST_BYTES // 2


def test_a_line_truncated_by_a_full_disk_is_skipped(tmp_path):
    (tmp_path / "events.jsonl").write_text('{"kind": "step", "st{"kind": "warning"}\n{"kind": "step"}\n{"kind": ')
    assert [event["kind"] for event in RunFolder(tmp_path).events()] == ["step"]


def test_a_partial_character_waits_for_the_rest(tmp_path):
    file = tmp_path / "events.jsonl"
    line = json.dumps({"kind": "warning", "text": "grün"}, ensure_ascii=False).encode() + b"\n"
    cut = line.index("ü".encode()) + 1
    file.write_bytes(line[:cut])
    tail = RunFolder(tmp_path).events()
    assert list(tail) == []
    with file.open("ab") as opened:
        opened.write(line[cut:])
    assert [event["text"] for event in tail] == ["grün"]


def test_malformed_events_and_characters_are_skipped(tmp_path):
    (tmp_path / "events.jsonl").write_bytes(b'5\n["step"]\n\xff\xfe\n\n{"kind": "step"}\n')
    assert [event["kind"] for event in RunFolder(tmp_path).events()] == ["step"]


@pytest.mark.parametrize("replaced", [False, True], ids=["cut", "replaced"])
def test_a_truncated_or_replaced_event_file_is_still_read(tmp_path, replaced):
    folder = RunFolder(tmp_path)
    log, tail = folder.log(), folder.events()
    for step in (1, 2, 3):
        log("step", step=step)
    assert [event["step"] for event in tail] == [1, 2, 3]
    if replaced:  # by a copy, as a backup would
        (tmp_path / "copy").write_bytes(folder.events_file.read_bytes())
        os.replace(tmp_path / "copy", folder.events_file)
        log = folder.log()
    else:
        os.truncate(folder.events_file, 0)
    log("step", step=4)
    assert [event["step"] for event in tail] == [4]


def itself(folder: RunFolder) -> RunningRun:
    """A run that is alive: this process."""
    return RunningRun(folder, os.getpid(), process.process_born(os.getpid()) or "")


def test_100_000_steps_are_read_once_and_later_only_new_ones(tmp_path):
    folder = RunFolder(tmp_path)
    line = '{"time": %d.5, "kind": "step", "step": %d, "loss": 0.125, "average": 0.13, "lr": {"unet": 0.0001}}\n'
    folder.events_file.write_text("".join(line % (i, i) for i in range(1, 100_001)))
    watched = WatchedRun(folder, itself(folder))
    began = time.process_time()
    run_state = watched.refresh()
    whole = time.process_time() - began
    assert (run_state.step, len(run_state.losses), len(run_state.rates["unet"])) == (100_000, 100_000, 100_000)
    with folder.events_file.open("a") as file:
        file.write(line % (100_001, 100_001))
    time.sleep(FRESH)
    began = time.process_time()
    assert watched.refresh().step == 100_001
    assert time.process_time() - began < whole / 10


def test_a_command_is_pending_until_the_run_acknowledges_it(tmp_path):
    folder = RunFolder(tmp_path)
    log = folder.log()
    ids = [folder.command("save"), folder.command("sample"), folder.command("save")]
    log("step", step=7)
    log("heard", command="save", ids=[ids[0], ids[2]], step=7)
    watched = WatchedRun(folder, itself(folder))
    run_state = watched.refresh()
    assert len(set(ids)) == 3
    assert [(sent.kind, sent.handled_step) for sent in run_state.commands] == [
        ("save", 7),
        ("sample", None),
        ("save", 7),
    ]
    assert run_state.pending_commands == ["sample"]
    log("heard", command="sample", ids=[ids[1]], step=8)
    time.sleep(FRESH)
    assert watched.refresh().pending_commands == []


@pytest.mark.parametrize(
    ("saved", "told"), [(False, "not saved anything yet"), (True, "Its earlier saves still exist")]
)
def test_a_run_killed_by_the_user_is_stopped_for_every_later_gui(tmp_path, saved, told):
    folder = RunFolder(tmp_path)
    log = folder.log()
    log("started", max_steps=10)
    log("step", step=4)
    if saved:
        log("saved", path=str(tmp_path / "a-state"), step=2)
    folder.command("end")
    run_state = WatchedRun(folder, None).refresh()
    assert run_state.state == "stopped"
    assert run_state.failure["error"].startswith("You stopped this run immediately at step 4, without saving.")
    assert told in run_state.failure["error"]
    assert run_state.ended == folder.events_file.stat().st_mtime


def test_events_that_cannot_be_read_are_one_sentence(tmp_path):
    (tmp_path / "events.jsonl").mkdir()
    run_state = WatchedRun(RunFolder(tmp_path), None).refresh()
    assert run_state.state == "lost"
    assert "cannot be read" in run_state.failure["error"]


def test_an_incomplete_event_does_not_harm_others():
    run_state = RunState()
    broken = {"kind": "sample", "path": None}, {"kind": "saved"}, {"kind": "step", "lr": 5, "step": 1}
    for event in ({"kind": "step"}, *broken):
        run_state.apply(event)
    run_state.apply({"kind": "step", "step": 2, "loss": 0.5})
    assert (run_state.state, run_state.step, run_state.loss) == ("running", 2, 0.5)


def test_images_per_second_count_all_images_of_a_step():
    run_state = RunState()
    run_state.apply({"kind": "started", "max_steps": 10, "images_per_step": 8})
    assert run_state.images_per_second is None
    for step in range(1, 11):
        run_state.apply({"kind": "step", "step": step, "seconds": 0.5, "vram": 100 - step, "ram": step})
    assert run_state.images_per_second == pytest.approx(16)
    assert (run_state.vram, run_state.vram_now, run_state.ram) == (99, 90, 10)


def test_speed_leaves_out_warm_up_and_compiling():
    run_state = RunState()
    run_state.apply({"kind": "started", "max_steps": 100, "epochs": 2, "time": 0.0})
    for step in range(1, 41):
        slow = step <= 3 or step == 20
        run_state.apply({"kind": "step", "step": step, "loss": 1.0, "seconds": 30.0 if slow else 0.5})
    assert run_state.seconds_per_step == pytest.approx(0.5)
    assert run_state.seconds_left == pytest.approx(30.0)
    assert run_state.fraction == pytest.approx(0.4)


def test_a_resumed_run_starts_at_its_step():
    run_state = RunState()
    run_state.apply({"kind": "phase", "name": "loading", "time": 1.0})
    run_state.apply({"kind": "started", "max_steps": 100, "epochs": 2, "step": 40, "time": 9.0})
    assert (run_state.step, run_state.fraction, run_state.started) == (40, 0.4, 1.0)


def test_a_phase_is_timed_from_its_start_until_a_step():
    run_state = RunState()
    run_state.apply({"kind": "phase", "name": "compiling", "time": 1.0})
    run_state.apply({"kind": "phase", "name": "compiling", "note": "12 graphs so far", "time": 5.0})
    assert (run_state.phase_since, run_state.phase_note) == (1.0, "12 graphs so far")
    run_state.apply({"kind": "step", "step": 1, "time": 9.0})
    assert (run_state.phase, run_state.phase_since, run_state.phase_note) == ("training", 9.0, "")


def test_compiler_events_are_marked_along_the_steps():
    run_state = RunState()
    graph, again = {"block": "Block", "why": ""}, {"block": "Block", "why": "size of x is 3 instead of 2"}
    run_state.apply({"kind": "compile", "step": 0, "text": "first", "compiled": [graph], "broke": []})
    run_state.apply({"kind": "compile", "step": 7, "text": "again", "compiled": [again, again], "broke": []})
    run_state.apply(
        {"kind": "compile", "step": 9, "text": "broken", "compiled": [again, 1], "broke": ["block.py:3", 1]}
    )
    run_state.apply({"kind": "compile", "step": 10, "graphs": 4})
    run_state.apply({"kind": "compile", "step": 11, "text": "again", "compiled": [again], "broke": ["block.py:3"]})
    assert run_state.marks == [
        Mark(1, "compiled", ("first",)),
        Mark(7, "recompiled", ("again", "size of x is 3 instead of 2")),
        Mark(9, "graph break", ("broken", "size of x is 3 instead of 2", "graph break at block.py:3")),
        Mark(11, "recompiled", ("again", "size of x is 3 instead of 2")),
    ]
    assert run_state.breaks == ["block.py:3"]
    for step in range(12, 1000):
        run_state.apply({"kind": "compile", "step": step, "text": "x", "compiled": [again], "broke": [f"a.py:{step}"]})
    assert (len(run_state.marks), len(run_state.breaks), len(run_state.compiled)) == (200, 100, 100)


def test_comparisons_with_eager_steps_add_up_and_large_differences_are_marked():
    run_state = RunState()
    told = {"kind": "compile_check", "bound": 1e-3, "exceeds": False}
    run_state.apply({**told, "step": 5, "loss_difference": 2e-7, "gradient_difference": 3e-6})
    run_state.apply({**told, "step": 10, "loss_difference": 0.0, "gradient_difference": 0.25, "exceeds": True})
    run_state.apply({**told, "step": 15, "loss_difference": None, "gradient_difference": None, "exceeds": True})
    checks = run_state.checks
    assert (checks.count, checks.last_step, checks.exceeded) == (3, 15, [10, 15])
    assert (checks.largest_loss, checks.largest_gradient) == (2e-7, 0.25)
    assert run_state.marks == [
        Mark(10, "differs", ("compiled and eager results differ: loss by 0, gradients by 0.25 of the largest",)),
        Mark(15, "differs", ("compiled and eager results differ",)),
    ]


def test_a_nan_loss_does_not_break_the_curve():
    run_state = RunState()
    run_state.apply(json.loads('{"kind": "step", "step": 1, "loss": NaN}'))
    run_state.apply({"kind": "step", "step": 2, "loss": 0.5})
    assert run_state.losses.bins(0).bins == [(2, 0.5, 0.5, 0.5)]


def test_an_event_of_a_later_version_is_tolerated():
    run_state = RunState()
    run_state.apply({"kind": "confetti", "colour": "red"})
    assert run_state.state == "running"
    assert run_state.event_count == 1


def test_a_tool_prints_its_progress_twice_a_second_and_at_the_end(capsys, monkeypatch):
    progress = tool.start_phase(Reporter(None), "reading")
    for done, now in enumerate([7.0, 7.3, 7.6, 8.0, 8.2, 8.3], start=1):
        monkeypatch.setattr(tool, "time", SimpleNamespace(monotonic=lambda now=now: now))
        progress(done, 6)
    assert capsys.readouterr().out.splitlines() == [f"reading {done} of 6" for done in (1, 3, 5, 6)]
