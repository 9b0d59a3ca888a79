"""Exponential moving average (EMA) of the trained weights, saved in a file with -ema in its name."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from sd_scripts.options.saving import EmaOptions
from sd_scripts.training.trainable import Trainable


class Ema:
    """Averages every tensor of the trainable's state, in float32 on the device that the options name."""

    def __init__(self, trainable: Trainable, options: EmaOptions):
        self._trainable, self.options, self.updates = trainable, options, 0
        self.average = {name: self._on_ema_device(t).clone() for name, t in trainable.state_dict().items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Update the average after optimizer step `step`. The decay of update n is at most (1 + n) / (10 + n), so that
        the initial weights, which carry no training, soon lose their weight in it."""
        if step % self.options.ema_update_interval:
            return
        self.updates += 1
        decay = min(self.options.ema_decay, (1 + self.updates) / (10 + self.updates))
        state = self._trainable.state_dict()
        averages = [self.average[name] for name in state]
        torch._foreach_lerp_(averages, [self._on_ema_device(tensor) for tensor in state.values()], 1 - decay)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Load the average in place of the trained weights, which are restored bit for bit afterwards."""
        before = {name: tensor.detach().cpu().clone() for name, tensor in self._trainable.state_dict().items()}
        self._trainable.load_state_dict(self.average)
        try:
            yield
        finally:
            self._trainable.load_state_dict(before)

    def state(self) -> dict[str, Any]:
        return {"average": self.average, "updates": self.updates}

    def load(self, state: dict[str, Any]) -> None:
        for name, tensor in self.average.items():
            tensor.copy_(state["average"][name])
        self.updates = int(state["updates"])

    def _on_ema_device(self, tensor: Tensor) -> Tensor:
        device = torch.device("cpu") if self.options.ema_device == "cpu" else tensor.device
        return tensor.detach().to(device, torch.float32)
