"""The list of runs and the queue: real processes, real files, and more than one GUI."""

import contextlib
import itertools
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sd_scripts.runs import process
from sd_scripts.runs.folder import RunFolder, new_run_folder
from sd_scripts.runs.queue import PlannedRun, RunQueue, gpu_set
from sd_scripts.runs.run_state import ENDED
from sd_scripts.runs.store import NETWORK_FILE_SYSTEMS, RunRow, RunStore, file_system, gpus_overlap
from sd_scripts.runs.watched import WatchedRun
from tests.support.runs import PATIENCE, TELLING, wait_for

pytestmark = pytest.mark.run

REPO = Path(__file__).parents[2]
FAILING = """
import sys
from pathlib import Path
from sd_scripts.runs.folder import RunFolder
RunFolder(Path(sys.argv[1])).log()("failed", error="the disk is full", remedy="free some space")
raise SystemExit(1)
"""
LASTING = "import time; time.sleep(600)"


class Place:
    """A store and its queues, and runs for them; remaining ones are ended at the end."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.queues: list[RunQueue] = []
        self.ids = 0

    def queue(self, opened: bool = True, grace: float = 0.3, **how: Any) -> RunQueue:
        made = RunQueue(RunStore(self.folder / "runs.sqlite"), every=0.05, grace=grace, **how)
        self.queues.append(made)
        if opened:
            made.open()
        return made

    def plan(self, program: str = TELLING, steps: int = 5, **facts: Any) -> PlannedRun:
        self.ids += 1
        folder = new_run_folder(self.folder / "runs", f"{self.ids}")
        folder.config.write_text("seed = 1\n")
        argv = [sys.executable, "-c", program, str(folder.path), str(steps)]
        environment = {"PYTHONPATH": str(REPO)} | facts.pop("environment", {})
        facts = {"name": f"run {self.ids}", "tab": "lora", "family": "sdxl"} | facts
        return PlannedRun(folder=folder, argv=argv, environment=environment, **facts)

    def close(self) -> None:
        for queue in self.queues:
            queue.close()
        for row in RunStore(self.folder / "runs.sqlite").living():
            if run := process.find(RunFolder(row.folder), row.process):
                run.terminate(grace=1)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.close()


def states(queue: RunQueue) -> list[str]:
    """Oldest first."""
    return [row.state for row in reversed(queue.store.rows())]


def over(queue: RunQueue) -> bool:
    return all(row.state in ENDED for row in queue.store.rows())


def test_runs_on_one_gpu_follow_each_other_in_the_order_of_the_queue(place: Place):
    queue = place.queue()
    for _ in range(3):
        queue.add(place.plan())
    wait_for(lambda: over(queue))
    rows = list(reversed(queue.store.rows()))
    assert [row.state for row in rows] == ["finished"] * 3
    for before, after in itertools.pairwise(rows):
        assert before.ended <= after.started
    first = rows[0]
    assert (first.name, first.tab, first.family, first.step, first.max_steps) == ("run 1", "lora", "sdxl", 5, 5)
    assert first.results == (str(first.folder / "model.safetensors"),)  # a missing file is not a result
    assert first.created <= first.started <= first.ended
    assert first.error == ""


def test_runs_on_different_gpus_run_side_by_side(place: Place):
    queue = place.queue()
    ids = [queue.add(place.plan(LASTING, gpus=gpus)) for gpus in ("0", "1", "0,1", "2", "cpu")]
    wait_for(lambda: [row.id for row in queue.store.living()] == [ids[0], ids[1], ids[3], ids[4]])
    time.sleep(0.2)
    assert [row.id for row in queue.store.queued()] == [ids[2]]
    assert queue.run_on("all").name == "run 1"
    assert queue.run_on("3") is None
    queue.end_now(ids[0])
    queue.end_now(ids[1])
    wait_for(lambda: queue.store.row(ids[2]).state in ("starting", "running"))


def test_an_earlier_queued_run_is_not_overtaken_by_one_that_shares_its_gpu(place: Place):
    queue = place.queue()
    first = queue.add(place.plan(LASTING, gpus="0"))
    wait_for(lambda: queue.store.living())
    queue.add(place.plan(gpus="0,1"))
    later = queue.add(place.plan(gpus="1"))  # card 1 is free, but the one before it waits for it too
    time.sleep(0.3)
    assert queue.store.row(later).state == "queued"
    queue.end_now(first)
    wait_for(lambda: over(queue))
    rows = {row.id: row for row in queue.store.rows()}
    assert rows[later - 1].ended <= rows[later].started


@pytest.mark.parametrize(
    ("gpu_ids", "on_cpu", "cards"),
    [("", False, "all"), ("", True, "cpu"), ("1, 0,1", False, "0,1"), ("10,9", False, "9,10"), ("all", False, "all")],
)
def test_a_set_of_gpus_has_one_name(gpu_ids: str, on_cpu: bool, cards: str):
    assert gpu_set(gpu_ids, on_cpu) == cards


def test_all_gpus_overlap_every_gpu_but_not_the_cpu():
    assert gpus_overlap("all", "1")
    assert gpus_overlap("all", "all")
    assert gpus_overlap("0,1", "1,2")
    assert gpus_overlap("cpu", "cpu")
    assert not gpus_overlap("0", "1")
    assert not gpus_overlap("1", "10,11")
    assert not gpus_overlap("cpu", "all")
    assert not gpus_overlap("0", "cpu")


def test_the_queue_can_be_reordered(place: Place):
    queue = place.queue(opened=False)
    a, b, c, d = (queue.add(place.plan()) for _ in range(4))

    def order() -> list[int]:
        rows = queue.store.queued()
        assert [row.place for row in rows] == [1, 2, 3, 4]
        return [row.id for row in rows]

    for id, where, then in (
        (c, "up", [a, c, b, d]),
        (a, "down", [c, a, b, d]),
        (d, "first", [d, c, a, b]),
        (c, "last", [d, a, b, c]),
        (d, "up", [d, a, b, c]),
        (c, "down", [d, a, b, c]),
    ):
        queue.move(id, where)
        assert order() == then
    queue.remove(a)
    assert [(row.id, row.place) for row in queue.store.queued()] == [(d, 1), (b, 2), (c, 3)]


def test_a_run_taken_out_of_the_queue_leaves_no_folder_unless_it_contains_other_files(place: Place):
    queue = place.queue(opened=False)
    plans = [place.plan(), place.plan()]
    ids = [queue.add(plan) for plan in plans]
    (plans[1].folder.path / "notes.txt").write_text("mine")
    for id in ids:
        queue.remove(id)
    assert queue.store.rows() == []
    assert not plans[0].folder.path.exists()
    assert (plans[1].folder.path / "notes.txt").exists()
    with pytest.raises(ValueError, match="no longer in the list"):
        queue.remove(ids[0])


def test_a_run_removed_from_the_queue_can_be_restored_with_everything(place: Place):
    queue = place.queue(opened=False)
    a, b, c = (queue.add(place.plan()) for _ in range(3))
    launch = RunFolder(queue.store.row(b).folder).launch
    before = queue.store.row(b), launch.read_bytes()
    queue.remove(b)
    assert not launch.exists()
    queue.put_back(b)
    assert (queue.store.row(b), launch.read_bytes()) == before
    assert [(row.id, row.place) for row in queue.store.queued()] == [(a, 1), (b, 2), (c, 3)]
    with pytest.raises(ValueError, match="can no longer be restored"):
        queue.put_back(b)
    queue.open()
    wait_for(lambda: over(queue))
    assert queue.store.row(b).state == "finished"


def test_a_run_has_the_name_and_the_note_that_a_user_gave_it_also_in_a_list_of_an_earlier_version(place: Place):
    queue = place.queue(opened=False)
    id = queue.add(place.plan())
    with contextlib.closing(sqlite3.connect(queue.store.path)) as db:
        db.execute("ALTER TABLE runs DROP COLUMN note")
        db.commit()
    queue.describe(id, "the good one", "rank 8, no text encoder")
    assert (queue.store.row(id).name, queue.store.row(id).note) == ("the good one", "rank 8, no text encoder")
    assert queue.store.notice == ""


def test_a_queued_run_keeps_its_command_and_settings(place: Place):
    queue = place.queue(opened=False)
    plan = place.plan()
    id = queue.add(plan)
    queue.open()
    wait_for(lambda: over(queue))
    assert json.loads(plan.folder.launch.read_text())["argv"] == list(plan.argv)
    assert queue.store.row(id).state == "finished"
    assert plan.folder.config.read_text() == "seed = 1\n"


def test_while_the_queue_is_paused_nothing_starts(place: Place):
    queue = place.queue()
    queue.store.paused = True
    queue.add(place.plan())
    time.sleep(0.3)
    assert states(queue) == ["queued"]
    assert queue.store.paused
    assert place.queue(opened=False).store.paused  # whoever looks
    queue.store.paused = False
    wait_for(lambda: over(queue))


@pytest.mark.parametrize("after_failure", [True, False])
def test_after_a_failed_run_the_queue_continues_or_pauses_with_a_reason(place: Place, after_failure: bool):
    queue = place.queue()
    assert queue.store.after_failure
    queue.store.after_failure = after_failure
    failing = queue.add(place.plan(FAILING))
    queue.add(place.plan())
    wait_for(lambda: over(queue) or queue.store.paused)
    assert queue.store.row(failing).state == "failed"
    assert queue.store.row(failing).error == "the disk is full"
    assert states(queue)[1] == ("finished" if after_failure else "queued")
    assert ("run 1 failed" in queue.store.pause_reason) is not after_failure
    queue.store.paused = False
    assert queue.store.pause_reason == ""


def test_a_run_is_checked_when_its_turn_comes_and_fails_with_the_sentence(place: Place):
    def why_not(row: RunRow) -> str:
        if row.name == "run 2":
            raise KeyError("the check itself is broken")
        return "train_data_dir: folder not found: 'cats'" if row.name == "run 1" else ""

    queue = place.queue(opened=False, why_not=why_not)
    first, broken, last = (queue.add(place.plan()) for _ in range(3))
    queue.open()
    wait_for(lambda: over(queue))
    assert [queue.store.row(run).state for run in (first, broken, last)] == ["failed", "finished", "finished"]
    assert queue.store.row(first).error == "train_data_dir: folder not found: 'cats'"
    assert queue.watch(first).refresh().failure["error"] == queue.store.row(first).error
    assert not RunFolder(queue.store.row(first).folder).console.exists()


def test_a_run_that_a_person_ended_is_not_a_failure(place: Place):
    queue = place.queue()
    queue.store.after_failure = False
    id = queue.add(place.plan(LASTING))
    wait_for(lambda: queue.store.row(id).state in ("starting", "running") and queue.watch(id).alive)
    queue.end_now(id)
    wait_for(lambda: over(queue))
    assert queue.store.row(id).state == "stopped"
    assert queue.store.row(id).error.startswith("You stopped this run immediately")
    assert not queue.store.paused
    later = place.queue().watch(id).refresh()
    assert (later.state, later.ended) == ("stopped", queue.store.row(id).ended)


def test_a_running_run_receives_commands(place: Place):
    queue = place.queue()
    id = queue.add(place.plan(steps=3000))
    waiting = queue.add(place.plan(LASTING))
    wait_for(lambda: queue.watch(id).refresh().step > 2)
    queue.ask(id, "save")
    wait_for(lambda: [asked.handled_step for asked in queue.watch(id).refresh().commands if asked.handled_step])
    with pytest.raises(ValueError, match="has not started"):
        queue.ask(waiting, "save")
    with pytest.raises(ValueError, match="not in the queue"):
        queue.move(id, "up")
    with pytest.raises(ValueError, match="has not ended"):
        queue.forget(id)
    queue.remove(waiting)
    queue.ask(id, "stop")
    wait_for(lambda: over(queue))
    row = queue.store.row(id)
    assert (row.state, row.max_steps, 2 < row.step < 3000) == ("stopped", 3000, True)
    with pytest.raises(ValueError, match="not running"):
        queue.ask(id, "stop")
    queue.forget(id)
    assert queue.store.rows() == []
    assert row.folder.is_dir()
    with pytest.raises(ValueError, match="no longer in the list"):
        queue.watch(id)


def test_the_row_of_a_running_run_stays_up_to_date(place: Place):
    queue = place.queue()
    id = queue.add(place.plan(steps=3000))
    wait_for(lambda: queue.store.row(id).step > 2)
    assert queue.store.row(id).state == "running"
    version = queue.store.version
    wait_for(lambda: queue.store.version > version)


SECRETIVE = "import os, sys; print(os.environ['TOKEN'], os.environ['OTHER'])"


def test_secrets_reach_the_run_and_no_file(place: Place):
    queue = place.queue()
    plan = place.plan(SECRETIVE, secrets={"TOKEN": "tell nobody"}, environment={"OTHER": "x"})
    queue.add(plan)
    wait_for(lambda: over(queue))
    assert plan.folder.console_tail() == "tell nobody x"
    plan.folder.console.unlink()
    queue.close()
    for file in (file for file in place.folder.rglob("*") if file.is_file()):
        assert b"tell nobody" not in file.read_bytes()
    assert json.loads(plan.folder.launch.read_text())["secrets"] == ["TOKEN"]


QUEUES_A_SECRET = """
import sys
from pathlib import Path
from sd_scripts.runs.folder import RunFolder
from sd_scripts.runs.queue import PlannedRun, RunQueue
from sd_scripts.runs.store import RunStore
folder = RunFolder(Path(sys.argv[2]))
planned = PlannedRun(folder=folder, argv=["x"], secrets={"HF_TOKEN": "1"}, name="secret")
RunQueue(RunStore(Path(sys.argv[1]))).add(planned)
"""


def gui(program: str, *words: Any, **pipes: int) -> "subprocess.Popen[bytes]":
    """Another process that uses the store."""
    argv = [sys.executable, "-c", program, *map(str, words)]
    return subprocess.Popen(argv, env={**os.environ, "PYTHONPATH": str(REPO)}, **pipes)


def test_a_run_whose_secret_is_lost_with_the_gui_waits_and_lets_others_pass(place: Place):
    plan = place.plan()
    assert gui(QUEUES_A_SECRET, place.folder / "runs.sqlite", plan.folder.path).wait(PATIENCE) == 0
    queue = place.queue()
    later = queue.add(place.plan())
    wait_for(lambda: queue.store.row(later).state == "finished")
    (waiting,) = queue.store.queued()
    assert waiting.name == "secret"
    assert "waits for HF_TOKEN" in waiting.error


STARTS_THEM = """
import sys, time
from pathlib import Path
from sd_scripts.runs.queue import RunQueue
from sd_scripts.runs.store import RunStore
queue = RunQueue(RunStore(Path(sys.argv[1])), every=0.01)
queue.open()
while True:
    time.sleep(0.05)
