"""Checkpoints of a run: file names, when they are due, and which old ones are removed."""

import os
import re
import time
from collections.abc import Callable
from itertools import chain
from pathlib import Path

from sd_scripts.formats.disk import why_not_written
from sd_scripts.options.saving import SavingOptions
from sd_scripts.options.training import ResumeOptions
from sd_scripts.runs.outputs import EPOCH, LAST, STEP
from sd_scripts.training.context import Context, Failed
from sd_scripts.training.process.error_hints import SAVED_BEFORE
from sd_scripts.training.saving import rescue
from sd_scripts.training.saving.train_state import TrainState
from sd_scripts.training.saving.writer import Failure, Writer


class Saver:
    """Decides when a file or state is due, and saves it elsewhere if output_dir cannot be written to."""

    def __init__(self, context: Context, train_state: TrainState, writer: Writer):
        self._context, self._train_state, self._writer = context, train_state, writer
        self._saving = context.settings[SavingOptions]
        self._resume = context.settings[ResumeOptions]
        self._every_epochs = train_state.train_plan.epochs_between_saves(self._saving)

    def due_at_step(self) -> bool:
        every = self._saving.save_every_n_steps
        return bool(every and self._train_state.progress.step % every == 0)

    def due_at_epoch(self, epoch: int) -> bool:
        return bool(self._every_epochs and epoch % self._every_epochs == 0)

    def at_step(self, *, with_state: bool = False) -> None:
        """Save the file of this step, and its state if the options or `with_state` ask for it.

        If it was due, remove the files and states outside the window of save_last_n_steps. If writing fails, the run
        continues and the next save tries again.
        """
        progress = self._train_state.progress
        with_state = with_state or self._resume.save_state
        saved = self._save(self._step_file(progress.step), progress.epoch - 1, with_state=with_state)
        if saved and self.due_at_step():
            self._close_window_of_steps(progress.step)

    def at_epoch(self, epoch: int) -> None:
        """The same at the end of an epoch, with save_last_n_epochs."""
        if self._save(self._epoch_file(epoch), epoch, with_state=self._resume.save_state):
            self._close_window_of_epochs(epoch)

    def tidy(self) -> None:
        """Remove files that the resumed run would have removed, had it not died."""
        progress = self._train_state.progress
        train_plan = self._train_state.train_plan
        if every := self._saving.save_every_n_steps:  # the last step is saved under a different name
            self._close_window_of_steps(min(progress.step, train_plan.max_steps - 1) // every * every)
        if every := self._every_epochs:
            self._close_window_of_epochs(min(progress.epoch - 1, train_plan.epochs - 1) // every * every)

    def save_last(self) -> Path:
        path = self._file("", LAST)
        with_state = self._resume.save_state or self._resume.save_state_on_train_end
        progress, train_plan = self._train_state.progress, self._train_state.train_plan
        epochs = min(progress.epoch, train_plan.epochs)  # after the last epoch, progress names the next
        return self._save_for_sure(path, epochs, with_state=with_state, patient=True)

    def save_and_stop(self) -> Path:
        """Save file and state of a run that stops here, in output_dir or elsewhere."""
        progress = self._train_state.progress
        return self._save_for_sure(self._step_file(progress.step), progress.epoch - 1, with_state=True, patient=False)

    def save_in_emergency(self) -> Path | None:
        """Save the state, and an adapter's file, of a run that an error is about to end; return None if that fails.

        This process does it alone, since the others may be gone.
        """
        if not self._context.is_main:
            return None
        progress = self._train_state.progress
        wanted = self._step_file(progress.step)
        failures: list[Failure] = []
        for folder in chain([wanted.parent], rescue.fallback_folders(wanted.parent, self._context.run_dir, failures)):
            file = folder / wanted.name
            state = self._writer.state_folder(file)
            failures += (failed := self._writer.write_state(state))
            if not failed:
                if self._train_state.trainable.is_network:
                    self._writer.write_model(file, progress.epoch - 1)
                return state
        return None

    def _save(self, path: Path, epochs: int, *, with_state: bool) -> bool:
        """Return whether everything was written."""
        self._begin_to_save()
        failures = self._writer.write(path, epochs, with_state=with_state)
        for failure in failures:
            self._context.warn(f"{failure.text}. The run continues; {SAVED_BEFORE}, and the next save tries again")
        return not failures

    def _save_for_sure(self, path: Path, epochs: int, *, with_state: bool, patient: bool) -> Path:
        """Return where it was written. If output_dir fails, write elsewhere first; then retry for a while, if
        `patient` or if nothing else could be written either."""

        def written(at: Path) -> list[Failure]:
            failures = self._writer.write(at, epochs, with_state=with_state)
            return self._context.agreed(failures)  # type: ignore[no-any-return]

        self._begin_to_save()
        if not (failures := written(path)):
            return path
        rescued = self._rescue(path, failures, written)
        if rescue.may_pass(failures) and (patient or not rescued):
            self._context.warn(
                f"{failures[0].text}. The run tries again for {rescue.WAIT / 60:.0f} minutes: free some space in "
                f"'{path.parent}'" + (f"; for now it is in '{rescued.parent}'" if rescued else "")
            )
            if self._wait(path, rescued, written):
                return path
        if not rescued:
            raise Failed(failures[0].text, SAVED_BEFORE)
        self._context.warn(f"{failures[0].text}. It is in '{rescued.parent}' instead")
        return rescued

    def _rescue(self, path: Path, failures: list[Failure], written: Callable[[Path], list[Failure]]) -> Path | None:
        """Write to the first fallback folder that works."""
        folders = rescue.fallback_folders(path.parent, self._context.run_dir, failures)
        while folder := self._context.agreed(next(folders, None) if self._context.is_main else None):
            if not written(folder / path.name):
                return Path(folder / path.name)
            if self._context.is_main:
                rescue.remove_copy(folder)
        return None

    def _wait(self, path: Path, rescued: Path | None, written: Callable[[Path], list[Failure]]) -> bool:
        """Wait for room in output_dir; return whether it was written there in the end."""
        files = rescued.parent.rglob("*") if rescued else ()
        end = time.monotonic() + rescue.WAIT
        size = sum(each.stat().st_size for each in files if each.is_file())
        main = self._context.is_main
        while True:
            outlook = self._context.agreed(rescue.look_for_room(path.parent, size, end) if main else None)
            if outlook == "over":
                return False
            if outlook == "room" and not written(path):
                if rescued and main:
                    rescue.remove_copy(rescued.parent)
                return True

    def _begin_to_save(self) -> None:
        self._context.phase("saving")
        gone = self._context.is_main and not os.path.isdir(self._context.output_dir)
        self._context.reopen_log()
        if gone:
            self._context.warn(f"output_dir: '{self._context.output_dir}' was deleted and has been recreated")

    def _close_window_of_steps(self, step: int) -> None:
        every = self._saving.save_every_n_steps or 1
        models = self._saving.save_last_n_steps
        states = self._resume.save_last_n_steps_state or models
        last_model, last_state = (keep and (step - keep - 1) // every * every for keep in (models, states))
        self._close_window(self._step_file, every, last_model, last_state)

    def _close_window_of_epochs(self, epoch: int) -> None:
        every = self._every_epochs or 1
        models = self._saving.save_last_n_epochs
        states = self._resume.save_last_n_epochs_state or models
        last_model, last_state = (keep and epoch - every * keep for keep in (models, states))
        self._close_window(self._epoch_file, every, last_model, last_state)

    def _close_window(
        self, file: Callable[[int], Path], every: int, last_model: int | None, last_state: int | None
    ) -> None:
        """Remove files that this run saved up to these steps or epochs (None: nothing). That may be several, since a
        killed process may have left some."""
        if not self._context.is_main:
            return
        begin = re.escape(self._writer.stem(file(0)).rstrip("0"))
        try:
            names = os.listdir(self._context.output_dir)
        except OSError as error:
            self._context.warn_once("remove", f"output_dir: nothing can be removed: {why_not_written(error)}")
            return
        numbers = {int(found[1]) for name in names if (found := re.match(rf"{begin}(\d+)", name))}
        for number in sorted(number for number in numbers if number % every == 0):
            if last_model is not None and number <= last_model:
                self._writer.remove_model(file(number))
            if last_state is not None and number <= last_state:
                self._writer.remove(self._writer.state_folder(file(number)))

    def _file(self, suffix: str, default: str) -> Path:
        name = self._saving.output_name or default
        return self._context.output_dir / f"{name}{suffix}{self._writer.ending}"

    def _epoch_file(self, epoch: int) -> Path:
        return self._file(f"-{epoch:06d}", EPOCH)

    def _step_file(self, step: int) -> Path:
        return self._file(f"-step{step:08d}", STEP)
