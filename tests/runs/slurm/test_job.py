"""Runs as Slurm jobs, with programs in place of Slurm's that answer what a cluster would."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sd_scripts.runs.folder import RunFolder, new_run_folder
from sd_scripts.runs.queue import PlannedRun, RunQueue
from sd_scripts.runs.slurm import job, squeue
from sd_scripts.runs.slurm.job import SlurmJob, find, submit
from sd_scripts.runs.slurm.squeue import REASONS, Squeue
from sd_scripts.runs.store import SLURM, RunStore, gpus_overlap
from sd_scripts.runs.watched import WatchedRun, find_run
from tests.support.runs import wait_for

pytestmark = [pytest.mark.run, pytest.mark.skipif(sys.platform == "win32", reason="Slurm does not run on Windows")]

SBATCH = """
env >> "$DIR/environment"; printf '%s\\n' "$@" >> "$DIR/submitted"
[ -f "$DIR/refuses" ] && { echo "sbatch: error: first line" >&2; cat "$DIR/refuses" >&2; exit 1; }
echo "12;cluster"
"""
SQUEUE = '[ -f "$DIR/fails" ] && { echo "slurm_load_jobs error: Unable to contact" >&2; exit 1; }; cat "$DIR/jobs"'
SCANCEL = 'echo "$@" >> "$DIR/cancelled"; : > "$DIR/jobs"'


class Cluster:
    """What Slurm's programs answer, and what they were asked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name, text in {"sbatch": SBATCH, "squeue": SQUEUE, "scancel": SCANCEL}.items():
            program = folder / name
            program.write_text(f"#!/bin/sh\nDIR='{folder}'\n{text}\n")
            program.chmod(0o755)
        self.has()

    def has(self, *jobs: str) -> None:
        """Each job is id|state|reason|nodes|name."""
        (self.folder / "jobs").write_text("".join(f"{line}\n" for line in jobs))

    def told(self, name: str) -> list[str]:
        file = self.folder / name
        return file.read_text().splitlines() if file.exists() else []


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(squeue, "EVERY", 0.0)
    monkeypatch.setattr(job, "SQUEUE", Squeue())
    monkeypatch.setattr(job, "ARRIVE_WITHIN", 0.0)
    return Cluster(tmp_path / "bin")


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return new_run_folder(tmp_path / "runs", "cat")


def test_a_job_is_submitted_and_found_again(cluster: Cluster, folder: RunFolder) -> None:
    made = submit(["sbatch", "--parsable", "script"], folder)
    assert (made.id, made.key) == ("12", "slurm 12")
    assert cluster.told("submitted") == ["--parsable", "script"]
    for found in (find_run(folder), find_run(RunFolder(folder.path / "gone"), made.key)):
        assert isinstance(found, SlurmJob)
        assert found.id == "12"


def test_a_job_gets_neither_secrets_nor_the_variables_of_an_outer_job(
    cluster: Cluster, folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden = ("HF_TOKEN", "WANDB_API_KEY", "SLURM_JOB_ID", "SLURM_MEM_PER_CPU", "CUDA_VISIBLE_DEVICES")
    for name in (*hidden, "SLURM_CONF", "SBATCH_ACCOUNT"):
        monkeypatch.setenv(name, "abcdefghijkl")
    submit(["sbatch"], folder)
    names = {line.partition("=")[0] for line in cluster.told("environment")}
    assert names.isdisjoint(hidden)
    assert {"SLURM_CONF", "SBATCH_ACCOUNT", "PATH"} <= names


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ("Invalid partition name specified", "slurm_partition: sbatch: first line; Invalid partition name specified"),
        ("Invalid generic resource (gres)", "slurm_gpus: sbatch: first line; Invalid generic resource"),
        ("Invalid account", "where: sbatch: first line; Invalid account"),
    ],
)
def test_an_error_of_sbatch_is_one_sentence(cluster: Cluster, folder: RunFolder, said: str, sentence: str) -> None:
    (cluster.folder / "refuses").write_text(f"sbatch: error: {said}\n")
    with pytest.raises(ValueError, match=f"^{sentence}") as raised:
        submit(["sbatch"], folder)
    assert "\n" not in str(raised.value)
    assert find_run(folder) is None


