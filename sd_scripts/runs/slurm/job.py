"""A run as a Slurm job: submitted with sbatch, followed with squeue, and ended with scancel."""

import contextlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from sd_scripts.formats.atomic_files import write_whole
from sd_scripts.formats.secrets import HANDED
from sd_scripts.formats.words import shortened
from sd_scripts.runs.folder import RunFolder, read_json
from sd_scripts.runs.process import TERM_GRACE, LiveRun
from sd_scripts.runs.run_state import State
from sd_scripts.runs.slurm.squeue import SQUEUE, JobStatus, ask, run_slurm, sbatch_environment

SUBMITS_WITHIN, CANCELS_WITHIN = 60.0, 30.0
"""Seconds for sbatch and scancel."""
ARRIVE_WITHIN = 30.0
"""Seconds after the end of a job within which its last events arrive."""
OPTIONS_OF = {"partition": "slurm_partition", "time limit": "slurm_time", "gres": "slurm_gpus"}
"""Word in a message of sbatch -> the option to change."""


@dataclass
class SlurmJob(LiveRun):
    """A run that is a job; it outlives this process, and Slurm may start it again."""

    id: str
    _since: float = field(default_factory=time.monotonic, repr=False)
    """Questions to squeue from here on know the job."""
    _over_since: float = field(default=0.0, repr=False)

    @property
    def key(self) -> str:
        return f"slurm {self.id}"

    @property
    def _status(self) -> JobStatus | None:
        """What Slurm last said of the job; None if it does not know it, or has not answered yet."""
        return SQUEUE.newest().jobs.get(self.id)

    @property
    def alive(self) -> bool:
        """Whether the job waits, runs or is about to end. A Slurm that does not answer ends no job."""
        answer = SQUEUE.newest()
        if status := answer.jobs.get(self.id):
            return not status.over
        return answer.asked < self._since or bool(answer.problem)

    @property
    def settled(self) -> bool:
        """Whether the events of another machine must have arrived, which shared storage may delay."""
        self._over_since = self._over_since or time.monotonic()
        never_ran = self._status is not None and not self._status.nodes
        return never_ran or time.monotonic() - self._over_since >= ARRIVE_WITHIN

    @property
    def waits(self) -> bool:
        return self._status is not None and self._status.waits

    @property
    def about(self) -> str:
        answer, status = SQUEUE.newest(), self._status
        name = f"Slurm job {self.id}"
        if answer.problem:
            return f"{name}; Slurm does not answer ({answer.problem})"
        if status is None:
            return name
        if status.waits:
            return f"{name} is pending: {status.why_waiting}"
        return f"{name} on {status.nodes}" if status.nodes else name

    @property
    def reported_end(self) -> tuple[State, str] | None:
        """How the job ended according to Slurm, for a run that could not report it."""
        status, name = self._status, f"Slurm job {self.id}"
        state = status.state if status else ""
        match state:
            case "CANCELLED":
                return "stopped", f"{name} was cancelled before the training could save"
            case "TIMEOUT" | "DEADLINE":
                return "lost", f"{name} reached its time limit before the training could save; raise slurm_time"
            case "OUT_OF_MEMORY":
                return "lost", f"{name} ran out of memory; request more with --mem in the file of slurm_template"
            case "NODE_FAIL" | "BOOT_FAIL":
                return "lost", f"a node of {name} failed, and Slurm did not start it again"
            case "PREEMPTED":
                return "lost", f"{name} was preempted, and Slurm did not start it again"
            case "FAILED" if not self.folder.console.exists():
                node = f" {status.nodes}" if status and status.nodes else ""
                remedy = f"choose an output_dir on storage that node{node} shares"
                return "failed", f"{name} cannot write to the run folder; {remedy}"
            case "FAILED":
                return "failed", f"{name} failed before the training could report why; see its last lines under Details"
            case "":
                return "lost", f"Slurm no longer knows job {self.id}, and the training reported no end"
        return None

    def terminate(self, grace: float = TERM_GRACE) -> None:
        """Cancel the job: its processes receive SIGTERM, and some time later SIGKILL, as the cluster sets it."""
        with contextlib.suppress(ValueError):  # the page still shows it as running
            run_slurm(["scancel", self.id], CANCELS_WITHIN)
        SQUEUE.forget()


def submit(argv: Sequence[str], folder: RunFolder) -> SlurmJob:
    """Submit a job with `argv`, a command line of sbatch. Raises ValueError, one sentence that begins with an option's
    name, if Slurm refuses it or the folder cannot be written."""
    try:
        folder.path.mkdir(parents=True, exist_ok=True)
        answer = run_slurm(list(argv), SUBMITS_WITHIN, sbatch_environment(HANDED))
    except OSError as error:
        raise ValueError(f"run folder: '{error.filename}' cannot be written ({error.strerror})") from error
    except ValueError as error:
        text = str(error)
        name = next((option for word, option in OPTIONS_OF.items() if word in text.lower()), "where")
        raise ValueError(f"{name}: {text}") from error
    id = answer.strip().partition(";")[0]  # the name of the cluster may follow
    if not id.isdecimal():
        raise ValueError(f"where: sbatch printed no job number but {shortened(answer.strip())!r}")
    SQUEUE.forget()
    return _recorded(SlurmJob(folder, id))


def _recorded(job: SlurmJob) -> SlurmJob:
    try:
        write_whole(job.folder.process, json.dumps({"slurm_job": job.id}) + "\n")
    except OSError as error:  # a run that no later GUI could find must not continue
        job.terminate()
        raise ValueError(f"run folder: '{job.folder.process}' cannot be written ({error.strerror})") from error
    return job


def find(folder: RunFolder, key: str = "") -> SlurmJob | None:
    """Return the job of a run; `key` is its key, if known. None for a run that is not a job."""
    record = read_json(folder.process)
    if isinstance(record, dict) and isinstance(record.get("slurm_job"), str):
        return SlurmJob(folder, record["slurm_job"])
    kind, _, id = key.partition(" ")
    return SlurmJob(folder, id) if kind == "slurm" else None


def adopt(folder: RunFolder) -> SlurmJob | None:
    """Record the job of a run whose GUI was killed after it submitted it; None if there is none. Raises ValueError if
    Slurm does not answer."""
    ids = [id for id, status in ask().items() if status.name == folder.path.name]
    return _recorded(SlurmJob(folder, ids[-1])) if ids else None
