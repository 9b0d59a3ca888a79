"""Files and states of a run: names, when they are due, and which old ones go."""

import logging
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

from sd_scripts.library.safetensors_io import GONE, PRECISIONS, beside
from sd_scripts.options.saving import SavingOptions
from sd_scripts.options.training import ResumeOptions
from sd_scripts.runs.outputs import STATE_ENDING
from sd_scripts.training.context import Context, Failed
from sd_scripts.training.faults import SAVED_BEFORE
from sd_scripts.training.outputs import OwnOutputs
from sd_scripts.training.progress import Course
from sd_scripts.training.states import Trained, write_state

logger = logging.getLogger(__name__)

Metadata = Callable[[int, int], dict[str, str]]
"""(epochs, steps) -> metadata of a file saved now."""


class Saver:
    """Writes from the main process; every file appears whole or not at all."""

    def __init__(
        self,
        context: Context,
        trained: Trained,
        course: Course,
        metadata: Metadata,
        outputs: OwnOutputs,
        moved: Callable[[dict[Path, Path]], None] = lambda moved: None,
    ):
        """`moved` hears which files of an earlier run were renamed, old -> new."""
        self._context, self._trained, self._course, self._metadata = context, trained, course, metadata
        self._outputs, self._moved = outputs, moved
        self._saving, self._resume = context.settings[SavingOptions], context.settings[ResumeOptions]
        self._dtype = PRECISIONS[self._saving.save_precision] if self._saving.save_precision else None
        ratio = self._saving.save_n_epoch_ratio
        self._every_epochs = max(1, course.epochs // ratio) if ratio else self._saving.save_every_n_epochs

    def due_at_step(self) -> bool:
        every = self._saving.save_every_n_steps
        return bool(every and self._trained.progress.step % every == 0)

    def due_at_epoch(self, epoch: int) -> bool:
        return bool(self._every_epochs and epoch % self._every_epochs == 0)

    def at_step(self, *, with_state: bool = False, must: bool = False) -> None:
        """The file of this step, and its state where the options or `with_state` ask for it.

        When it was due, the files and states that left the window of save_last_n_steps go. Where they cannot be
        written, the run goes on and the next save tries again, unless this one `must` be.
        """
        progress = self._trained.progress
        with_state = with_state or self._resume.save_state
        saved = self._save(self._step_file(progress.step), progress.epoch - 1, with_state=with_state, must=must)
        if saved and self.due_at_step():
            self._close_window_of_steps(progress.step)

    def at_epoch(self, epoch: int) -> None:
        """The same at the end of an epoch, with save_last_n_epochs."""
        if self._save(self._epoch_file(epoch), epoch, with_state=self._resume.save_state):
            self._close_window_of_epochs(epoch)

    def tidy(self) -> None:
        """What the run that this one goes on from would have removed, had it lived."""
        progress, course = self._trained.progress, self._course
        if every := self._saving.save_every_n_steps:  # the last step is saved under another name
            self._close_window_of_steps(min(progress.step, course.max_steps - 1) // every * every)
        if every := self._every_epochs:
            self._close_window_of_epochs(min(progress.epoch - 1, course.epochs - 1) // every * every)

    def save_last(self) -> Path:
        path = self._file("", "last")
        with_state = self._resume.save_state or self._resume.save_state_on_train_end
        self._save(path, self._trained.progress.epoch, with_state=with_state, must=True)
        return path

    def _save(self, path: Path, epochs: int, *, with_state: bool, must: bool = False) -> bool:
        """Whether all of it was written. The state is tried in any case: it is what cannot be made again."""
        self._context.phase("saving")
        gone = self._context.is_main and not self._context.output_dir.is_dir()
        self._context.keep_telling()
        if gone:
            self._context.warn(f"output_dir: '{self._context.output_dir}' was gone and is made again")
        failed = [*self._write(path, epochs), *(self._write_state(path) if with_state else ())]
        if failed and must:
            raise Failed(failed[0], SAVED_BEFORE)
        for why in failed:
            self._context.warn(f"{why}. The run goes on; {SAVED_BEFORE}, and the next save tries again")
        return not failed

    def _close_window_of_steps(self, step: int) -> None:
        every, models = self._saving.save_every_n_steps or 1, self._saving.save_last_n_steps
        states = self._resume.save_last_n_steps_state or models
        last_model, last_state = (keep and _beyond(step, keep, every) for keep in (models, states))
        self._close_window(self._step_file, every, last_model, last_state)

    def _close_window_of_epochs(self, epoch: int) -> None:
        every, models = self._every_epochs or 1, self._saving.save_last_n_epochs
        states = self._resume.save_last_n_epochs_state or models
        last_model, last_state = (keep and epoch - every * keep for keep in (models, states))
        self._close_window(self._epoch_file, every, last_model, last_state)

    def _close_window(
        self, file: Callable[[int], Path], every: int, last_model: int | None, last_state: int | None
    ) -> None:
        """Remove what this run has saved up to these steps or epochs; None: nothing. More than the last one, since a
        process that was killed may have left some."""
        if not self._context.is_main:
            return
        begin = re.escape(self._stem(file(0)).rstrip("0"))
        names = (path.name for path in self._context.output_dir.iterdir())
        numbers = {int(found[1]) for name in names if (found := re.match(rf"{begin}(\d+)", name))}
        for number in sorted(number for number in numbers if number % every == 0):
            if last_model is not None and number <= last_model:
                self._remove_model(file(number))
            if last_state is not None and number <= last_state:
                self._remove(self._state_folder(file(number)))

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
        return file.with_name(f"{self._stem(file)}{STATE_ENDING}")

    def _write(self, path: Path, epochs: int) -> list[str]:
        """The file, and beside it the one of the moving average; returns why one could not be written."""
        failed = []
        if self._context.is_main or self._trained.learning.shards:
            with self._trained.averaged():
                failed += self._write_model(path, epochs)
            if ema := self._trained.ema:
                with ema.in_place():
                    failed += self._write_model(self._ema_file(path), epochs)
        self._context.accelerator.wait_for_everyone()
        return failed

    def _write_model(self, path: Path, epochs: int) -> list[str]:
        metadata = self._metadata(epochs, self._trained.progress.step)
        try:
            self._make_room(path)
            self._trained.learning.save(path, self._dtype, metadata)
        except OSError as error:
            return [f"output_dir: {error}"]
        self._tell_saved(path)
        return []

    def _make_room(self, path: Path) -> None:
        """Keep what is not this run's under another name."""
        if not self._context.is_main:
            return
        announced = self._outputs.kept
        moved = self._outputs.make_room(path)
        for old, new in moved.items():
            if old in announced:
                logger.info("'%s' of an earlier run is now '%s'", old, new.name)
            else:
                self._context.warn(f"output_name: another run wrote '{old}' meanwhile; it is kept as '{new.name}'")
        if moved:
            self._moved(moved)

    def _tell_saved(self, path: Path) -> None:
        if not self._context.is_main:
            return
        written = self._outputs.wrote(path)
        facts = written._asdict() if written else {}
        self._context.tell("saved", path=str(path), step=self._trained.progress.step, **facts)

    def _write_state(self, file: Path) -> list[str]:
        folder, failed = self._state_folder(file), []
        state = self._trained.state() if self._context.is_main or self._trained.learning.shards else {}
        if self._context.is_main:
            try:
                self._make_room(folder)
                write_state(folder, state, self._trained, self._course, self._context.seed)
                self._tell_saved(folder)
                for replaced in self._outputs.replaced_states(folder):
                    self._remove(replaced)
            except OSError as error:
                failed = [f"output_dir: the state '{folder}' could not be written: {error.strerror}"]
        self._context.accelerator.wait_for_everyone()
        return failed

    def _remove_model(self, path: Path) -> None:
        self._remove(path)
        self._remove(self._ema_file(path))

    def _remove(self, path: Path) -> None:
        if not self._context.is_main or not self._outputs.owns(path):
            return
        if path.is_dir():  # out of sight first: half a folder under its name could be taken for a whole one
            gone = beside(path, GONE)
            os.replace(path, gone)
            shutil.rmtree(gone, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _beyond(step: int, keep: int, every: int) -> int:
    """The newest step that the window of `keep` steps has left behind."""
    return (step - keep - 1) // every * every
