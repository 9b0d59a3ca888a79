"""One training step: a pure function of tensors that are made outside it.

Nothing here synchronizes with the device: loss and norm stay tensors, which the trainer reads later. That keeps the GPU
busy at small batches, and lets forward and backward be recorded as one CUDA graph (step_graphs), and the update as
another one (update_graph).
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from sd_scripts.families.family import StepInputs
from sd_scripts.library.compile_utils import KnownInputs
from sd_scripts.training.ema import Ema
from sd_scripts.training.step_graphs import StepGraphs
from sd_scripts.training.trainable import Trainable
from sd_scripts.training.weight_update import WeightUpdate

Loss = Callable[[StepInputs], Tensor]
"""Maps the inputs of one micro-step to the loss of each image (B,)."""


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
        self.accumulation, self.scaler = accumulation, scaler
        self._update = WeightUpdate(
            trainable, optimizer, max_grad_norm=max_grad_norm, scaler=scaler, processes=processes
        )
        self.execution = Execution()

    def micro(self, inputs: StepInputs, *, eager: bool = False) -> Tensor:
        """Add the gradients of one batch to those of earlier micro-steps; return its mean loss, on the device.

        `eager`: compiled blocks run uncompiled.
        """
        if self.execution.graphs and not eager:
            return self.execution.graphs.micro(inputs, self._run)
        return self._run(inputs, eager=eager)

    def _run(self, inputs: StepInputs, *, eager: bool = False) -> Tensor:
        self.trainable.gradients.begin()
        if self.execution.cuda_graphs and not eager:
            torch.compiler.cudagraph_mark_step_begin()  # outputs of the last step may be overwritten now
        with self._stance(inputs, eager=eager):
            loss = self.loss(inputs).mean()
            scaled = loss / self.accumulation
            (self.scaler.scale(scaled) if self.scaler else scaled).backward()
        self.trainable.gradients.collect()
        return loss.detach()

    def _stance(self, inputs: StepInputs, *, eager: bool) -> AbstractContextManager[object]:
        """Return the context that tells the compiler's blocks how to run, in forward and backward."""
        if eager:
            return torch.compiler.set_stance("force_eager")
        return self.execution.known(inputs) if self.execution.known else nullcontext()

    def update(self, ema: Ema | None = None) -> Tensor | None:
        """Update the weights with the accumulated gradients, and `ema` if given; return the gradient norm before
        clipping, if it is computed."""
        return self._update.run(ema, self.execution.graphs.update if self.execution.graphs else None)
