"""One training step: a pure function of tensors that are made outside it.

Nothing here synchronizes with the device: loss and norm stay tensors, which the trainer reads later. That keeps the GPU
busy at small batches, and lets forward and backward be recorded as one CUDA graph (step_graphs).
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sd_scripts.library.compile_utils import KnownInputs
from sd_scripts.library.optimizers import updater
from sd_scripts.library.streams import on_default_stream, updates_on_default_stream
from sd_scripts.training.step_graphs import StepGraphs
from sd_scripts.training.trainable import Trainable

Loss = Callable[[Mapping[str, Tensor]], Tensor]
"""Maps the inputs of one micro-step to the loss of each image (B,)."""


class HalfScaler(torch.amp.GradScaler):
    """A GradScaler that accepts the fp16 gradients of full_fp16; PyTorch's refuses them, as small ones underflow."""

    def _unscale_grads_(self, optimizer: Any, inv_scale: Tensor, found_inf: Tensor, allow_fp16: bool) -> Any:
        return super()._unscale_grads_(optimizer, inv_scale, found_inf, True)


@dataclass(frozen=True)
class Execution:
    """How the forward and backward of micro-steps are launched; by default, kernel by kernel."""

    cuda_graphs: bool = False
    """Compiled blocks replay CUDA graphs of their own."""
    known: KnownInputs | None = None
    """Skips most guards of compiled blocks."""
    graphs: StepGraphs | None = None
    """Records and replays whole micro-steps."""


class TrainStep:
    """Runs forward, loss and backward, and after `accumulation` of these clipping and the optimizer step."""

    def __init__(
        self,
        loss: Loss,
        trainable: Trainable,
        optimizer: torch.optim.Optimizer,
        *,
        max_grad_norm: float = 1.0,
        accumulation: int = 1,
        scaler: torch.amp.GradScaler | None = None,
        processes: int = 1,
    ):
        self.loss, self.trainable, self.optimizer = loss, trainable, optimizer
        self.max_grad_norm, self.accumulation, self.scaler = max_grad_norm, accumulation, scaler
        self.processes = processes
        self.execution = Execution()

    def micro(self, inputs: dict[str, Tensor], *, eager: bool = False) -> Tensor:
        """Add the gradients of one batch to those of earlier micro-steps; return its mean loss, on the device.

        `eager`: compiled blocks run uncompiled.
        """
        if self.execution.graphs and not eager:
            return self.execution.graphs.micro(inputs, self._run)
        return self._run(inputs, eager=eager)

    def _run(self, inputs: Mapping[str, Tensor], *, eager: bool = False) -> Tensor:
        if self.execution.cuda_graphs and not eager:
            torch.compiler.cudagraph_mark_step_begin()  # outputs of the last step may be overwritten now
        with self._stance(inputs, eager=eager):
            loss = self.loss(inputs).mean()
            scaled = loss / self.accumulation
            (self.scaler.scale(scaled) if self.scaler else scaled).backward()
        self.trainable.collect_gradients()
        return loss.detach()

    def _stance(self, inputs: Mapping[str, Tensor], *, eager: bool) -> AbstractContextManager[object]:
        """Return the context that tells the compiler's blocks how to run, in forward and backward."""
        if eager:
            return torch.compiler.set_stance("force_eager")
        return self.execution.known(inputs) if self.execution.known else nullcontext()

    def update(self) -> Tensor | None:
        """Update the weights with the accumulated gradients; return the gradient norm before clipping."""
        if self.processes > 1:
            self.trainable.average_gradients(self.processes)
        if self.scaler:
            self.scaler.unscale_(self.optimizer)
        clips = self.max_grad_norm > 0 or self.trainable.skips_nonfinite
        norm = self.trainable.clip(self.max_grad_norm) if clips else None
        with self._stream_of_update():
            if self.scaler:
                self.scaler.step(self.optimizer)
                self.scaler.update()
            else:
                self.optimizer.step()
        self.trainable.updated()
        return norm

    def _stream_of_update(self) -> AbstractContextManager[object]:
        if not updates_on_default_stream(updater(self.optimizer)):
            return nullcontext()
        device = next(p.device for group in self.optimizer.param_groups for p in group["params"])
        return on_default_stream(device)