"""
STARTS_THEM_AT_A_WORD = STARTS_THEM.replace("queue =", "print('ready', flush=True); sys.stdin.readline()\nqueue =")
COUNTS = """
import os, sys
with open(os.path.join(sys.argv[1], "starts"), "a") as file:
    file.write("1")
"""


def test_two_guis_on_one_store_start_every_run_once(place: Place):
    queue = place.queue(opened=False)
    plans = [place.plan(COUNTS, gpus=str(gpu % 3)) for gpu in range(12)]
    for plan in plans:
        queue.store.update(queue.add(plan), owner="a GUI that is gone")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    guis = [gui(STARTS_THEM_AT_A_WORD, queue.store.path, **pipes) for _ in range(3)]
    try:
        for each in guis:  # all of them have imported the queue
            assert each.stdout
            each.stdout.readline()
        for each in guis:
            assert each.stdin
            each.stdin.close()
        wait_for(lambda: over(queue))
    finally:
        for each in guis:
            each.kill()
            each.wait()
    assert [(plan.folder.path / "starts").read_text() for plan in plans] == ["1"] * 12
    assert len({row.owner for row in queue.store.rows()}) > 1


def test_a_run_is_started_by_the_gui_it_was_queued_in_while_that_is_alive(place: Place):
    queue = place.queue(opened=False)
    id, of_nobody = queue.add(place.plan(gpus="0")), queue.add(place.plan(gpus="1"))
    queue.store.update(of_nobody, owner="a GUI that is gone")
    other = gui(STARTS_THEM, queue.store.path)
    wait_for(lambda: queue.store.row(of_nobody).state == "finished")
    assert queue.store.row(id).state == "queued"
    other.kill()
    other.wait()
    queue.open()
    wait_for(lambda: over(queue))


def test_a_tool_at_work_keeps_its_gpus(place: Place):
    queue = place.queue()
    plan = place.plan(LASTING)
    tool = WatchedRun(plan.folder, process.start(plan.argv, {}, plan.folder))
    queue.reserve("0", tool)
    same, other = queue.add(place.plan(gpus="0,1")), queue.add(place.plan(gpus="2"))
    wait_for(lambda: queue.store.row(other).state == "finished")
    assert queue.store.row(same).state == "queued"
    tool.end_now()
    wait_for(lambda: over(queue))


def test_a_tool_waits_for_its_gpus_ahead_of_queued_runs(place: Place):
    queue = place.queue()
    first = queue.add(place.plan(LASTING, gpus="0"))
    wait_for(lambda: queue.store.living())
    plan, started = place.plan(LASTING), []

    def start() -> WatchedRun:
        started.append(WatchedRun(plan.folder, process.start(plan.argv, {}, plan.folder)))
        return started[0]

    queue.when_free("0", start)
    queue.when_free("0", lambda: None)  # not wanted any more
    later = queue.add(place.plan(gpus="0"))
    queue.end_now(first)
    wait_for(lambda: started)
    wait_for(lambda: queue.store.row(first).state in ENDED)
    assert queue.store.row(later).state == "queued"
    started[0].end_now()
    wait_for(lambda: over(queue))


def test_only_one_of_many_threads_gets_the_run(place: Place):
    store = RunStore(place.folder / "runs.sqlite")
    id = store.add(place.plan().folder).id
    got: list[bool] = []
    threads = [threading.Thread(target=lambda: got.append(store.claim(id))) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(got) == [False] * 15 + [True]


def test_a_killed_gui_leaves_its_runs_alone_and_the_next_one_takes_over(place: Place):
    before = place.queue(opened=False)
    running, waiting = before.add(place.plan(steps=3000)), before.add(place.plan())
    before.store.update(running, owner="")
    first = gui(STARTS_THEM, before.store.path)
    wait_for(lambda: before.store.row(running).step > 2)
    first.kill()  # SIGKILL
    first.wait()
    assert process.find(RunFolder(before.store.row(running).folder)) is not None
    queue = place.queue()
    assert queue.watch(running).alive
    step = queue.watch(running).refresh().step
    wait_for(lambda: queue.watch(running).refresh().step > step)
    assert queue.store.row(waiting).state == "queued"
    queue.ask(running, "stop")
    wait_for(lambda: over(queue))
    assert [queue.store.row(running).state, queue.store.row(waiting).state] == ["stopped", "finished"]


def test_a_run_that_died_with_the_gui_is_lost_with_its_last_console_lines(place: Place):
    before = place.queue(opened=False)
    id = before.add(place.plan("import time; print('last words', flush=True); time.sleep(600)"))
    before.store.update(id, owner="")
    first = gui(STARTS_THEM, before.store.path)
    row = wait_for(lambda: (row := before.store.row(id)).process and row)
    wait_for(lambda: RunFolder(row.folder).console_tail())
    first.kill()
    first.wait()
    os.killpg(int(row.process.split()[0]), signal.SIGKILL)
    queue = place.queue()
    wait_for(lambda: queue.store.row(id).state == "lost")
    assert "disappeared" in queue.store.row(id).error
    assert queue.watch(id).refresh().failure["details"] == "last words"


def test_a_run_that_was_claimed_by_a_gui_that_died_before_it_started_it_waits_again(place: Place):
    queue = place.queue(opened=False)
    id = queue.add(place.plan())
    assert queue.store.claim(id, "12345678 of yesterday")
    queue.open()
    wait_for(lambda: over(queue))
    assert queue.store.row(id).state == "finished"


def test_how_a_run_ended_is_known_to_a_later_gui_too(place: Place):
    queue = place.queue()
    missing = queue.add(PlannedRun(folder=place.plan().folder, argv=[str(place.folder / "no such program")]))
    dead = queue.add(place.plan("raise SystemExit(7)"))
    wait_for(lambda: over(queue))
    later = place.queue()
    assert later.watch(missing).refresh().state == "failed"
    assert "cannot be started" in later.watch(missing).refresh().failure["error"]
    assert later.watch(dead).refresh().state == "lost"
    assert "exit code 7" in later.watch(dead).refresh().failure["error"]


LEADER = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", {child!r}, *sys.argv[1:]])
time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="orphans are found by their environment")
@pytest.mark.parametrize("after_a_restart", [False, True])
def test_when_the_leader_dies_the_trainer_saves_and_no_process_is_left(place: Place, after_a_restart: bool):
    queue = place.queue()
    id = queue.add(place.plan(LEADER.format(child=TELLING), steps=6000))
    wait_for(lambda: queue.watch(id).refresh().step > 2)
    leader = int(queue.store.row(id).process.split()[0])
    if after_a_restart:
        queue.close()
    os.kill(leader, signal.SIGKILL)
    if after_a_restart:
        queue = place.queue()
    wait_for(lambda: over(queue))
    assert queue.store.row(id).state == "stopped"
    assert "main process of the run is gone" in "".join(queue.watch(id).refresh().warnings)
    assert not process.group_members(leader, RunFolder(queue.store.row(id).folder))


@pytest.mark.skipif(sys.platform != "linux", reason="orphans are found by their environment")
def test_orphans_that_do_not_listen_are_killed(place: Place):
    deaf = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
    )
    queue = place.queue()
    id = queue.add(place.plan(LEADER.format(child=deaf)))
    folder = RunFolder(queue.store.row(id).folder)
    wait_for(lambda: folder.console_tail() == "up")
    leader = int(wait_for(lambda: queue.store.row(id).process).split()[0])
    os.kill(leader, signal.SIGKILL)
    wait_for(lambda: queue.store.row(id).state == "lost")
    assert not process.group_members(leader, folder)


def test_a_run_whose_folder_is_deleted_under_it_can_still_be_ended_by_the_next_gui_too(place: Place):
    queue = place.queue()
    id = queue.add(place.plan(LASTING))
    row = wait_for(lambda: (row := queue.store.row(id)).process and row)
    shutil.rmtree(row.folder)
    wait_for(lambda: "was deleted" in "".join(queue.watch(id).refresh().warnings))
    assert queue.watch(id).alive
    later = place.queue()
    assert later.run_on("all")
    later.end_now(id)
    wait_for(lambda: over(later))
    assert later.store.row(id).state == "stopped"


def test_a_queued_run_whose_folder_was_deleted_fails_with_a_sentence(place: Place):
    queue = place.queue(opened=False)
    id = queue.add(place.plan())
    shutil.rmtree(queue.store.row(id).folder)
    queue.open()
    wait_for(lambda: over(queue))
    assert "deleted or damaged while it was queued" in queue.store.row(id).error


def test_a_command_that_cannot_be_written_is_one_sentence(place: Place):
    queue = place.queue()
    id = queue.add(place.plan(LASTING))
    row = wait_for(lambda: (row := queue.store.row(id)).process and row)
    (row.folder / "commands.jsonl").mkdir()  # as good as a full disk: it cannot be written
    with pytest.raises(ValueError, match="the command cannot be written"):
        queue.ask(id, "stop")
    with pytest.raises(ValueError, match="the command cannot be written"):
        queue.ask(id, "sample")
    queue.end_now(id)
    wait_for(lambda: over(queue))


FULL_DISK = """
import resource, signal, sys, time
from pathlib import Path
from sd_scripts.runs.folder import RunFolder
from sd_scripts.runs.queue import PlannedRun, RunQueue
from sd_scripts.runs.store import RunStore
store, folder, trainer = sys.argv[1:]
queue = RunQueue(RunStore(Path(store)), every=0.05)
queue.open()
id = queue.add(PlannedRun(folder=RunFolder(Path(folder)), argv=[sys.executable, "-c", trainer, folder]))
while queue.store.row(id).step < 2:
    time.sleep(0.02)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
