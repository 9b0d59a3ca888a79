"""The states of this user's Slurm jobs, asked of squeue."""

import os
import subprocess
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from sd_scripts.formats.words import shortened

EVERY = 5.0
"""Seconds between two questions: a controller serves many users, and asks them not to ask more often."""
ANSWERS_WITHIN = 30.0
"""Seconds after which a question counts as unanswered."""
FORMAT = "%A|%T|%r|%N|%j"
OVER = frozenset(
    (
        *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED"),
        *("REVOKED", "TIMEOUT"),
    )
)
"""States that a job does not leave, unless it is requeued, which sets PENDING."""
WAITING = frozenset(("PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"))
REASONS = {
    "AssocGrpGRES": "the account uses as many GPUs as it may",
    "BeginTime": "its earliest start time has not come yet",
    "Dependency": "another job must end first",
    "JobHeldAdmin": "an administrator holds it",
    "JobHeldUser": "it is held; `scontrol release` releases it",
    "None": "Slurm has not looked at it yet",
    "PartitionDown": "the partition is down",
    "PartitionNodeLimit": "it requests more nodes than the partition allows",
    "PartitionTimeLimit": "its time limit is above the partition's",
    "Priority": "jobs of higher priority are first",
    "QOSMaxGRESPerUser": "you use as many GPUs as you may",
    "QOSMaxJobsPerUserLimit": "you run as many jobs as you may",
    "ReqNodeNotAvail": "the nodes it needs are not available",
    "Resources": "waiting for resources",
}
"""Why a job waits, in words, by Slurm's reason; others are shown as they are."""


@dataclass(frozen=True)
class JobStatus:
    state: str
    """Slurm's, such as PENDING."""
    reason: str
    """Why it waits or ended, in one of Slurm's words."""
    nodes: str
    name: str

    @property
    def over(self) -> bool:
        return self.state in OVER

    @property
    def waits(self) -> bool:
        return self.state in WAITING

    @property
    def why_waiting(self) -> str:
        return REASONS.get(self.reason.partition(",")[0], self.reason)


@dataclass(frozen=True)
class Answer:
    """What squeue last answered."""

    asked: float = 0.0
    """time.monotonic() when it was asked; 0: not yet."""
    jobs: Mapping[str, JobStatus] = field(default_factory=lambda: MappingProxyType({}))
    """By job id; Slurm forgets a job some minutes after its end."""
    problem: str = ""
    """Why the newest question has no answer; `jobs` are from the last one that has."""


def ask() -> dict[str, JobStatus]:
    """Return the jobs of this user by id. Raises ValueError, one sentence, if Slurm does not answer."""
    command = ["squeue", "--me", "--noheader", "--states=all", f"--format={FORMAT}"]
    unfiltered = {name: value for name, value in os.environ.items() if not name.startswith("SQUEUE_")}
    lines = run_slurm(command, ANSWERS_WITHIN, unfiltered).splitlines()
    rows = [line.split("|", 4) for line in lines]
    return {row[0]: JobStatus(*row[1:]) for row in rows if len(row) == 5}


def run_slurm(command: list[str], seconds: float, environment: Mapping[str, str] | None = None) -> str:
    """Run a command of Slurm and return its output. Raises ValueError, one sentence, if it cannot be run, fails or does
    not answer within `seconds`."""
    program = command[0]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            env=None if environment is None else dict(environment),
            check=False,
        )
    except FileNotFoundError as error:
        raise ValueError(f"{program} was not found on the PATH") from error
    except OSError as error:
        raise ValueError(f"{program} cannot be started ({error.strerror})") from error
    except subprocess.TimeoutExpired as error:
        raise ValueError(f"{program} did not answer within {seconds:.0f} seconds") from error
    if done.returncode:
        lines = [line.removeprefix(f"{program}: ").removeprefix("error: ") for line in done.stderr.splitlines()]
        said = "; ".join(filter(None, map(str.strip, lines)))
        raise ValueError(f"{program}: {shortened(said) or f'exit code {done.returncode}'}")
    return done.stdout


class Squeue:
    """Asks in a thread, at most every EVERY seconds: a busy controller takes long to answer."""

    def __init__(self) -> None:
        self._answer = Answer()
        self._lock = threading.Lock()
        self._asking = False

    def newest(self) -> Answer:
        """Return the newest answer, and ask again if it is old."""
        with self._lock:
            if not self._asking and time.monotonic() - self._answer.asked >= EVERY:
                self._asking = True
                threading.Thread(target=self._ask, name="squeue", daemon=True).start()
            return self._answer

    def forget(self) -> None:
        """Ask again at the next call, since something was changed."""
        with self._lock:
            self._answer = Answer(jobs=self._answer.jobs, problem=self._answer.problem)

    def _ask(self) -> None:
        asked = time.monotonic()
        try:
            answer = Answer(asked, MappingProxyType(ask()))
        except ValueError as error:
            answer = Answer(asked, self._answer.jobs, str(error))
        with self._lock:
            self._answer, self._asking = answer, False


SQUEUE = Squeue()
"""One for all runs of this process."""


def sbatch_environment(secrets: tuple[str, ...]) -> dict[str, str]:
    """Return our environment as a job may have it: without the variables of a job that we run in ourselves, without the
    choice of this machine's GPUs, and without `secrets`, since Slurm writes the environment of a job to disk."""
    kept = ("SLURM_CONF",)
    left_out = {"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", *secrets}
    return {
        name: value
        for name, value in os.environ.items()
        if name not in left_out and (not name.startswith("SLURM_") or name in kept)
    }
