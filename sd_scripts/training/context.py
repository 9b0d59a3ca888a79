"""What every part of a run shares: the settings, the processes, the seed, and where to tell things."""

import contextlib
import hashlib
import logging
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import InitProcessGroupKwargs, gather_object, set_seed
from torch import Tensor

from sd_scripts.options.logging import LoggingOptions
from sd_scripts.options.run import CudaOptions
from sd_scripts.options.saving import SavingOptions
from sd_scripts.options.settings import Settings
from sd_scripts.options.training import DistributedOptions, TrainingOptions
from sd_scripts.runs.events import EventLog
from sd_scripts.runs.folder import RunFolder
from sd_scripts.training.trackers import Trackers, tracker_folder

logger = logging.getLogger(__name__)

DTYPES = {"no": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


class Failed(Exception):
    """The run cannot go on; one sentence for the user. `remedy` says what to change."""

    def __init__(self, sentence: str, remedy: str = ""):
        super().__init__(sentence)
        self.remedy = remedy


MEETING = 30.0
"""Seconds in which processes that fail in the same place have all noticed it, also where each compiles until then."""
FAILED = "sd_scripts/failed"
"""In the processes' store: who failed first, and why."""


@dataclass(kw_only=True)
class Context:
    settings: Settings
    accelerator: Accelerator
    log: EventLog | None
    """Only the main process tells."""
    run_dir: Path
    seed: int
    listens_from: float = 0.0
    """In seconds since 1970: what commands.jsonl held by then was said to an earlier run in this folder."""
    phase_name: str = field(default="", init=False)
    """What the run is doing, as it told last."""
    at_end: contextlib.ExitStack = field(default_factory=contextlib.ExitStack, init=False, repr=False)
    """Closed with the run."""
    began: bool = field(default=False, init=False)
    """Whether all checks have passed, so that the model is loaded."""
    emergency_state: Path | None = field(default=None, init=False)
    """Where the state lies that was saved because an error ends the run."""
    last_state: tuple[int, Path] | None = field(default=None, init=False)
    """The state that was saved last as planned, and its step."""
    _started: dict[str, Any] = field(default_factory=dict, init=False, repr=False)
    _warned: set[str] = field(default_factory=set, init=False, repr=False)

    def __post_init__(self) -> None:
        self.trackers = Trackers(lambda: self.accelerator.trackers, self.warn)

    @property
    def device(self) -> torch.device:
        """Of several processes on a CPU, too, it is `cpu`: moving a tensor of `cpu` to `cpu:0` would copy it."""
        device = self.accelerator.device
        return torch.device("cpu") if device.type == "cpu" else device

    @property
    def dtype(self) -> torch.dtype:
        """What the model computes in."""
        return DTYPES[self.settings[TrainingOptions].mixed_precision]

    @property
    def rank(self) -> int:
        return self.accelerator.process_index

    @property
    def world(self) -> int:
        return self.accelerator.num_processes

    @property
    def sharded(self) -> bool:
        """Whether `accelerate launch --use_fsdp` spread the weights over the processes."""
        return self.world > 1 and os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true"

    @property
    def is_main(self) -> bool:
        return self.accelerator.is_main_process

    @property
    def output_dir(self) -> Path:
        return Path(self.settings[SavingOptions].output_dir or ".")

    def tell(self, kind: Any, **facts: Any) -> None:
        """An event, from the main process. On a full disk it is lost; the run is worth more."""
        if kind == "started":
            self._started = facts
        if self.log:
            with contextlib.suppress(OSError):
                self.log(kind, **facts)

    def keep_telling(self) -> None:
        """Where somebody deleted the folder of the run, its events begin anew: they would go nowhere."""
        if not self.log or os.path.exists(RunFolder(self.run_dir).events_file):
            return
        with contextlib.suppress(OSError):
            before, self.log = self.log, RunFolder(self.run_dir).log()
            self.tell("started", **self._started)
            before.close()

    def close(self) -> None:
        """The end of trackers, of the process group and of the events."""
        self.at_end.close()
        self.trackers.finish()
        self.accelerator.trackers = []
        self.accelerator.end_training()
        if self.log:
            with contextlib.suppress(OSError):  # a full disk; that was told when it was met first
                self.log.close()

    def emergency_advice(self) -> str:
        """How to go on from the newest state that a run has left which an error ended; "" where there is none."""
        if state := self.emergency_state:
            step = "the last complete step"
        elif self.last_state:
            step, state = f"step {self.last_state[0]}", self.last_state[1]
        else:
            return ""
        how = "set resume = latest" if state.parent == self.output_dir else "set resume to that folder"
        return f"the state of {step} is in '{state}'; {how} to go on from it"

    def warn_once(self, what: str, text: str) -> None:
        """The first time that `what` happens."""
        if what not in self._warned:
            self._warned.add(what)
            self.warn(text)

    def warn(self, text: str) -> None:
        """To the console and into the events."""
        if self.is_main:
            logger.warning(text)
        self.tell("warning", text=text)

    def phase(self, name: str) -> Callable[[int, int], None]:
        """Tell that a phase begins; returns what to call with (done, total) as it goes on."""
        if self.is_main:
            logger.info("%s", name)
        self.phase_name = name
        self.tell("phase", name=name)
        return lambda done, total: self.tell("phase", name=name, done=done, total=total)

    def generator(self, *key: object) -> torch.Generator:
        """A generator on the device for (seed, rank, key): the same draws each time, resumed or not."""
        return torch.Generator(self.device).manual_seed(self.number(self.rank, *key))

    def seed_layers(self, *key: object) -> None:
        """Begin anew, by the key, what dropout draws from; torch.manual_seed would take half a millisecond."""
        number = self.number(*key)
        torch.default_generator.manual_seed(number)
        if self.device.type == "cuda":
            torch.cuda.default_generators[self.device.index or 0].manual_seed(number)

    def mean(self, value: Tensor) -> Tensor:
        """Over the processes, the same in all of them, without waiting for the device."""
        if self.world > 1:
            torch.distributed.all_reduce(value)
            value = value / self.world
        return value

    def gathered(self, mine: list[Any]) -> list[Any]:
        """The lists of all processes, one after the other."""
        return gather_object(mine) if self.world > 1 else mine

    def agreed(self, value: Any) -> Any:
        """The main process's value, in every process."""
        return _agreed(self.accelerator, value)

    def meet(self, what: str) -> bool:
        """Whether all processes come here soon. No collective: others may already be in one."""
        names = [f"sd_scripts/{what}/{rank}" for rank in range(self.world)]
        store = torch.distributed.distributed_c10d._get_default_store()
        store.set(names[self.rank], "1")
        try:
            store.wait(names, timedelta(seconds=MEETING))
        except RuntimeError:
            return False
        return True

    def first_failure(self, why: str) -> str:
        """Note why this process ends; returns why another did so before it, which may be the cause, or ""."""
        if self.world == 1:
            return ""
        mine = f"{self.rank} {why}"
        with contextlib.suppress(Exception):  # the process that keeps the store may be gone
            store = torch.distributed.distributed_c10d._get_default_store()
            first = store.compare_set(FAILED, "", mine).decode()
            return "" if first == mine else str(first.partition(" ")[2])
        return ""

    def number(self, *key: object) -> int:
        """63 bits that depend on the seed and the key alone."""
        digest = hashlib.sha256("/".join(map(str, (self.seed, *key))).encode()).digest()
        return int.from_bytes(digest[:8], "big") >> 1


def make_context(settings: Settings, run_dir: Callable[[], Path], make_log: Callable[[Path], EventLog]) -> Context:
    """Start the processes that accelerate launched and choose a seed, the same in all."""
    training, cuda = settings[TrainingOptions], settings[CudaOptions]
    timeout = settings[DistributedOptions].ddp_timeout
    handlers = [InitProcessGroupKwargs(timeout=timedelta(minutes=timeout))] if timeout else []
    logging_options = settings[LoggingOptions]
    accelerator = Accelerator(
        mixed_precision="no",  # that is ours: the whole model is in its dtype, so nothing is cast on the way
        log_with=logging_options.trackers or None,
        project_dir=tracker_folder(logging_options),
        kwargs_handlers=handlers,
    )
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = cuda.cuda_allow_tf32
    torch.backends.cudnn.benchmark = cuda.cuda_cudnn_benchmark and not cuda.deterministic
    # a kernel without a deterministic twin warns by its name; refusing would end the run
    torch.use_deterministic_algorithms(cuda.deterministic, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    seed = training.seed if training.seed is not None else _agreed(accelerator, secrets.randbelow(2**32))
    set_seed(seed)
    folder = Path(_agreed(accelerator, str(run_dir()) if accelerator.is_main_process else ""))
    before = _last_told(folder)
    log = make_log(folder) if accelerator.is_main_process else None
    return Context(settings=settings, accelerator=accelerator, log=log, run_dir=folder, seed=seed, listens_from=before)


def _last_told(folder: Path) -> float:
    """When an earlier run in this folder said its last; 0 in a fresh one, where a wish may be older than us."""
    times = (event.get("time", 0.0) for event in RunFolder(folder).events() if isinstance(event, dict))
    return max(times, default=0.0)


def _agreed(accelerator: Accelerator, value: Any) -> Any:
    """The main process's value, in every process."""
    if accelerator.num_processes == 1:
        return value
    holder = [value]
    torch.distributed.broadcast_object_list(holder)
    return holder[0]
