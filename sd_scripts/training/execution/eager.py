"""The training step, kernel by kernel. Whatever else runs a step computes the same.

A step is a pure function of tensors that are made outside it, and nothing in it waits for the device: loss and norm
stay tensors, which are read later. That keeps the GPU busy at small batches, and lets both halves of a step be recorded
as CUDA graphs (recorded.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from sd_scripts.data.batch import Batch
from sd_scripts.families.common.family import StepInputs
from sd_scripts.library.optim.lr_schedulers import advance
from sd_scripts.library.optim.optimizers import updater
from sd_scripts.library.optim.recordable import RecordableOptimizer
from sd_scripts.library.streams import on_default_stream, updates_on_default_stream
from sd_scripts.training.execution.runner import Launch, StepResult
from sd_scripts.training.execution.speed_log import shape_of
from sd_scripts.training.methods.method import Trainable
from sd_scripts.training.progress import Progress
from sd_scripts.training.saving.ema import Ema

Loss = Callable[[StepInputs], Tensor]
"""Maps the inputs of one micro-step to the loss of each image (B,)."""


@dataclass(kw_only=True)
class Eager:
    """Runs steps eagerly."""

    trainable: Trainable
    optimizer: Optimizer
    loss: Loss
    inputs: Callable[[Batch, int], StepInputs]
    """Makes the inputs of a batch, given its number within the step. A step that is repeated draws the same."""
    progress: Progress = field(default_factory=Progress)
    scheduler: LRScheduler | None = None
    ema: Ema | None = None
    scaler: torch.amp.GradScaler | None = None
    accumulation: int = 1
    max_grad_norm: float = 1.0
    processes: int = 1
    mean: Callable[[Tensor], Tensor] = lambda loss: loss
    """Averages a loss over the processes."""
    consistent: Callable[[], AbstractContextManager[object]] = nullcontext
    """Entered while weights do not change, so that another thread may save them."""
    inspect: Callable[[Tensor], object] | None = None
    """Called with the loss when all gradients of a step are collected."""
    repeatable: bool = True
    """Whether a step that fails now can be repeated, since no weight has changed."""

    def step(self, batches: Sequence[Batch], launch: Launch | None = None) -> StepResult:
        """Train one step. `launch` lets another runner launch the two halves."""
        launch = launch or self
        self.repeatable = True
        with self.consistent():
            loss = self.accumulate(batches, launch.micro_step)
            self.repeatable = False
            loss = self.mean(loss)
        if self.inspect:
            self.inspect(loss)
        ema = self.ema if self.ema and self.ema.due(self.progress.step + 1) else None
        norm = launch.update(ema)
        self.progress.step += 1
        if self.scheduler:
            advance(self.scheduler, loss)
        return StepResult(loss=loss, norm=norm, shape=shape_of(batches))

    def accumulate(self, batches: Sequence[Batch], micro_step: Callable[[StepInputs], Tensor]) -> Tensor:
        """Collect the gradients of a step; return its mean loss."""
        losses = [micro_step(self.inputs(batch, number)) for number, batch in enumerate(batches)]
        return torch.stack(losses).mean()

    def micro_step(self, inputs: StepInputs) -> Tensor:
        gradients = self.trainable.gradients
        gradients.begin()
        loss = self.loss(inputs).mean()
        share = loss / self.accumulation
        (self.scaler.scale(share) if self.scaler else share).backward()
        gradients.collect()
        return loss.detach()

    def update(self, ema: Ema | None, *, recorded: RecordableOptimizer | None = None) -> Tensor | None:
        """As Launch.update. `recorded`: launch the contents of a CUDA graph, which reads all scalars from the
        device."""
        gradients = self.trainable.gradients
        scaler = self.scaler
        if self.processes > 1:
            gradients.average(self.processes)
        if scaler:
            scaler.unscale_(self.optimizer)
        clips = self.max_grad_norm > 0 or self.trainable.skips_nonfinite
        norm = gradients.clip(self.max_grad_norm) if clips else None
        with self._stream_of_update():
            if scaler:
                scaler.step(self.optimizer)
                scaler.update()
            elif recorded:
                recorded.launch()
            else:
                self.optimizer.step()
        self.trainable.updated()
        self.trainable.limit_norms()
        if ema and recorded:
            ema.launch()
        elif ema:
            ema.update()
        return norm

    def forget(self) -> None:
        """Do nothing: nothing is recorded."""

    def _stream_of_update(self) -> AbstractContextManager[object]:
        if not updates_on_default_stream(updater(self.optimizer)):
            return nullcontext()
        device = next(p.device for group in self.optimizer.param_groups for p in group["params"])
        return on_default_stream(device)


class HalfScaler(torch.amp.GradScaler):
    """A GradScaler that accepts the fp16 gradients of full_fp16; PyTorch's refuses them, as small ones underflow."""

    def _unscale_grads_(self, optimizer: Any, inv_scale: Tensor, found_inf: Tensor, allow_fp16: bool) -> Any:
        return super()._unscale_grads_(optimizer, inv_scale, found_inf, True)

    def restart(self) -> None:
        """Forget that the gradients of this step were unscaled."""
        self._per_optimizer_states.clear()
