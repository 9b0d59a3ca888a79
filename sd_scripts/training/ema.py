"""A moving average of what is trained, kept beside it and saved with -ema in its name."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from sd_scripts.options.saving import EmaOptions
from sd_scripts.training.trainable import Trainable

Values = dict[str, Tensor]


class Ema:
    """Of every tensor that the learning's state holds, in float32 on the device that the options name."""

    def __init__(self, trainable: Trainable, options: EmaOptions):
        self._trainable, self.options, self.updates = trainable, options, 0
        self.average: Values = {name: self._home(t).clone() for name, t in trainable.state_dict().items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """After optimizer step `step`. The average of the first updates follows faster, since the weights that it
        began with say nothing of the training: the decay is at most (1 + n) / (10 + n) at update n."""
        if step % self.options.ema_update_interval:
            return
        self.updates += 1
        decay = min(self.options.ema_decay, (1 + self.updates) / (10 + self.updates))
        state = self._trainable.state_dict()
        averages = [self.average[name] for name in state]
        torch._foreach_lerp_(averages, [self._home(tensor) for tensor in state.values()], 1 - decay)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Meanwhile the average takes the place of what is trained, which comes back bit for bit."""
        before = {name: tensor.detach().cpu().clone() for name, tensor in self._trainable.state_dict().items()}
        self._trainable.load_state_dict(self.average)
        try:
            yield
        finally:
            self._trainable.load_state_dict(before)

    def state(self) -> dict[str, object]:
        return {"average": self.average, "updates": self.updates}

    def load(self, state: dict[str, object]) -> None:
        average: Values = state["average"]  # type: ignore[assignment]
        for name, tensor in self.average.items():
            tensor.copy_(average[name])
        self.updates = int(state["updates"])  # type: ignore[call-overload]

    def _home(self, tensor: Tensor) -> Tensor:
        device = torch.device("cpu") if self.options.ema_device == "cpu" else tensor.device
        return tensor.detach().to(device, torch.float32)
