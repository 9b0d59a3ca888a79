"""TensorBoard is started once, for this machine alone, and ends with the GUI."""

import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from kohya_gui.runs.tensorboard import TensorBoard

pytestmark = pytest.mark.run

ROOT = Path(__file__).parents[3]
PLAYS = "import sys, time; print('TensorBoard 9 at http://127.0.0.1:1/ (Press CTRL+C)', flush=True); time.sleep(60)"
"""A program that prints TensorBoard's line and keeps running."""


def ended(pid: int) -> bool:
    for _ in range(6000):
        state = Path(f"/proc/{pid}/stat")
        if not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.05)
    return False


def test_tensorboard_shows_a_folder_on_this_machine_only_and_can_be_stopped(tmp_path):
    board = TensorBoard()
    url = board.start(tmp_path)
    try:
        assert url.startswith("http://127.0.0.1:")
        assert urllib.request.urlopen(url, timeout=120).status == 200
        assert board.running
        assert board.start(tmp_path) == url
    finally:
        board.stop()
    assert not board.running
    board.stop()


def test_a_different_folder_replaces_the_first(tmp_path):
    board = TensorBoard(_program=("-c", PLAYS))
    board.start(tmp_path)
    first = board._child
    (tmp_path / "other").mkdir()
    board.start(tmp_path / "other")
    assert first is not None
    assert first.poll() is not None
    assert board.running
    board.stop()


def test_a_missing_folder_is_reported(tmp_path):
    with pytest.raises(ValueError, match=r"^logging_dir: folder not found: '.*none'"):
        TensorBoard().start(tmp_path / "none")


@pytest.mark.parametrize(
    ("code", "why"),
    [("import nothing_of_this_name", "No module named 'nothing_of_this_name'"), ("pass", "it exited without output")],
)
def test_a_program_that_dies_is_reported_with_its_last_output(tmp_path, code, why):
    board = TensorBoard(_program=("-c", code))
    with pytest.raises(ValueError, match=f"^TensorBoard did not start: .*{why}"):
        board.start(tmp_path)
    assert not board.running


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_tensorboard_ends_with_the_gui_however_the_gui_ends(tmp_path, how):
    code = (
        "import pathlib, signal, sys, threading, time; from kohya_gui.runs.tensorboard import TensorBoard\n"
        # background jobs of a shell do not receive Ctrl-C, nor do their children
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"board = TensorBoard(_program=('-c', {PLAYS!r}))\n"
        # as the page does: in a thread that does not stay
        "asked = threading.Thread(target=board.start, args=(pathlib.Path(sys.argv[1]),)); asked.start(); asked.join()\n"
        "print(board._child.pid, flush=True); time.sleep(60)"
    )
    gui = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert gui.stdout
    child = int(gui.stdout.readline())
    time.sleep(0.3)
    assert Path(f"/proc/{child}").exists()
    os.kill(gui.pid, how)
    gui.wait(300)
    assert ended(child)