limits = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))  # no file can be written
for wish in (lambda: queue.ask(id, "save"), lambda: setattr(queue.store, "paused", True)):
    try:
        wish()
    except ValueError as error:
        print(error)
step = queue.watch(id).refresh().step
time.sleep(0.5)
print(queue.store.rows()[0].state, queue.watch(id).alive, queue.watch(id).refresh().step > step)
resource.setrlimit(resource.RLIMIT_FSIZE, limits)
queue.ask(id, "stop")
while queue.store.row(id).state != "stopped":
    time.sleep(0.02)
print("on it went")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX limits")
def test_a_full_disk_is_reported_and_the_queue_continues_when_there_is_room_again(place: Place):
    folder = place.plan().folder.path
    argv = [sys.executable, "-c", FULL_DISK, str(place.folder / "runs.sqlite"), str(folder), TELLING]
    environment = {**os.environ, "PYTHONPATH": str(REPO)}
    told = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60)
    save, pause, *rest = told.stdout.splitlines()
    assert save.startswith("save: the command cannot be written"), told.stderr
    assert "the list of runs cannot be used" in pause
    assert rest == ["running True True", "on it went"]


def test_one_run_that_cannot_be_followed_does_not_block_the_others(place: Place):
    queue = place.queue()
    bad = queue.add(place.plan(LASTING, gpus="0"))
    row = wait_for(lambda: (row := queue.store.row(bad)).process and row)
    (row.folder / "events.jsonl").mkdir()
    good = queue.add(place.plan(gpus="1"))
    wait_for(lambda: queue.store.row(good).state == "finished")
    assert "cannot be read" in queue.watch(bad).refresh().warnings[0]
    assert queue.store.row(bad).state in ("starting", "running")


