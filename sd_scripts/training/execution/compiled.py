"""Steps whose blocks are compiled."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

import torch
from torch import Tensor

from sd_scripts.data.batch import Batch
from sd_scripts.families.common.family import StepInputs
from sd_scripts.library.compile_utils import KnownInputs
from sd_scripts.training.execution.eager import Eager
from sd_scripts.training.execution.runner import StepResult
from sd_scripts.training.saving.ema import Ema


class Compiled:
    """Sets the compiler's assumptions while forward and backward run. The update is not compiled."""

    def __init__(self, eager: Eager, *, skips_guards: bool, cuda_graphs: bool):
        """`skips_guards`: most guards, once inputs of a shape are known; `cuda_graphs`: blocks replay graphs of their
        own."""
        self._eager, self._cuda_graphs = eager, cuda_graphs
        self._known = KnownInputs() if skips_guards else None

    def step(self, batches: Sequence[Batch]) -> StepResult:
        return self._eager.step(batches, self)

    def micro_step(self, inputs: StepInputs) -> Tensor:
        if self._cuda_graphs:
            torch.compiler.cudagraph_mark_step_begin()  # outputs of the last step may be overwritten now
        with self._known(inputs) if self._known else nullcontext():
            return self._eager.micro_step(inputs)

    def update(self, ema: Ema | None) -> Tensor | None:
        return self._eager.update(ema)

    def forget(self) -> None:
        """Do nothing: the graphs of blocks belong to the compiler."""
