"""The shared state of a run: settings, processes, seed, events and logging."""

import contextlib
import logging
import os
import secrets
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import InitProcessGroupKwargs, broadcast_object_list, gather_object, set_seed
from torch import Tensor

from sd_scripts.library.files.safetensors_io import PRECISIONS
from sd_scripts.library.seeds import seed_from
from sd_scripts.options.logging import LoggingOptions
from sd_scripts.options.run import CudaOptions, RunOptions
from sd_scripts.options.saving import SavingOptions
from sd_scripts.options.training import DistributedOptions, TrainingOptions
from sd_scripts.runs.folder import RunFolder, new_run_folder
from sd_scripts.runs.reporter import Progress, Reporter
from sd_scripts.settings.settings import Settings
from sd_scripts.training.process.device_memory import DeviceMemory, limit_gpu_memory
from sd_scripts.training.trackers import Trackers, tracker_folder

logger = logging.getLogger(__name__)


class Failed(Exception):
    """The run cannot continue; one sentence for the user. `remedy` describes what to change."""

    def __init__(self, sentence: str, remedy: str = ""):
        super().__init__(sentence)
        self.remedy = remedy


BARRIER_SECONDS = 30.0
"""Seconds within which processes that fail at the same place all notice it, even if each compiles until then."""
LOG_SECONDS = 5.0
"""Seconds between two lines in the log about the progress of a phase before the first step."""
FAILED = "sd_scripts/failed"
"""Key in the processes' store: who failed first, and why."""
FAILED_MAIN = "sd_scripts/failed/main"
"""Key in the processes' store: why the main process failed."""


class Context(Reporter):
    folder: RunFolder

    def __init__(self, settings: Settings, accelerator: Accelerator, folder: RunFolder, seed: int):
        self.is_main = accelerator.is_main_process
        self.rank = accelerator.process_index
        self.world = accelerator.num_processes
        super().__init__(folder, is_main=self.is_main)
        self.settings = settings
        self.accelerator = accelerator
        self.seed = seed
        self.run_dir = folder.path
        self.dtype = PRECISIONS[settings[TrainingOptions].mixed_precision]
        """The dtype that the model computes in."""
        self.memory = DeviceMemory(self.device)
        self.output_dir = Path(settings[SavingOptions].output_dir or ".")
        self.trackers = Trackers(accelerator, self.warn)
        self.at_end = contextlib.ExitStack()
        """Closed at the end of the run."""
        self.began = False
        """Whether all checks have passed, so that the model is loaded."""
        self.emergency_state: Path | None = None
        """The state that was saved because an error ends the run."""
        self.last_state: tuple[int, Path] | None = None
        """Step and folder of the last regular state."""

    @property
    def device(self) -> torch.device:
        """The device to train on; plain `cpu` even with several processes: moving from `cpu` to `cpu:0` copies."""
        device = self.accelerator.device
        return torch.device("cpu") if device.type == "cpu" else device

    @property
    def sharded(self) -> bool:
        """Whether `accelerate launch --use_fsdp` shards the weights over the processes."""
        return self.world > 1 and os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true"

    def close(self) -> None:
        """Close trackers, the process group and the event log."""
        self.at_end.close()
        self.trackers.finish()
        self.accelerator.trackers = []
        self.accelerator.end_training()
        super().close()

    def emergency_advice(self) -> str:
        """Return how to resume from the newest state after an error ended the run; "" if there is none."""
        if state := self.emergency_state:
            step = "the last complete step"
        elif self.last_state:
            step, state = f"step {self.last_state[0]}", self.last_state[1]
        else:
            return ""
        how = "set resume = latest" if state.parent == self.output_dir else "set resume to that folder"
        return f"the state of {step} is in '{state}'; {how} to continue from it"

    def print_warning(self, text: str) -> None:
        if self.is_main:
            logger.warning(text)

    def phase(self, name: str, **payload: Any) -> Progress:
        """Report that a phase begins, with the peaks of the phase before it in bytes: `vram` of all tensors, `reserved`
        of PyTorch's pool for them."""
        if self.is_main:
            logger.info("%s", name)
        reserved = self.memory.peak_reserved()
        used = self.memory.next_phase()
        return super().phase(name, **payload, **({"vram": used, "reserved": reserved} if used else {}))

    def cancellable_phase(self, name: str) -> Progress:
        """Begin a phase as a Reporter does, and log its progress now and then if it is long."""
        report = super().cancellable_phase(name)
        logged = time.monotonic()

        def progress(done: int, total: int, note: str = "") -> None:
            nonlocal logged
            if self.is_main and time.monotonic() >= logged + LOG_SECONDS:
                logged = time.monotonic()
                logger.info("%s: %s of %s", name, f"{done:,}", f"{total:,}")
            report(done, total, note)

        return progress

    def stop_requested(self) -> bool:
        """Several processes begin first, then stop together."""
        return self.world == 1 and super().stop_requested()

    def generator(self, *key: object) -> torch.Generator:
        """Return a generator on the device for (seed, rank, key): the same draws each time, resumed or not."""
        return torch.Generator(self.device).manual_seed(self.number(self.rank, *key))

    def seed_layers(self, *key: object) -> None:
        """Seed the generators of dropout by the key; torch.manual_seed would take half a millisecond."""
        number = self.number(*key)
        torch.default_generator.manual_seed(number)
        if self.device.type == "cuda":
            torch.cuda.default_generators[self.device.index or 0].manual_seed(number)

    def mean(self, value: Tensor) -> Tensor:
        """Average a value over the processes, without a device sync."""
        if self.world > 1:
            torch.distributed.all_reduce(value)
            value = value / self.world
        return value

    def gathered(self, mine: list[Any]) -> list[Any]:
        """Concatenate the lists of all processes."""
        return gather_object(mine) if self.world > 1 else mine

    def agreed(self, value: Any) -> Any:
        """Return the main process's value in every process."""
        return broadcast_object_list([value])[0]

    def all_reach(self, place: str) -> bool:
        """Return whether all processes arrive here soon. This is not a collective: others may already be in one."""
        names = [f"sd_scripts/{place}/{rank}" for rank in range(self.world)]
        store = shared_store()
        store.set(names[self.rank], "1")
        try:
            store.wait(names, timedelta(seconds=BARRIER_SECONDS))
        except RuntimeError:
            return False
        return True

    def first_failure(self, why: str) -> str:
        """Record why this process fails; return why another failed before it, which may be the cause, or ""."""
        if self.world == 1:
            return ""
        mine = f"{self.rank} {why}"
        with contextlib.suppress(Exception):  # the process that keeps the store may be gone
            store = shared_store()
            if self.is_main:
                store.set(FAILED_MAIN, why)
            first = store.compare_set(FAILED, "", mine).decode()
            return "" if first == mine else str(first.partition(" ")[2])
        return ""

    def main_fails_with(self, why: str, seconds: float) -> bool:
        """Return whether the main process fails for the same reason within some seconds, so that it reports it."""
        with contextlib.suppress(Exception):  # it trains on, or is gone
            store = shared_store()
            store.wait([FAILED_MAIN], timedelta(seconds=seconds))
            return bool(store.get(FAILED_MAIN).decode() == why)
        return False

    def number(self, *key: object) -> int:
        """Return 63 bits that depend only on the seed and the key."""
        return seed_from(self.seed, *key)


