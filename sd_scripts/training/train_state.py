"""States: all that a run needs to go on as if it had never stopped, in a folder, and what of it must still fit."""

import hashlib
import json
import os
import shutil
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from sd_scripts.library import optimizers
from sd_scripts.library.lr_schedulers import advance_to, resume_plateau
from sd_scripts.library.safetensors_io import OLD, PART, beside
from sd_scripts.training.ema import Ema
from sd_scripts.training.origin import SCHEDULE, Origin, plain
from sd_scripts.training.progress import Progress, TrainPlan
from sd_scripts.training.trainable import Trainable

STATE, PROGRESS = "state.pt", "progress.json"
CHECKSUM = "sha256"
"""Of what else stands in PROGRESS; states without it are taken as they are."""


@dataclass(kw_only=True)
class TrainState:
    """All that changes in a run."""

    trainable: Trainable
    optimizer: Optimizer
    scheduler: LRScheduler
    scaler: torch.amp.GradScaler | None
    progress: Progress
    ema: Ema | None = None
    origin: Origin
    hyperparameters: list[dict[str, Any]]
    """Of each group of the optimizer as the settings make it, before a state is loaded."""
    new_scheduler: Callable[[Optimizer], LRScheduler]
    """The schedule of the settings, from its first step."""

    def state(self) -> dict[str, Any]:
        """With shards all processes must call it, and only the first gets values."""
        state = {
            "learning": self.trainable.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "scaler": self.scaler.state_dict() if self.scaler else {},
            **({"ema": self.ema.state()} if self.ema else {}),
        }
        return self.trainable.shards.joined(state) if self.trainable.shards else state

    def load(self, state: dict[str, Any], saved: "SavedState") -> None:
        """Continue from `state`, except for the hyperparameters and the schedule that the settings have changed since:
        those apply from now on."""
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
        if self.ema:  # a state without it lets the average begin here
            self.ema = Ema(self.trainable, self.ema.options)
            if state.get("ema"):
                self.ema.load(state["ema"])

    def _changed_hyperparameters(self, saved: "SavedState") -> list[dict[str, Any]]:
        """What of each group the settings make otherwise than those of the state did."""
        before = saved.hyperparameters
        if len(before) != len(self.hyperparameters):
            return [{} for _ in self.hyperparameters]
        return [
            {name: value for name, value in now.items() if name in then and then[name] != plain(value)}
            for then, now in zip(before, self.hyperparameters, strict=True)
        ]

    def _schedule_changed(self, saved: "SavedState") -> bool:
        then, now = saved.origin, self.origin
        if then is None:
            return saved.makers.get("lr_scheduler") != self.makers()["lr_scheduler"]
        return then.max_steps != now.max_steps or any(
            then.settings.get(name) != now.settings.get(name) for name in SCHEDULE
        )

    def _rebuild_schedule(self, state: dict[str, Any], saved: "SavedState") -> None:
        """The schedule of the settings at the step that the state has reached."""
        rates = [group.get("initial_lr", group["lr"]) for group in self.hyperparameters]
        optimizers.set_hyperparameters(self.optimizer, [{"lr": rate, "initial_lr": rate} for rate in rates])
        self.scheduler = self.new_scheduler(self.optimizer)
        same_kind = saved.makers.get("lr_scheduler") == _class_name(self.scheduler)
        if isinstance(self.scheduler, ReduceLROnPlateau) and same_kind and saved.hyperparameters:
            before = [group.get("initial_lr", group["lr"]) for group in saved.hyperparameters]
            resume_plateau(self.scheduler, state, before)
        advance_to(self.scheduler, int(state.get("last_epoch", saved.progress.step)))

    def is_finite(self) -> bool:
        """Whether weights and optimizer hold numbers alone."""
        kept = (held for held in getattr(self.optimizer, "state", {}).values() if isinstance(held, dict))
        moments = (value for held in kept for value in held.values() if isinstance(value, torch.Tensor))
        return all(bool(tensor.isfinite().all()) for tensor in (*self.trainable.state_dict().values(), *moments))

    def makers(self) -> dict[str, str]:
        """The classes whose state it is, by the option that chooses them."""
        updater = optimizers.updater(self.optimizer)
        return {"optimizer_type": _class_name(updater), "lr_scheduler": _class_name(self.scheduler)}

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """The weights to look at and to save: those of a schedule-free optimizer's average.

        Afterwards the trained ones are back bit for bit, so that looking changes nothing.
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


@dataclass(frozen=True, kw_only=True)
class SavedState:
    """What a state folder says of itself, known before a model is loaded."""

    folder: Path
    progress: Progress
    seed: int
    batches_per_epoch: int
    makers: dict[str, str]
    time: float
    """When it was written, in seconds since 1970."""
    origin: Origin | None = None
    """What it was trained from; None where it does not say."""
    hyperparameters: list[dict[str, Any]]
    """Of each group of the optimizer, before its first step; empty where the state does not say."""
    files: dict[str, str]
    """Name -> SHA-256; empty where the state does not say."""
    as_written: bool = True
    """What it says fits the checksum that it says, if any."""


def write_state(folder: Path, state: dict[str, Any], train_state: TrainState, train_plan: TrainPlan, seed: int) -> None:
    """`state` as `train_state` gives it. The folder appears whole or not at all; OSError where it cannot be written."""
    part = beside(folder, PART)
    facts = {
        **asdict(train_state.progress),
        "seed": seed,
        "batches_per_epoch": train_plan.batches_per_epoch,
        "makers": train_state.makers(),
        "time": time.time(),
    }
    facts |= {"origin": train_state.origin.facts(), "hyperparameters": plain(train_state.hyperparameters)}
    try:
        part.mkdir(parents=True)
        _write_whole(part, state, facts)
        _put_in_place(part, folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


class _HashingFile:
    """A file for torch.save that hashes what is written into it."""

    def __init__(self, file: IO[bytes]):
        self._file, self.hash = file, hashlib.sha256()
        self.flush = file.flush
        self.error: OSError | None = None
        """Why a piece could not be written, which torch tells in other words."""

    def write(self, piece: bytes) -> int:
        self.hash.update(piece)
        try:
            return self._file.write(piece)
        except OSError as error:
            self.error = error
            raise


def _write_whole(folder: Path, state: dict[str, Any], facts: dict[str, Any]) -> None:
    with (folder / STATE).open("wb") as file:
        hashing = _HashingFile(file)
        try:
            torch.save(state, hashing)  # type: ignore[arg-type]
        except RuntimeError as error:
            raise hashing.error or error from error
    facts = {**facts, "files": {STATE: hashing.hash.hexdigest()}}
    (folder / PROGRESS).write_text(json.dumps({**facts, CHECKSUM: _digest(facts)}), encoding="utf-8")
    for name in (STATE, PROGRESS):
        with (folder / name).open("r+b") as written:
            os.fsync(written.fileno())


def read_saved(resume: str) -> SavedState:
    """Raises ValueError naming resume where the folder holds no state of ours."""
    folder = Path(resume)
    if not folder.is_dir():
        raise ValueError(f"resume: there is no folder '{resume}'")
    try:
        return _saved(folder, json.loads((folder / PROGRESS).read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        raise ValueError(
            f"resume: '{resume}' is not a state of this program; states of sd-scripts cannot be continued, "
            "but network_weights goes on from its LoRA file"
        ) from None


def _saved(folder: Path, facts: dict[str, Any]) -> SavedState:
    hyperparameters, files = facts.get("hyperparameters", []), facts.get("files", {})
    checksum = facts.pop(CHECKSUM, None)
    return SavedState(
        folder=folder,
        progress=Progress(step=int(facts["step"]), epoch=int(facts["epoch"]), batch=int(facts["batch"])),
        seed=int(facts["seed"]),
        batches_per_epoch=int(facts["batches_per_epoch"]),
        makers={str(option): str(maker) for option, maker in facts["makers"].items()},
        time=float(facts.get("time", 0.0)),
        origin=Origin.read(facts.get("origin")),
        hyperparameters=[dict(group) for group in hyperparameters],
        files={str(name): str(digest) for name, digest in files.items()},
        as_written=checksum is None or checksum == _digest(facts),
    )


def _digest(facts: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def read_whole(resume: str) -> SavedState:
    """The same, and its files must be as they were written."""
    saved = read_saved(resume)
    if why := damage(saved):
        raise ValueError(
            f"resume: the state '{resume}' is damaged: {why}; name an older one, or set resume = latest, which takes "
            "the newest that is whole"
        )
    return saved


def damage(saved: SavedState) -> str:
    """Return what is wrong with the files of a state, or an empty text; reads them whole."""
    if not saved.as_written:
        return f"{PROGRESS} is not as it was written"
    try:
        for name, digest in (saved.files or {STATE: ""}).items():
            if not _is_as_written(saved.folder / name, digest):
                return f"{name} is not as it was written"
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except (OSError, zipfile.BadZipFile) as error:
        return f"it cannot be read ({_first_line(error)})"
    return ""


def _is_as_written(file: Path, digest: str) -> bool:
    if not digest:  # a state without checksums still has those of its zip
        with zipfile.ZipFile(file) as pieces:
            return pieces.testzip() is None
    found = hashlib.sha256()
    with file.open("rb") as content:
        while piece := content.read(2**20):
            found.update(piece)
    return found.hexdigest() == digest


def resume_point(
    saved: SavedState, train_plan: TrainPlan, warn: Callable[[str], None], *, again: bool = False
) -> Progress:
    """Where the run goes on. Raises ValueError when nothing is left to do; `again`: the same run was asked for once
    more, and the state of its end is as good as any, since the last file may not be there yet."""
    progress = saved.progress
    if again and progress.step == train_plan.max_steps:
        return progress
    if progress.step >= train_plan.max_steps:
        raise ValueError(
            f"resume: the state is of step {progress.step} and the run ends at step {train_plan.max_steps}; "
            "raise max_train_steps or max_train_epochs"
        )
    if saved.batches_per_epoch != train_plan.batches_per_epoch and progress.batch:
        warn(
            f"resume: an epoch now has {train_plan.batches_per_epoch} batches and had {saved.batches_per_epoch}, so "
            f"epoch {progress.epoch} begins anew"
        )
        return Progress(step=progress.step, epoch=progress.epoch)
    return progress


def load_state(saved: SavedState, train_state: TrainState) -> None:
    """Raises ValueError naming resume where the state does not fit these settings."""
    option, maker = "optimizer_type", train_state.makers()["optimizer_type"]
    if saved.makers.get(option) != maker:
        raise ValueError(
            f"resume: the state in '{saved.folder}' was made with another {option} "
            f"({saved.makers.get(option)}); set it as it was"
        )
    try:
        state = torch.load(saved.folder / STATE, map_location="cpu", weights_only=True)
    except Exception as error:
        raise ValueError(f"resume: the state in '{saved.folder}' cannot be read: {_first_line(error)}") from None
    try:
        train_state.load(state, saved)
    except (KeyError, RuntimeError, ValueError) as error:
        if str(error).startswith("resume:"):
            raise
        raise ValueError(f"resume: the state in '{saved.folder}' is of other settings: {_first_line(error)}") from None


def _class_name(made: object) -> str:
    return f"{type(made).__module__}.{type(made).__qualname__}"


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def _put_in_place(part: Path, folder: Path) -> None:
    old = beside(folder, OLD)
    if folder.exists():
        os.replace(folder, old)
    os.replace(part, folder)
    shutil.rmtree(old, ignore_errors=True)
