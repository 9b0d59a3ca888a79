"""Files and states of a run: names, when they are due, which old ones go, and how a run goes on from a state."""

import json
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from sd_scripts.library import optimizers
from sd_scripts.library.safetensors_io import PRECISIONS
from sd_scripts.options.saving import SavingOptions
from sd_scripts.options.training import ResumeOptions
from sd_scripts.training.context import Context, Failed
from sd_scripts.training.learning import Learning
from sd_scripts.training.progress import Course, Progress

STATE, PROGRESS = "state.pt", "progress.json"
Metadata = Callable[[int, int], dict[str, str]]
"""(epochs, steps) -> metadata of a file saved now."""


@dataclass(kw_only=True)
class Trained:
    """All that changes in a run."""

    learning: Learning
    optimizer: Optimizer
    scheduler: LRScheduler
    scaler: torch.amp.GradScaler | None
    progress: Progress

    def state(self) -> dict[str, Any]:
        return {
            "learning": self.learning.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "scaler": self.scaler.state_dict() if self.scaler else {},
        }

    def load(self, state: dict[str, Any], progress: Progress) -> None:
        self.learning.load_state_dict(state["learning"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        if self.scaler and state["scaler"]:
            self.scaler.load_state_dict(state["scaler"])
        self.progress = progress


class Saver:
    """Writes from the main process; every file appears whole or not at all."""

    def __init__(self, context: Context, trained: Trained, course: Course, metadata: Metadata):
        self._context, self._trained, self._metadata = context, trained, metadata
        self._saving, self._resume = context.settings[SavingOptions], context.settings[ResumeOptions]
        self._dtype = PRECISIONS[self._saving.save_precision] if self._saving.save_precision else None
        ratio = self._saving.save_n_epoch_ratio
        self._every_epochs = max(1, course.epochs // ratio) if ratio else self._saving.save_every_n_epochs

    def due_at_step(self) -> bool:
        every = self._saving.save_every_n_steps
        return bool(every and self._trained.progress.step % every == 0)

    def due_at_epoch(self, epoch: int) -> bool:
        return bool(self._every_epochs and epoch % self._every_epochs == 0)

    def at_step(self) -> None:
        """The file that is due now; the files and states that leave the window of save_last_n_steps go."""
        self.save_at_step()
        step, every = self._trained.progress.step, self._saving.save_every_n_steps or 1
        if keep := self._saving.save_last_n_steps:
            self._remove(self._step_file(_beyond(step, keep, every)))
        if keep := self._resume.save_last_n_steps_state or self._saving.save_last_n_steps:
            self._remove(self._state_folder(self._step_file(_beyond(step, keep, every))))

    def at_epoch(self, epoch: int) -> None:
        """The same at the end of an epoch, with save_last_n_epochs."""
        path = self._epoch_file(epoch)
        self._write(path, epoch)
        if self._resume.save_state:
            self._write_state(path)
        every = self._every_epochs or 1
        if keep := self._saving.save_last_n_epochs:
            self._remove(self._epoch_file(epoch - every * keep))
        if keep := self._resume.save_last_n_epochs_state or self._saving.save_last_n_epochs:
            self._remove(self._state_folder(self._epoch_file(epoch - every * keep)))

    def save_at_step(self, *, with_state: bool = False) -> Path:
        """The file of this step, and its state where the options or `with_state` ask for it."""
        path = self._step_file(self._trained.progress.step)
        self._write(path, self._trained.progress.epoch - 1)
        if with_state or self._resume.save_state:
            self._write_state(path)
        return path

    def save_last(self) -> Path:
        path = self._file("", "last")
        self._write(path, self._trained.progress.epoch)
        if self._resume.save_state or self._resume.save_state_on_train_end:
            self._write_state(path)
        return path

    def _file(self, suffix: str, default: str) -> Path:
        name = self._saving.output_name or default
        return self._context.output_dir / f"{name}{suffix}.{self._saving.save_model_as}"

    def _epoch_file(self, epoch: int) -> Path:
        return self._file(f"-{epoch:06d}", "epoch")

    def _step_file(self, step: int) -> Path:
        return self._file(f"-step{step:08d}", "at")

    @staticmethod
    def _state_folder(file: Path) -> Path:
        return file.with_name(f"{file.stem}-state")

    def _write(self, path: Path, epochs: int) -> None:
        if self._context.is_main:
            optimizers.eval_mode(self._trained.optimizer)
            try:
                self._trained.learning.save(path, self._dtype, self._metadata(epochs, self._trained.progress.step))
            except OSError as error:
                raise Failed(f"output_dir: {error}", "what was saved before is still there") from error
            finally:
                optimizers.train_mode(self._trained.optimizer)
            self._context.tell("saved", path=str(path), step=self._trained.progress.step, bytes=path.stat().st_size)
        self._context.accelerator.wait_for_everyone()

    def _write_state(self, file: Path) -> None:
        folder = self._state_folder(file)
        if self._context.is_main:
            part = folder.with_name(f".{folder.name}.{os.getpid()}.part")
            try:
                write_state(part, self._trained, self._context.seed)
                _put_in_place(part, folder)
            except OSError as error:
                raise Failed(f"output_dir: the state '{folder}' could not be written: {error.strerror}") from error
            finally:
                shutil.rmtree(part, ignore_errors=True)
            size = sum(each.stat().st_size for each in folder.iterdir())
            self._context.tell("saved", path=str(folder), step=self._trained.progress.step, bytes=size)
        self._context.accelerator.wait_for_everyone()

    def _remove(self, path: Path) -> None:
        if not self._context.is_main:
            return
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def write_state(folder: Path, trained: Trained, seed: int) -> None:
    folder.mkdir(parents=True)
    try:
        torch.save(trained.state(), folder / STATE)
    except RuntimeError as error:  # so torch tells of a full disk
        raise OSError(28, "the disk is full; free some space") from error
    with (folder / PROGRESS).open("w", encoding="utf-8") as file:
        json.dump({**trained.progress.facts(), "seed": seed, "time": time.time()}, file)
    for name in (STATE, PROGRESS):
        with (folder / name).open("rb") as file:
            os.fsync(file.fileno())


def read_progress(resume: str) -> tuple[Progress, int]:
    """Counters and seed of a state folder. Raises ValueError naming resume."""
    folder = Path(resume).expanduser()
    if not folder.is_dir():
        raise ValueError(f"resume: there is no folder '{resume}'")
    try:
        facts = json.loads((folder / PROGRESS).read_text(encoding="utf-8"))
        return Progress(step=facts["step"], epoch=facts["epoch"], batch=facts["batch"]), facts["seed"]
    except (OSError, ValueError, KeyError):
        raise ValueError(
            f"resume: '{resume}' is not a state of this program; states of sd-scripts cannot be continued, "
            "but network_weights goes on from its LoRA file"
        ) from None


def load_state(resume: str, trained: Trained, progress: Progress, device: torch.device) -> None:
    """Raises ValueError naming resume where the state does not fit these settings."""
    try:
        state = torch.load(Path(resume).expanduser() / STATE, map_location=device, weights_only=True)
    except Exception as error:
        raise ValueError(f"resume: the state in '{resume}' cannot be read: {str(error).splitlines()[0]}") from None
    try:
        trained.load(state, progress)
    except (KeyError, RuntimeError) as error:
        raise ValueError(f"resume: the state in '{resume}' is of other settings: {error}") from None


def _beyond(step: int, keep: int, every: int) -> int:
    """The newest step that the window of `keep` steps has left behind."""
    return (step - keep - 1) // every * every


def _put_in_place(part: Path, folder: Path) -> None:
    old = folder.with_name(f".{folder.name}.{os.getpid()}.old")
    if folder.exists():
        os.replace(folder, old)
    os.replace(part, folder)
    shutil.rmtree(old, ignore_errors=True)