def test_the_thread_outlives_a_store_that_is_gone_for_a_while(place: Place):
    queue = place.queue()
    path = queue.store.path
    os.rename(path, f"{path}.away")
    path.mkdir()
    with pytest.raises(ValueError, match="the list of runs cannot be"):
        queue.store.rows()
    time.sleep(0.2)
    path.rmdir()
    os.rename(f"{path}.away", path)
    queue.add(place.plan())
    wait_for(lambda: over(queue))


def fill(store: RunStore, count: int, first: int = 0) -> None:
    """Many runs at the same time, the first 20 of which wait."""
    rows = [(f"{store.path}/{i}", "finished" if i >= 20 else "queued", i) for i in range(first, first + count)]
    with contextlib.closing(sqlite3.connect(store.path)) as db, db:
        db.executemany("INSERT INTO runs (folder, state, place, created) VALUES (?, ?, ?, 1)", rows)


@pytest.mark.parametrize("kind", ["text", "torn", "foreign"])
def test_a_list_that_is_damaged_or_foreign_is_moved_aside_intact_with_a_notice(place: Place, kind: str):
    path = place.folder / "runs.sqlite"
    if kind == "text":
        path.write_text("no list at all\n" * 1000)
    elif kind == "foreign":
        db = sqlite3.connect(path)
        db.execute("CREATE TABLE recipes (cake)")
        db.close()
    else:
        store = RunStore(path)
        fill(store, 500)
        store.close()
        with path.open("r+b") as file:
            file.seek(20 * 4096)
            file.write(b"\x55" * 8192)
    was = path.read_bytes()
    store = RunStore(path)
    kept = store.rows(1000)
    (aside,) = path.parent.glob("runs-damaged-*.sqlite")
    assert aside.read_bytes() == was
    assert str(aside) in store.notice
    assert (len(kept) > 0) is (kind == "torn")
    store.add(place.plan().folder)
    assert len(RunStore(path).rows(1000)) == len(kept) + 1
    assert RunStore(path).notice == ""


