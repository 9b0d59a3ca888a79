"""Saves the last complete step of a run that an error or SIGTERM is about to end."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import torch

from sd_scripts.training.context import Context
from sd_scripts.training.process.error_hints import SAVED_BEFORE, brief
from sd_scripts.training.saving.checkpoints import Saver
from sd_scripts.training.saving.train_state import TrainState


class EmergencySaver:
    """Knows which step was the last complete one, and saves its state while the next one may be under way."""

    def __init__(self, context: Context, train_state: TrainState, saver: Saver, diverges: Callable[[], object]):
        """`diverges` returns whether the last steps were not finite, so that nothing is worth saving."""
        self._context, self._train_state, self._saver, self._diverges = context, train_state, saver, diverges
        self._first = train_state.progress.step
        self._complete = replace(train_state.progress)
        on_gpus = context.world > 1 and context.device.type == "cuda"
        self._updated = torch.cuda.Event() if on_gpus else None

    def note(self) -> None:
        """Record that weights, optimizer and counters match a complete step."""
        self._complete = replace(self._train_state.progress)

    def note_step(self) -> None:
        """Record that a step is complete once the device has finished the queued work."""
        self.note()
        if self._updated:
            self._updated.record()

    def save(self) -> None:
        """Save the state of the last complete step before an error ends the run."""
        progress = self._train_state.progress
        complete = self._complete
        context = self._context
        if complete.step == self._first or self._diverges():
            return
        if self._train_state.trainable.shards:  # other processes may be gone, and this one has only its own shard
            steps = complete.step - (context.last_state[0] if context.last_state else self._first)
            if steps and context.is_main:
                context.warn(
                    f"save_state: progress since the last state (steps: {steps}) is lost: with FSDP no single process "
                    "can save a state. Lower save_every_n_steps to lose less"
                )
            return
        progress.step, progress.epoch, progress.batch = complete.step, complete.epoch, complete.batch
        try:
            if self._train_state.is_finite():
                context.emergency_state = self._saver.save_in_emergency()
        except Exception as error:  # the GPU may be lost, and the weights with it
            reason = brief(error)
            context.warn(f"the state of step {progress.step} could not be saved: {reason}")

    def save_before_exit(self, consistent: bool) -> None:
        """Save in the main process, which exits in mid-step; `consistent`: the weights match the last step."""
        if consistent:
            with self._stream_of_last_step():
                self.save()
        remedy = self._context.emergency_advice() or SAVED_BEFORE
        self._context.emit("failed", error="SIGTERM during a step that took too long to finish", remedy=remedy)

    def _stream_of_last_step(self) -> AbstractContextManager[object]:
        """Return a stream that waits for the last complete step and for nothing queued since, which may be a collective
        that never ends."""
        if not self._updated:
            return nullcontext()
        stream = torch.cuda.Stream(self._context.device)
        stream.wait_event(self._updated)
        return torch.cuda.stream(stream)
