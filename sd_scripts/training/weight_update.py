"""What follows the last backward of a step: the gradients become new weights."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from sd_scripts.library.optimizers import updater
from sd_scripts.library.recordable import recordable
from sd_scripts.library.streams import on_default_stream, updates_on_default_stream
from sd_scripts.training.ema import Ema
from sd_scripts.training.step_graphs import Key
from sd_scripts.training.trainable import Trainable
from sd_scripts.training.update_graph import UpdateGraph

CHANGES = ("params", "lr", "initial_lr", "name")
"""Entries of optimizer groups that no graph contains, or not as values."""


class HalfScaler(torch.amp.GradScaler):
    """A GradScaler that accepts the fp16 gradients of full_fp16; PyTorch's refuses them, as small ones underflow."""

    def _unscale_grads_(self, optimizer: Any, inv_scale: Tensor, found_inf: Tensor, allow_fp16: bool) -> Any:
        return super()._unscale_grads_(optimizer, inv_scale, found_inf, True)

    def restart(self) -> None:
        """Forget that the gradients of this step were unscaled."""
        self._per_optimizer_states.clear()


class WeightUpdate:
    """Averages the gradients of the processes, unscales and clips them, steps the optimizer, limits norms, refreshes
    the model's copies and updates the EMA."""

    def __init__(
        self,
        trainable: Trainable,
        optimizer: Optimizer,
        *,
        max_grad_norm: float,
        scaler: torch.amp.GradScaler | None,
        processes: int,
    ):
        self.trainable, self.optimizer, self.scaler = trainable, optimizer, scaler
        self.max_grad_norm, self.processes = max_grad_norm, processes
        self._ema: Ema | None = None
        """Updated with this step, in the same graph."""

    def run(self, ema: Ema | None, graph: UpdateGraph | None) -> Tensor | None:
        """Update the weights and, if given, the EMA; return the gradient norm before clipping if it is computed."""
        self._ema = ema if ema and ema.on_device_of_weights else None
        if graph and self.trainable.gradients.settle():
            norm = graph.run(self, self._fixed(), averages=self._ema is not None)
        else:
            norm = self.eager()
        if ema and not self._ema:
            ema.update()
        return norm

    def _fixed(self) -> Key:
        """Return what differs between the graphs of two updates: values, and which tensors they read and write."""
        groups = self.optimizer.param_groups
        values = [tuple(value for name, value in group.items() if name not in CHANGES) for group in groups]
        return id(self.optimizer.state), *(id(group["lr"]) for group in groups), *values

    def eager(self) -> Tensor | None:
        if self.processes > 1:
            self.trainable.gradients.average(self.processes)
        norm = self._update(self.optimizer.step)
        if self._ema:
            self._ema.update()
        return norm

    def _update(self, step: Callable[[], object]) -> Tensor | None:
        """Update the weights; `step` is the optimizer's."""
        if self.scaler:
            self.scaler.unscale_(self.optimizer)
        clips = self.max_grad_norm > 0 or self.trainable.skips_nonfinite
        norm = self.trainable.gradients.clip(self.max_grad_norm) if clips else None
        with self._stream_of_update():
            if self.scaler:
                self.scaler.step(self.optimizer)
                self.scaler.update()
            else:
                step()
        self.trainable.updated()
        self.trainable.limit_norms()
        return norm

    def _stream_of_update(self) -> AbstractContextManager[object]:
        if not updates_on_default_stream(updater(self.optimizer)):
            return nullcontext()
        device = next(p.device for group in self.optimizer.param_groups for p in group["params"])
        return on_default_stream(device)

    def begin_recording(self) -> bool:
        return recordable(self.optimizer).begin_recording()

    def launch(self) -> Tensor | None:
        norm = self._update(recordable(self.optimizer).launch)
        if self._ema:
            self._ema.launch()
        return norm

    def before_replay(self) -> None:
        recordable(self.optimizer).fill_scalars()
        if self._ema:
            self._ema.fill_scalars()

    def replayed(self) -> None:
        recordable(self.optimizer).replayed()
        self.trainable.gradients.used_by_graph()

    def restart(self) -> None:
        if isinstance(self.scaler, HalfScaler):
            self.scaler.restart()
        self.trainable.gradients.written_by_graph()