def test_a_damaged_list_does_not_make_a_running_run_be_started_twice(place: Place):
    queue = place.queue()
    id = queue.add(place.plan(steps=3000))
    wait_for(lambda: queue.store.row(id).step > 2)
    queue.add(place.plan())
    time.sleep(0.3)  # the queue has looked at it
    for end in ("-wal", "-shm"):
        Path(f"{queue.store.path}{end}").unlink(missing_ok=True)
    queue.store.path.write_bytes(b"\x00" * 100_000)
    wait_for(lambda: queue.store.notice and queue.store.living())
    assert [row.id for row in queue.store.living()] == [id]
    assert queue.watch(id).alive
    wait_for(lambda: states(queue) == ["running", "queued"])
    wait_for(lambda: queue.store.paused)
    assert "was moved to" in queue.store.pause_reason


def test_finished_runs_of_a_lost_list_are_found_below_a_folder_once_each(tmp_path: Path):
    def make(folder: str, *kinds: str) -> Path:
        path = tmp_path / folder
        path.mkdir(parents=True)
        (path / "launch.json").write_text(json.dumps({"name": path.name, "tab": "lora", "created": 1.0}))
        log = RunFolder(path).log()
        for kind in kinds:
            log(kind, error="full", max_steps=5, step=5)
        log.close()
        return path

    old = make("out/cats/runs/old", "started", "finished")
    failed = make("out/runs/failed", "started", "failed")
    make("out/runs/waiting")
    make("out/cats/deeper/runs/too-deep", "started", "finished")
    (tmp_path / "out" / "runs" / "none").mkdir()
    store = RunStore(tmp_path / "state" / "runs.sqlite")
    store.add(failed, state="failed")
    assert store.find(tmp_path / "out") == 1
    assert store.find(tmp_path / "out") == 0
    assert [(row.folder, row.state, row.name, row.max_steps) for row in store.rows()][:1] == [
        (old, "finished", "old", 5)
    ]
    assert {row.folder for row in store.rows()} == {old, failed}
    assert str(old) in store.path.with_suffix(".folders.jsonl").read_text()


