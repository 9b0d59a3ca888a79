"""Exponential moving average (EMA) of the trained weights, saved in a file with -ema in its name."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from sd_scripts.options.saving import EmaOptions
from sd_scripts.training.methods.method import Trainable


class Ema:
    """Averages every tensor of the trainable's state, in float32 on the device that the options name."""

    def __init__(self, trainable: Trainable, options: EmaOptions):
        self._trainable = trainable
        self.options = options
        self.updates = 0
        self.average = {name: self._on_ema_device(t).clone() for name, t in trainable.state_dict().items()}
        self._weight = torch.zeros((), device=next(iter(self.average.values())).device)
        """The weight of the new values in a recorded update."""

    @property
    def on_device_of_weights(self) -> bool:
        return self.options.ema_device != "cpu"

    def due(self, step: int) -> bool:
        """Return whether the average is updated after optimizer step `step`."""
        return step % self.options.ema_update_interval == 0

    @torch.no_grad()
    def update(self) -> None:
        """Update the average."""
        weight = self._next_weight()
        state = self._trainable.state_dict()
        averages = [self.average[name] for name in state]
        torch._foreach_lerp_(averages, [self._on_ema_device(tensor) for tensor in state.values()], weight)

    def fill_scalars(self) -> None:
        """Begin an update that was recorded by `launch`, and count it."""
        self._weight.fill_(self._next_weight())

    @torch.no_grad()
    def launch(self) -> None:
        """Launch what an update computes, to be recorded; tensor by tensor, since only so a weight on the device can be
        read."""
        for name, tensor in self._trainable.state_dict().items():
            self.average[name].lerp_(self._on_ema_device(tensor), self._weight)

    def _next_weight(self) -> float:
        """Count an update; return the weight of the new values in it. The decay of update n is at most
        (1 + n) / (10 + n), so that the initial weights, which carry no training, soon lose their weight."""
        self.updates += 1
        return 1 - min(self.options.ema_decay, (1 + self.updates) / (10 + self.updates))

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