def test_an_answer_without_a_job_number_is_an_error(cluster: Cluster, folder: RunFolder) -> None:
    (cluster.folder / "sbatch").write_text("#!/bin/sh\necho Welcome to the cluster\n")
    with pytest.raises(ValueError, match="where: sbatch printed no job number but 'Welcome to the cluster'"):
        submit(["sbatch"], folder)


def test_a_missing_sbatch_is_one_sentence(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(folder.path))
    with pytest.raises(ValueError, match=r"^where: sbatch was not found on the PATH$"):
        submit(["sbatch"], folder)


def watched(folder: RunFolder) -> WatchedRun:
    return WatchedRun(folder, SlurmJob(folder, "12"))


def refreshed(run: WatchedRun, what: Any) -> Any:
    return wait_for(lambda: (setattr(run, "_read", 0.0), what(run.refresh()))[1])


def test_a_pending_job_waits_with_slurms_reason_and_then_runs(cluster: Cluster, folder: RunFolder) -> None:
    cluster.has("12|PENDING|Resources||cat")
    run = watched(folder)
    assert refreshed(run, lambda state: state.waits)
    assert run.run_state.scheduler == f"Slurm job 12 is pending: {REASONS['Resources']}"
    cluster.has("12|PENDING|SomethingNew||cat")
    assert refreshed(run, lambda state: state.scheduler.endswith("SomethingNew"))
    cluster.has("12|RUNNING|None|node07|cat")
    assert refreshed(run, lambda state: not state.waits)
    assert run.run_state.scheduler == "Slurm job 12 on node07"


def test_a_requeued_job_has_not_ended_though_it_stopped_and_saved(cluster: Cluster, folder: RunFolder) -> None:
    log = folder.log()
    log("started", max_steps=9, step=0)
    log("stopped", step=4)
    cluster.has("12|COMPLETING|None|node07|cat")
    run = watched(folder)
    assert refreshed(run, lambda state: state.state == "stopped")
    cluster.has("12|PENDING|BeginTime||cat")
    assert refreshed(run, lambda state: state.state == "starting")
    cluster.has("12|RUNNING|None|node08|cat")
    log("started", max_steps=9, step=4)
    assert refreshed(run, lambda state: state.state == "running")
    assert run.run_state.step == 4
    log("finished", step=9)
    log.close()
    cluster.has("12|COMPLETED|None|node08|cat")
    assert refreshed(run, lambda state: state.state == "finished")
    wait_for(lambda: not run.alive)


def test_a_job_cancelled_after_it_was_requeued_ended_as_it_had_before(cluster: Cluster, folder: RunFolder) -> None:
    log = folder.log()
    log("started", max_steps=9, step=0)
    log("failed", error="the GPU is lost", time=5.0)
    log.close()
    cluster.has("12|PENDING|BeginTime||cat")
    run = watched(folder)
    assert refreshed(run, lambda state: state.state == "starting")
    cluster.has("12|CANCELLED|None||cat")
    assert refreshed(run, lambda state: state.over)
    assert (run.run_state.state, run.run_state.ended) == ("failed", 5.0)
    assert run.run_state.failure["error"] == "the GPU is lost"


def test_a_slurm_that_does_not_answer_ends_no_run(cluster: Cluster, folder: RunFolder) -> None:
    cluster.has("12|RUNNING|None|node07|cat")
    run = watched(folder)
    assert refreshed(run, lambda state: "node07" in state.scheduler)
    (cluster.folder / "fails").touch()
    assert refreshed(run, lambda state: "does not answer (squeue: slurm_load_jobs" in state.scheduler)
    assert run.alive
    cluster.has()
    (cluster.folder / "fails").unlink()
    assert refreshed(run, lambda state: state.state == "lost")