ENDINGS = ("", "-wal", "-shm")


@pytest.mark.parametrize("gone", ["list", "list and index"])
def test_a_list_deleted_under_a_running_gui_is_restored_and_nothing_starts_next_to_a_running_run(
    place: Place, gone: str
):
    queue = place.queue()
    old = queue.add(place.plan())
    wait_for(lambda: over(queue))
    forgotten = queue.add(place.plan())
    wait_for(lambda: over(queue))
    queue.forget(forgotten)
    on = queue.add(place.plan(steps=3000))
    wait_for(lambda: queue.store.row(on).step > 2)
    first, second = queue.add(place.plan()), queue.add(place.plan(gpus="0"))
    queue.move(second, "up")
    wait_for(lambda: [row.id for row in queue._alive.values()] == [on, second, first])
    before = queue.store.version
    for ending in ENDINGS:
        Path(f"{queue.store.path}{ending}").unlink(missing_ok=True)
    if gone == "list and index":
        queue.store.path.with_suffix(".folders.jsonl").unlink()
    wait_for(lambda: queue.store.paused and [row.id for row in queue.store.queued()] == [second, first])
    ended = [] if gone == "list and index" else [old]
    assert [row.id for row in reversed(queue.store.rows())] == [*ended, on, first, second]
    assert [row.id for row in queue.store.living()] == [on]
    assert queue.watch(on).alive
    assert "was deleted" in queue.store.pause_reason
    assert queue.store.version > before
    assert [queue.store.row(second).gpus, queue.store.row(second).tab] == ["0", "lora"]
    if ended:
        found = queue.store.row(old)
        assert (found.state, found.name, found.step, found.max_steps) == ("finished", "run 1", 5, 5)
    queue.store.paused = False
    time.sleep(0.3)
    assert [row.id for row in queue.store.living()] == [on]  # its card is not free
    queue.end_now(on)
    wait_for(lambda: over(queue))
    assert queue.store.row(first).state == queue.store.row(second).state == "finished"


