"""Train states: a folder with everything that a run needs to resume exactly, and the checks that it still fits."""

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from sd_scripts.families.cards.registry import is_built_in_network
from sd_scripts.formats.atomic_files import atomic_folder
from sd_scripts.formats.documents import read_json
from sd_scripts.library.optim import optimizers
from sd_scripts.library.optim.lr_schedulers import advance_to, learning_rates, make_scheduler, resume_plateau
from sd_scripts.options.networks.network import NetworkOptions
from sd_scripts.options.optimization.optimizer import LrSchedulerOptions, OptimizerOptions
from sd_scripts.options.saving import EmaOptions
from sd_scripts.options.training import TrainingOptions
from sd_scripts.planning.steps import TrainPlan
from sd_scripts.training.context import Context
from sd_scripts.training.execution.eager import HalfScaler
from sd_scripts.training.methods.method import Trainable
from sd_scripts.training.progress import Progress
from sd_scripts.training.saving.ema import Ema
from sd_scripts.training.saving.origin import SCHEDULE, Origin, plain

STATE, PROGRESS = "state.pt", "progress.json"
CHECKSUM = "sha256"
"""Key of the checksum over the rest of PROGRESS."""


@dataclass(kw_only=True)
class TrainState:
    """Everything that changes during a run."""

    trainable: Trainable
    optimizer: Optimizer
    scheduler: LRScheduler
    scaler: torch.amp.GradScaler | None
    train_plan: TrainPlan
    progress: Progress
    ema: Ema | None = None
    origin: Origin
    hyperparameters: list[dict[str, Any]]
    """Hyperparameters of each optimizer group as the settings make them, before a state is loaded."""
    new_scheduler: Callable[[Optimizer], LRScheduler]
    """Creates the schedule of the settings, at its first step."""

    def state(self) -> dict[str, Any]:
        """Return the saved values. With shards, all processes must call it, and only the first gets values."""
        state = {
            "learning": self.trainable.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "scaler": self.scaler.state_dict() if self.scaler else {},
            **({"ema": self.ema.state()} if self.ema else {}),
        }
        return self.trainable.shards.joined(state) if self.trainable.shards else state

    def load(self, state: dict[str, Any], saved: "SavedState") -> None:
        """Continue from `state`, but use the hyperparameters and schedule of the settings where those changed."""
        if self.trainable.shards:
            state = self.trainable.shards.cut(state)
        self.trainable.load_state_dict(state["learning"])
        self.optimizer.load_state_dict(state["optimizer"])
        changed = self._changed_hyperparameters(saved)
        optimizers.set_hyperparameters(self.optimizer, changed)
        if any("lr" in group for group in changed) or self._schedule_changed(saved):
            self._rebuild_schedule(state["scheduler"], saved)
        else:
            self.scheduler.load_state_dict(state["scheduler"])
        if self.scaler and state["scaler"]:
            self.scaler.load_state_dict(state["scaler"])
        if self.ema:  # the average starts here if the state has none
            self.ema = Ema(self.trainable, self.ema.options)
            if state.get("ema"):
                self.ema.load(state["ema"])

    def _changed_hyperparameters(self, saved: "SavedState") -> list[dict[str, Any]]:
        """Return the hyperparameters of each group in which the settings differ from the state."""
        before = saved.hyperparameters
        if len(before) != len(self.hyperparameters):
            return [{} for _ in self.hyperparameters]
        return [
            {name: value for name, value in now.items() if name in then and then[name] != plain(value)}
            for then, now in zip(before, self.hyperparameters, strict=True)
        ]

    def _schedule_changed(self, saved: "SavedState") -> bool:
        then = saved.origin
        now = self.origin
        return then.max_steps != now.max_steps or any(
            then.settings.get(name) != now.settings.get(name) for name in SCHEDULE
        )

    def _rebuild_schedule(self, state: dict[str, Any], saved: "SavedState") -> None:
        """Build the schedule of the settings and advance it to the step of the state."""
        rates = [group.get("initial_lr", group["lr"]) for group in self.hyperparameters]
        optimizers.set_hyperparameters(self.optimizer, [{"lr": rate, "initial_lr": rate} for rate in rates])
        self.scheduler = self.new_scheduler(self.optimizer)
        same_kind = saved.makers.get("lr_scheduler") == optimizers.class_name(type(self.scheduler))
        if isinstance(self.scheduler, ReduceLROnPlateau) and same_kind:
            before = [group.get("initial_lr", group["lr"]) for group in saved.hyperparameters]
            resume_plateau(self.scheduler, state, before)
        advance_to(self.scheduler, int(state.get("last_epoch", saved.progress.step)))

    def rates(self) -> dict[str, float]:
        """Return the learning rate of the next step by the name of its optimizer group."""
        names = [group.get("name", f"group{i}") for i, group in enumerate(self.hyperparameters)]
        return dict(zip(names, learning_rates(self.scheduler), strict=True))

    def is_finite(self) -> bool:
        """Return whether all weights and optimizer moments are finite."""
        kept = (held for held in getattr(self.optimizer, "state", {}).values() if isinstance(held, dict))
        moments = (value for held in kept for value in held.values() if isinstance(value, torch.Tensor))
        return all(bool(tensor.isfinite().all()) for tensor in (*self.trainable.state_dict().values(), *moments))

    def makers(self) -> dict[str, str]:
        """Return the class names of optimizer and scheduler, by the option that chooses them."""
        made = {"optimizer_type": optimizers.updater(self.optimizer), "lr_scheduler": self.scheduler}
        return {option: optimizers.class_name(type(instance)) for option, instance in made.items()}

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Load the average of a schedule-free optimizer, which is what to sample with and to save.

        Afterwards the trained weights are back bit for bit, so that sampling changes nothing.
        """
        if not optimizers.is_schedule_free(self.optimizer):
            yield
            return
        before = {name: tensor.clone() for name, tensor in self.trainable.state_dict().items()}
        optimizers.eval_mode(self.optimizer)
        self.trainable.updated()
        try:
            yield
        finally:
            optimizers.train_mode(self.optimizer)
            self.trainable.load_state_dict(before)


def new_train_state(
    context: Context, trainable: Trainable, train_plan: TrainPlan, origin: Origin, progress: Progress
) -> TrainState:
    """Create the optimizer with its schedule, and what else the settings ask for. ValueError names the option."""
    settings = context.settings
    optimizer = trainable.make_optimizer(settings[OptimizerOptions])
    new_scheduler = partial(make_scheduler, settings[LrSchedulerOptions], total_steps=train_plan.max_steps)
    return TrainState(
        trainable=trainable,
        optimizer=optimizer,
        hyperparameters=optimizers.hyperparameters(optimizer),  # before the scheduler changes them
        new_scheduler=new_scheduler,
        scheduler=new_scheduler(optimizer),
        origin=origin,
        scaler=HalfScaler("cuda") if settings[TrainingOptions].mixed_precision == "fp16" else None,
        train_plan=train_plan,
        progress=progress,
        ema=Ema(trainable, settings[EmaOptions]) if settings[EmaOptions].use_ema else None,
    )


@dataclass(frozen=True, kw_only=True)
class SavedState:
    """Summary of a state folder, read before a model is loaded."""

    folder: Path
    progress: Progress
    seed: int
    batches_per_epoch: int
    makers: dict[str, str]
    time: float
    """When it was written (Unix time)."""
    origin: Origin
    """The inputs of the training."""
    hyperparameters: list[dict[str, Any]]
    """Hyperparameters of each optimizer group before its first step."""
    files: dict[str, str]
    """Name -> SHA-256."""
    as_written: bool
    """Whether the summary matches its own checksum."""

    def why_not_loaded(self, optimizer: OptimizerOptions, network: NetworkOptions | None) -> str:
        """Return a sentence if a run with these options cannot load the state, as far as its summary shows; else an
        empty text."""
        if (maker := self.makers["optimizer_type"]) not in optimizers.class_names(optimizer):
            return _other(self.folder, "optimizer_type", maker)
        rank = self.origin.settings.get("network_dim")
        if network is None or not is_built_in_network(network) or any("dim" in arg for arg in network.network_args):
            return ""  # the rank decides no shape, or not alone
        differs = network.network_dim and rank and rank != network.network_dim
        return _other(self.folder, "network_dim", str(rank)) if differs else ""


def write_state(folder: Path, state: dict[str, Any], train_state: TrainState, seed: int) -> None:
    """Write `state`, made by `train_state`, as a folder that appears complete or not at all; raises OSError."""
    with atomic_folder(folder) as part:
        with (part / STATE).open("wb") as file:
            hashing = _HashingFile(file)
            try:
                torch.save(state, hashing)  # type: ignore[arg-type]
            except RuntimeError as error:
                raise hashing.error or error from error
        summary = {
            **asdict(train_state.progress),
            "seed": seed,
            "batches_per_epoch": train_state.train_plan.batches_per_epoch,
            "makers": train_state.makers(),
            "time": time.time(),
            "origin": asdict(train_state.origin),
            "hyperparameters": plain(train_state.hyperparameters),
            "files": {STATE: hashing.hash.hexdigest()},
        }
        (part / PROGRESS).write_text(json.dumps({**summary, CHECKSUM: _digest(summary)}), encoding="utf-8")


class _HashingFile:
    """A file for torch.save that hashes everything written to it."""

    def __init__(self, file: IO[bytes]):
        self._file = file
        self.hash = hashlib.sha256()
        self.flush = file.flush
        self.error: OSError | None = None
        """Why a write failed; torch replaces this error by its own."""

    def write(self, data: bytes) -> int:
        self.hash.update(data)
        try:
            return self._file.write(data)
        except OSError as error:
            self.error = error
            raise


def read_saved(resume: str) -> SavedState:
    """Read the summary of a state. Raises ValueError naming resume if the folder contains no state of ours."""
    folder = Path(resume)
    if not folder.is_dir():
        raise ValueError(f"resume: folder not found: '{resume}'")
    try:
        return _saved(folder, read_json(folder / PROGRESS))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
        raise ValueError(
            f"resume: '{resume}' is not a state of this program. States of sd-scripts cannot be resumed; to continue "
            "from one of its LoRA files, set network_weights"
        ) from None


def _saved(folder: Path, summary: dict[str, Any]) -> SavedState:
    checksum = summary.pop(CHECKSUM)
    progress = Progress(step=int(summary["step"]), epoch=int(summary["epoch"]), batch=int(summary["batch"]))
    batches = int(summary["batches_per_epoch"])
    makers = {str(option): optimizers.without_own_module(str(maker)) for option, maker in summary["makers"].items()}
    if "optimizer_type" not in makers or progress.step < 0 or progress.epoch < 1 or not 0 <= progress.batch <= batches:
        raise ValueError("step counts are inconsistent")
    return SavedState(
        folder=folder,
        progress=progress,
        seed=int(summary["seed"]),
        batches_per_epoch=batches,
        makers=makers,
        time=float(summary["time"]),
        origin=Origin.read(summary["origin"]),
        hyperparameters=[dict(group) for group in summary["hyperparameters"]],
        files={str(name): str(digest) for name, digest in summary["files"].items()},
        as_written=checksum == _digest(summary),
    )


def _digest(summary: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(summary).encode()).hexdigest()


def read_whole(resume: str) -> SavedState:
    """Read a state like read_saved, and verify the checksums of its files; ValueError if it is damaged."""
    saved = read_saved(resume)
    if why := damage(saved):
        raise ValueError(
            f"resume: the state '{resume}' is damaged: {why}; choose an older one, or set resume = latest, which "
            "takes the newest intact one"
        )
    return saved


def damage(saved: SavedState) -> str:
    """Return the problem of a state's files, or an empty string; reads them completely."""
    if not saved.as_written:
        return f"the checksum of {PROGRESS} does not match"
    try:
        for name, digest in saved.files.items():
            if _digest_of_file(saved.folder / name) != digest:
                return f"the checksum of {name} does not match"
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except OSError as error:
        return f"it cannot be read ({_first_line(error)})"
    return ""


def _digest_of_file(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as content:
        while chunk := content.read(2**20):
            digest.update(chunk)
    return digest.hexdigest()


def load_state(saved: SavedState, train_state: TrainState) -> None:
    """Load a state. Raises ValueError naming resume if it does not fit these settings."""
    option = "optimizer_type"
    maker = train_state.makers()["optimizer_type"]
    if saved.makers[option] != maker:
        raise ValueError(_other(saved.folder, option, saved.makers[option]))
    try:
        state = torch.load(saved.folder / STATE, map_location="cpu", weights_only=True)
    except Exception as error:
        raise ValueError(f"resume: the state in '{saved.folder}' cannot be read: {_first_line(error)}") from None
    try:
        train_state.load(state, saved)
    except (KeyError, RuntimeError, ValueError) as error:
        if str(error).startswith("resume:"):
            raise
        raise ValueError(
            f"resume: the state in '{saved.folder}' does not fit these settings: {_first_line(error)}"
        ) from None


def _other(folder: Path, option: str, value: str) -> str:
    return f"resume: the state in '{folder}' was made with a different {option} ({value}); set that one"


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