def make_context(settings: Settings) -> Context:
    """Start the processes that accelerate launched; choose a seed and a run folder, the same in all."""
    training = settings[TrainingOptions]
    cuda = settings[CudaOptions]
    timeout = settings[DistributedOptions].ddp_timeout
    handlers = [InitProcessGroupKwargs(timeout=timedelta(minutes=timeout))] if timeout else []
    logging_options = settings[LoggingOptions]
    accelerator = Accelerator(
        mixed_precision="no",  # we cast the whole model ourselves
        log_with=logging_options.trackers or None,
        project_dir=tracker_folder(logging_options),
        kwargs_handlers=handlers,
    )
    limit_gpu_memory(accelerator.device, cuda.gpu_memory_limit)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = cuda.cuda_allow_tf32
    torch.backends.cudnn.benchmark = cuda.cuda_cudnn_benchmark and not cuda.deterministic
    if cuda.deterministic != torch.are_deterministic_algorithms_enabled():  # setting it imports the compiler
        # not warn_only, with which attention keeps kernels whose backward adds in any order
        torch.use_deterministic_algorithms(cuda.deterministic)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    seed = training.seed if training.seed is not None else broadcast_object_list([secrets.randbelow(2**32)])[0]
    set_seed(seed)
    (folder,) = broadcast_object_list(
        [_run_folder(settings[RunOptions], settings[SavingOptions]) if accelerator.is_main_process else None]
    )
    return Context(settings, accelerator, folder, seed)


def _run_folder(run: RunOptions, saving: SavingOptions) -> RunFolder:
    if run.run_dir:
        return RunFolder(Path(run.run_dir))
    return new_run_folder(Path(saving.output_dir or ".") / "runs", saving.output_name or "")


def shared_store() -> torch.distributed.Store:
    """Return the key-value store that all processes of the run share."""
    return torch.distributed.distributed_c10d._get_default_store()
