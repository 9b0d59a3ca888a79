"""A training on a real Slurm: submitted, requeued, and cancelled."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from sd_scripts.runs.folder import RunFolder
from sd_scripts.runs.slurm.job import SlurmJob
from sd_scripts.runs.slurm.squeue import run_slurm
from sd_scripts.runs.watched import WatchedRun, find_run
from sd_scripts.training.saving.train_state import damage, read_saved
from tests.support.runs import wait_for
from tests.support.suite.fresh import found_by_processes
from tests.support.training import train


def has_idle_nodes() -> bool:
    try:
        return bool(shutil.which("sbatch")) and "idle" in run_slurm(["sinfo", "--noheader", "--format=%T"], 5.0)
    except ValueError:
        return False


pytestmark = [
    pytest.mark.deep,
    pytest.mark.skipif(not has_idle_nodes(), reason="no Slurm with an idle node, see SLURM_CONF"),
]


def test_a_requeued_job_resumes_and_a_cancelled_one_saves_its_state(
    any_miniature: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", found_by_processes()["PYTHONPATH"])
    submitted = train(
        any_miniature, tmp_path / "out", where="slurm", slurm_gpus="0", max_train_steps=100_000, save_state=True
    )
    assert submitted.status == 0
    folder = RunFolder(tmp_path / "out" / "run")
    job = find_run(folder)
    assert isinstance(job, SlurmJob)
    watched = WatchedRun(folder, job)

    def events(kind: str) -> list[dict[str, Any]]:
        return [event for event in folder.events() if event["kind"] == kind]

    try:
        wait_for(lambda: events("step") or watched.refresh().over)
        subprocess.run(["scontrol", "requeue", job.id], check=True)
        wait_for(lambda: events("stopped") and watched.refresh().waits)
        assert watched.run_state.state == "starting"
        subprocess.run(["scontrol", "update", f"JobId={job.id}", "StartTime=now"], check=True)
        wait_for(lambda: len(events("started")) == 2)
        wait_for(lambda: events("step")[-1]["step"] > events("stopped")[0]["step"])
        assert events("started")[1]["resumed_from"] == events("saved")[-1]["path"]
    finally:
        job.terminate()
    wait_for(lambda: not job.alive)
    assert watched.refresh().state == "stopped"
    last = events("saved")[-1]
    assert (last["step"], damage(read_saved(last["path"]))) == (events("stopped")[-1]["step"], "")
