"""What learns in a run: its parameters in groups, its gradients, its file. A method makes one of these."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from sd_scripts.networks.lora import LoraNetwork


class Learning(Protocol):
    def parameter_groups(self) -> list[dict[str, Any]]:
        """For the optimizer: dicts of `params`, `lr` and `name`."""
        ...

    def collect_gradients(self) -> None:
        """After each backward."""
        ...

    def average_gradients(self, processes: int) -> None:
        """Over the processes, once before the update."""
        ...

    def clip(self, max_norm: float) -> Tensor:
        """Shorten the gradient to `max_norm`; returns its length before, on the device."""
        ...

    def updated(self) -> None:
        """After the optimizer has changed the weights: forget gradients, refresh what the model computes with."""
        ...

    def train(self, mode: bool = True) -> None:
        """Dropouts on or off."""
        ...

    def state_dict(self) -> dict[str, Tensor]:
        """All that continuing needs, bit for bit."""
        ...

    def load_state_dict(self, state: dict[str, Tensor]) -> None: ...

    def save(self, path: Path, dtype: torch.dtype | None, metadata: dict[str, str] | None) -> None:
        """Write the file that other programs load."""
        ...


class LoraLearning:
    """Our own LoRA: float32 masters in one flat buffer."""

    def __init__(self, network: LoraNetwork, groups: list[dict[str, Any]], modules: list[nn.Module]):
        self.network, self._groups, self._modules = network, groups, modules

    def parameter_groups(self) -> list[dict[str, Any]]:
        return self._groups

    def collect_gradients(self) -> None:
        self.network.collect_gradients()

    def average_gradients(self, processes: int) -> None:
        torch.distributed.all_reduce(self.network.gradients)
        self.network.gradients.div_(processes)

    def clip(self, max_norm: float) -> Tensor:
        norm = torch.linalg.vector_norm(self.network.gradients)
        self.network.gradients.mul_((max_norm / (norm + 1e-6)).clamp_max(1.0))
        return norm

    def updated(self) -> None:
        self.network.zero_grad()
        self.network.refresh()
