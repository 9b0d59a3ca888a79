"""A third party's network module whose layers torch.compile cannot capture. For tests."""

from typing import Any

import torch
from torch import Tensor, nn

from tests.support.networks import foreign_network
from tests.support.networks.foreign_network import shifts


class BreakingShift(foreign_network.Shift):
    def forward(self, x: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        return super().forward(x)


class BreakingNetwork(foreign_network.Network):
    def __init__(self, text_encoders: list[nn.Module], unet: nn.Module, kwargs: dict[str, str]):
        super().__init__(text_encoders, unet, kwargs)
        self.of_unet = [BreakingShift(s.name, s.layer[0]) for s in shifts("lora_unet", unet, "Modulation", "lin")]


def create_network(*given: Any, **kwargs: Any) -> BreakingNetwork:
    _, _, _, _, text_encoder, unet = given
    return BreakingNetwork(text_encoder, unet, {})