def delete_list(store: RunStore) -> None:
    for ending in ENDINGS:
        Path(f"{store.path}{ending}").unlink(missing_ok=True)


def told_by_folders(store: RunStore) -> list[dict[str, Any]]:
    """The rows, oldest first, without what only this moment knows: times, and the owner's and the run's processes."""
    passing = ("created", "started", "ended", "owner", "process")
    return [{k: v for k, v in vars(row).items() if k not in passing} for row in reversed(store.rows())]


def test_a_deleted_list_is_rebuilt_exactly_whatever_ended_its_runs(place: Place):
    queue = place.queue(why_not=lambda row: "vae: the file is gone" if row.name == "unfit" else "")
    plans = {
        "finished": place.plan(gpus="0"),
        "failed": place.plan(FAILING, gpus="1"),
        "stopped": place.plan(LASTING, gpus="2"),
        "lost": place.plan("raise SystemExit(7)", gpus="3"),
        "unfit": place.plan(gpus="4", name="unfit"),
        "unstartable": place.plan(gpus="5"),
    }
    plans["unstartable"] = replace(plans["unstartable"], argv=["/no/such/program"])
    ids = {name: queue.add(plan) for name, plan in plans.items()}
    wait_for(lambda: queue.store.row(ids["stopped"]).state == "running" or queue.watch(ids["stopped"]).alive)
    queue.end_now(ids["stopped"])
    wait_for(lambda: over(queue))
    ends = [(row.state, row.error) for row in reversed(queue.store.rows())]
    assert [state for state, _ in ends] == ["finished", "failed", "stopped", "lost", "failed", "failed"]
    assert all(error for state, error in ends if state != "finished")
    queue.store.pause(True, "lunch")
    queue.store.after_failure = False
    first, second, third = (queue.add(place.plan()) for _ in range(3))
    queue.move(third, "first")
    queue.describe(ids["lost"], "my cat", "a good one")
    queue.close()
    before = told_by_folders(queue.store)
    delete_list(queue.store)
    rebuilt = RunStore(queue.store.path)
    assert told_by_folders(rebuilt) == before
    assert [row.id for row in rebuilt.queued()] == [third, first, second]
    assert (rebuilt.paused, rebuilt.pause_reason, rebuilt.after_failure) == (True, "lunch", False)
    lost = queue.watch(ids["lost"]).refresh()
    assert (lost.state, lost.failure["error"]) == ("lost", rebuilt.row(ids["lost"]).error)


def test_a_run_that_ended_unobserved_is_rebuilt_correctly(place: Place):
    queue = place.queue()
    id = queue.add(place.plan(LASTING))
    wait_for(lambda: queue.watch(id).alive)
    queue.close()  # before it is terminated
    watched = queue.watch(id)
    watched.end_now()
    wait_for(lambda: watched.refresh().over)
    delete_list(queue.store)
    rebuilt = RunStore(queue.store.path).row(id)
    assert (rebuilt.state, rebuilt.error) == ("stopped", watched.refresh().failure["error"])


@pytest.mark.parametrize(
    "line",
    [
        '{"queue": [1',
        '{"queue": {"1": 2}, "paused": [], "pause_reason": 5}',
        '{"queue": [true, "1", null, 1e400, -3, 99999999999999999999999]}',
        '{"after_failure": 1000000000000000000000000000000, "paused": NaN}',
        '{"run": 1, "name": "\\ud800", "note": "\\udfff", "pause_reason": "\\ud800"}',
        "[[[[",
    ],
)
def test_an_odd_line_of_the_index_harms_no_other_line(line: str, place: Place):
    queue = place.queue(opened=False)
    first, second = queue.add(place.plan()), queue.add(place.plan())
    queue.move(second, "first")
    index = queue.store.path.with_suffix(".folders.jsonl")
    index.write_text(f"{index.read_text()}{line}\n")
    queue.close()
    delete_list(queue.store)
    rebuilt = RunStore(queue.store.path)
    assert {row.id for row in rebuilt.queued()} == {first, second}
    assert rebuilt.paused
    assert rebuilt.after_failure