@pytest.mark.parametrize(
    ("row", "state", "words"),
    [
        ("12|CANCELLED|None||cat", "stopped", "was cancelled"),
        ("12|TIMEOUT|TimeLimit|n1|cat", "lost", "raise slurm_time"),
        ("12|OUT_OF_MEMORY|OutOfMemory|n1|cat", "lost", "--mem"),
        ("12|NODE_FAIL|NodeDown|n1|cat", "lost", "a node of Slurm job 12 failed"),
        ("12|PREEMPTED|None|n1|cat", "lost", "was preempted"),
        ("12|FAILED|JobLaunchFailure|n1|cat", "failed", "output_dir on storage that node n1 shares"),
        ("12|BOOT_FAIL|NodeDown|n1|cat", "lost", "Slurm did not start it again"),
        ("13|RUNNING|None|n1|dog", "lost", "no longer knows job 12"),
    ],
)
def test_an_end_that_the_run_did_not_report_is_explained_by_slurm(
    cluster: Cluster, folder: RunFolder, row: str, state: str, words: str
) -> None:
    cluster.has(row)
    run = watched(folder)
    assert refreshed(run, lambda now: now.over)
    assert run.run_state.state == state
    assert words in run.run_state.failure["error"]


def test_events_may_arrive_after_the_end_of_the_job(
    cluster: Cluster, folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "ARRIVE_WITHIN", 1000.0)
    cluster.has("12|COMPLETED|None|n1|cat")
    run = watched(folder)
    wait_for(lambda: not run.alive)
    assert not run.refresh().over
    log = folder.log()
    log("finished", step=3)
    log.close()
    assert refreshed(run, lambda now: now.over)
    assert run.run_state.state == "finished"


def test_the_last_lines_of_a_job_that_failed_early_are_shown(cluster: Cluster, folder: RunFolder) -> None:
    folder.console.write_text("slurmstepd: error: execve(): python: No such file or directory\n")
    cluster.has("12|FAILED|NonZeroExitCode|n1|cat")
    run = watched(folder)
    assert refreshed(run, lambda now: now.state == "failed")
    assert "No such file" in run.run_state.failure["details"]


def test_stop_cancels_a_job_that_waits(cluster: Cluster, folder: RunFolder) -> None:
    cluster.has("12|PENDING|Priority||cat")
    run = watched(folder)
    assert refreshed(run, lambda state: state.waits)
    run.stop()
    assert cluster.told("cancelled") == ["12"]
    assert refreshed(run, lambda state: state.state == "stopped")


def test_jobs_wait_for_no_gpu_of_this_machine() -> None:
    assert not any(gpus_overlap(SLURM, other) for other in (SLURM, "all", "0,1", "cpu"))


def planned(place: Path) -> PlannedRun:
    return PlannedRun(folder=new_run_folder(place / "runs", "cat"), argv=["sbatch", "script"], name="cat", gpus=SLURM)


def test_the_queue_submits_its_runs_without_waiting_for_each_other(cluster: Cluster, tmp_path: Path) -> None:
    queue = RunQueue(RunStore(tmp_path / "runs.sqlite"), every=0.05)
    cluster.has("12|RUNNING|None|n1|cat")
    ids = [queue.add(planned(tmp_path)) for _ in range(3)]
    queue.open()
    try:
        wait_for(lambda: [row.process for row in queue.store.living()] == ["slurm 12"] * 3)
        cluster.has()
        wait_for(lambda: not queue.store.living())
    finally:
        queue.close()
    rows = [queue.store.row(id) for id in ids]
    assert [row.state for row in rows if row] == ["lost"] * 3


def test_a_job_whose_gui_was_killed_right_after_sbatch_is_not_submitted_twice(cluster: Cluster, tmp_path: Path) -> None:
    plan = planned(tmp_path)
    store = RunStore(tmp_path / "runs.sqlite")
    plan.folder.launch.write_text(json.dumps({"argv": list(plan.argv), "environment": {}}))
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    row = store.add(plan.folder, gpus=SLURM, owner=f"{int(gone.stdout)} earlier")
    assert store.claim(row.id, row.owner)
    cluster.has(f"12|PENDING|Resources||{plan.folder.path.name}")
    queue = RunQueue(store, every=0.05)
    queue.open()
    try:
        wait_for(lambda: find(plan.folder))
        assert queue.store.queued() == []
        assert cluster.told("submitted") == []
    finally:
        queue.close()
