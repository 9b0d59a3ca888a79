"""Files and states of a run: names, when they are due, and which old ones go."""

import shutil
from collections.abc import Callable
from pathlib import Path

from sd_scripts.library.safetensors_io import PRECISIONS
from sd_scripts.options.saving import SavingOptions
from sd_scripts.options.training import ResumeOptions
from sd_scripts.training.context import Context, Failed
from sd_scripts.training.progress import Course
from sd_scripts.training.states import Trained, write_state

SAVED_BEFORE = "what was saved before is still there"
Metadata = Callable[[int, int], dict[str, str]]
"""(epochs, steps) -> metadata of a file saved now."""


class Saver:
    """Writes from the main process; every file appears whole or not at all."""

    def __init__(self, context: Context, trained: Trained, course: Course, metadata: Metadata):
        self._context, self._trained, self._course, self._metadata = context, trained, course, metadata
        self._saving, self._resume = context.settings[SavingOptions], context.settings[ResumeOptions]
        self._dtype = PRECISIONS[self._saving.save_precision] if self._saving.save_precision else None
        ratio = self._saving.save_n_epoch_ratio
        self._every_epochs = max(1, course.epochs // ratio) if ratio else self._saving.save_every_n_epochs

    def due_at_step(self) -> bool:
        every = self._saving.save_every_n_steps
        return bool(every and self._trained.progress.step % every == 0)

    def due_at_epoch(self, epoch: int) -> bool:
        return bool(self._every_epochs and epoch % self._every_epochs == 0)

    def at_step(self, *, with_state: bool = False) -> None:
        """The file of this step, and its state where the options or `with_state` ask for it.

        When it was due, the files and states that leave the window of save_last_n_steps go.
        """
        path = self._step_file(self._trained.progress.step)
        self._write(path, self._trained.progress.epoch - 1)
        if with_state or self._resume.save_state:
            self._write_state(path)
        if self.due_at_step():
            self._close_window()

    def _close_window(self) -> None:
        step, every = self._trained.progress.step, self._saving.save_every_n_steps or 1
        if keep := self._saving.save_last_n_steps:
            self._remove_model(self._step_file(_beyond(step, keep, every)))
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
            self._remove_model(self._epoch_file(epoch - every * keep))
        if keep := self._resume.save_last_n_epochs_state or self._saving.save_last_n_epochs:
            self._remove(self._state_folder(self._epoch_file(epoch - every * keep)))

    def save_last(self) -> Path:
        path = self._file("", "last")
        self._write(path, self._trained.progress.epoch)
        if self._resume.save_state or self._resume.save_state_on_train_end:
            self._write_state(path)
        return path

    def _file(self, suffix: str, default: str) -> Path:
        name = self._saving.output_name or default
        return self._context.output_dir / f"{name}{suffix}{self._trained.learning.ending}"

    def _stem(self, file: Path) -> str:
        """Its name without ending; that of a folder has none."""
        return file.name.removesuffix(self._trained.learning.ending)

    def _ema_file(self, file: Path) -> Path:
        return file.with_name(f"{self._stem(file)}-ema{self._trained.learning.ending}")

    def _epoch_file(self, epoch: int) -> Path:
        return self._file(f"-{epoch:06d}", "epoch")

    def _step_file(self, step: int) -> Path:
        return self._file(f"-step{step:08d}", "at")

    def _state_folder(self, file: Path) -> Path:
        return file.with_name(f"{self._stem(file)}-state")

    def _write(self, path: Path, epochs: int) -> None:
        """The file, and beside it the one of the moving average."""
        if self._context.is_main or self._trained.learning.shards:
            with self._trained.averaged():
                self._write_model(path, epochs)
            if ema := self._trained.ema:
                with ema.in_place():
                    self._write_model(self._ema_file(path), epochs)
        self._context.accelerator.wait_for_everyone()

    def _write_model(self, path: Path, epochs: int) -> None:
        metadata = self._metadata(epochs, self._trained.progress.step)
        try:
            self._trained.learning.save(path, self._dtype, metadata)
        except OSError as error:
            raise Failed(f"output_dir: {error}", SAVED_BEFORE) from error
        self._context.tell("saved", path=str(path), step=self._trained.progress.step, bytes=_size(path))

    def _write_state(self, file: Path) -> None:
        folder = self._state_folder(file)
        state = self._trained.state() if self._context.is_main or self._trained.learning.shards else {}
        if self._context.is_main:
            try:
                write_state(folder, state, self._trained, self._course, self._context.seed)
            except OSError as error:
                why = f"output_dir: the state '{folder}' could not be written: {error.strerror}"
                raise Failed(why, SAVED_BEFORE) from error
            self._context.tell("saved", path=str(folder), step=self._trained.progress.step, bytes=_size(folder))
        self._context.accelerator.wait_for_everyone()

    def _remove_model(self, path: Path) -> None:
        self._remove(path)
        self._remove(self._ema_file(path))

    def _remove(self, path: Path) -> None:
        if not self._context.is_main:
            return
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _size(path: Path) -> int:
    """Bytes of a file, or of all files in a folder."""
    return sum(each.stat().st_size for each in (path, *path.rglob("*")) if each.is_file())


def _beyond(step: int, keep: int, every: int) -> int:
    """The newest step that the window of `keep` steps has left behind."""
    return (step - keep - 1) // every * every