def test_an_end_that_cannot_be_written_into_the_folder_is_still_in_the_list(place: Place, caplog):
    queue = place.queue(why_not=lambda row: "vae: the file is gone")
    plan = place.plan()
    (plan.folder.path / "events.jsonl").mkdir()  # nobody can append to it
    id = queue.add(plan)
    wait_for(lambda: over(queue))
    assert (queue.store.row(id).state, queue.store.row(id).error) == ("failed", "vae: the file is gone")
    wait_for(lambda: "the end of the run cannot be written" in caplog.text)  # logged after the list is written


def _find_it_deleted_at_once(path: Path, threads: int = 8) -> int:
    """In a process of its own, which a connection that is closed twice at a time would crash."""
    store, together, faults = RunStore(path), threading.Barrier(threads, timeout=60), []

    def look() -> None:
        try:
            for _ in range(20):
                if together.wait() == 0:
                    for ending in ENDINGS:
                        Path(f"{path}{ending}").unlink(missing_ok=True)
                together.wait()
                store.living()
        except Exception as error:
            faults.append(error)
            together.abort()

    looking = [threading.Thread(target=look) for _ in range(threads)]
    for each in looking:
        each.start()
    for each in looking:
        each.join()
    return len(faults)


@pytest.mark.skipif(os.name != "posix", reason="Windows does not delete a file that is open")
def test_a_deleted_list_is_restored_once_however_many_threads_notice(tmp_path: Path):
    from tests.support.suite import fresh

    codes, told = fresh.together(1, tmp_path, _find_it_deleted_at_once, tmp_path / "state" / "runs.sqlite")
    assert codes == [0], told


def test_a_list_deleted_between_two_guis_is_rebuilt_from_the_folders(place: Place):
    queue = place.queue()
    over_, on = queue.add(place.plan()), queue.add(place.plan(steps=3000))
    wait_for(lambda: queue.store.row(on).step > 2)
    waits = queue.add(place.plan())
    queue.describe(over_, "my cat", "a good one")
    queue.close()
    delete_list(queue.store)
    later = place.queue()
    assert [row.id for row in reversed(later.store.rows())] == [over_, on, waits]
    assert states(later) == ["finished", "running", "queued"]
    assert (later.store.row(over_).name, later.store.row(over_).note) == ("my cat", "a good one")
    assert later.watch(on).alive
    assert later.store.paused
    later.end_now(on)
    wait_for(lambda: later.store.row(on).state == "stopped")
    new = later.add(place.plan())
    assert new > waits


def test_a_list_of_a_newer_program_is_left_unchanged(tmp_path: Path):
    path = tmp_path / "runs.sqlite"
    RunStore(path).close()
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version = 2")
    was = path.read_bytes()
    with pytest.raises(ValueError, match="a newer version of this program wrote the list of runs"):
        RunStore(path)
    assert path.read_bytes() == was
    assert not list(path.parent.glob("*damaged*"))


@pytest.mark.skipif(os.name != "posix", reason="modes of POSIX")
def test_the_list_is_private(tmp_path: Path):
    place = Place(tmp_path / "state")
    queue = place.queue(opened=False)
    queue.add(place.plan())
    files = [file for file in (tmp_path / "state").iterdir() if file.is_file()]
    assert len(files) >= 2
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700
    place.close()


def test_a_thousand_runs_stay_quick(place: Place):
    queue = place.queue(opened=False)
    fill(queue.store, 200)

    def looked_at() -> float:
        began = time.process_time()
        for _ in range(20):
            assert len(queue.store.rows()) == 200
            assert queue.store.version
        return time.process_time() - began

    few = looked_at()
    fill(queue.store, 800, first=200)
    assert looked_at() < 3 * few  # polling takes time in proportion to its result
    assert len(queue.store.rows(limit=5000)) == 1000


def test_machines_that_share_a_home_have_a_list_each():
    mounts = "/dev/sda1 / ext4 rw 0 0\nserver:/home /home nfs4 rw 0 0\n/dev/sdb1 /home/me/my\\040disk xfs rw 0 0\n"
    assert file_system(Path("/home/me/.local/state"), mounts) == "nfs4"
    assert file_system(Path("/home/me/my disk/state"), mounts) == "xfs"
    assert file_system(Path("/root/.local/state"), mounts) == "ext4"
    assert file_system(Path("/root"), "") == ""
    assert "nfs4" in NETWORK_FILE_SYSTEMS


def test_the_list_is_in_the_state_folder_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LOCALAPPDATA" if sys.platform == "win32" else "XDG_STATE_HOME", str(tmp_path))
    assert RunStore().path.parent == tmp_path / "sd-scripts-studio"


def test_every_change_gives_the_list_a_new_version(place: Place):
    store = RunStore(place.folder / "runs.sqlite")
    versions = [store.version]
    id = store.add(place.plan().folder).id
    for change in (
        lambda: None,
        lambda: store.update(id, step=3),
        lambda: store.pause(True, "why"),
        lambda: setattr(store, "after_failure", False),
        lambda: store.forget(id),
    ):
        change()
        versions.append(store.version)
    assert versions == sorted(set(versions))
    assert store.version == versions[-1]
