"""A layer with an adapter of any kind, and the same layer in the lycoris package with the same weights."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from sd_scripts.networks.adapter import Group, LayerPlan, adapter_kinds
from sd_scripts.networks.layers import Dropouts
from sd_scripts.networks.network import AdapterNetwork, attach

ALPHA = 2.0
logging.getLogger("LyCORIS").setLevel(logging.ERROR)


def linear(dtype: torch.dtype = torch.float64) -> nn.Linear:
    return nn.Linear(24, 40).to(dtype).requires_grad_(False)


def conv(dtype: torch.dtype = torch.float64) -> nn.Conv2d:
    return nn.Conv2d(8, 12, 3, stride=2, padding=1).to(dtype).requires_grad_(False)


def inputs(layer: nn.Module) -> Tensor:
    shape = (3, 5, 24) if isinstance(layer, nn.Linear) else (2, 8, 6, 6)
    return torch.randn(shape, dtype=layer.weight.dtype)  # type: ignore[call-overload]


def adapted(
    layer: nn.Module,
    kind: str,
    rank: int,
    options: Mapping[str, Any] | None = None,
    *,
    alpha: float = ALPHA,
    dropouts: Dropouts | None = None,
    random: float = 0.3,
    shared: bool = False,
) -> tuple[nn.Sequential, AdapterNetwork]:
    """Return a model with a copy of the layer and its network, whose masters are moved by random numbers."""
    model = nn.Sequential(deepcopy(layer))
    plan = LayerPlan(
        name="x",
        module=model,
        path="0",
        kind=adapter_kinds()[kind].for_layer(layer, options or {}),
        rank=rank,
        alpha=alpha,
        group=Group("unet", 1e-3),
        options=options or {},
    )
    dtype = layer.weight.dtype
    masters = dtype if dtype == torch.float64 else torch.float32
    network = attach([plan], dropouts or Dropouts(), torch.Generator().manual_seed(0), masters)  # type: ignore[arg-type]
    with torch.no_grad():
        network.masters.add_(random * torch.randn_like(network.masters))
    network.refresh()
    if shared:
        network.share_gains()
    return model, network


def theirs(
    layer: nn.Module, module_class: type[nn.Module], rank: int, own: Mapping[str, Tensor], **options: Any
) -> Any:
    """Return the layer in lycoris with weights by ending."""
    made: Any = module_class("x", deepcopy(layer), lora_dim=rank, alpha=ALPHA, **options).to(layer.weight.dtype)  # type: ignore[arg-type, call-arg]
    found = dict(made.named_parameters())
    assert set(found) == {ending for ending in own if ending != "alpha"}
    with torch.no_grad():
        for ending, parameter in found.items():
            parameter.copy_(own[ending].view(parameter.shape))
    return made.train()


class Together(nn.ModuleList):
    """The outputs of layers for one input, which are compiled in one go: a graph for each would take twice as long."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([layer(x) for layer in self])


def gradients(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the output and the input's gradient; the parameters' are left in them."""
    x = x.clone().requires_grad_()
    y = model(x)
    weights = torch.arange(1, y.numel() + 1, dtype=y.dtype).view(y.shape).cos()
    (y * weights).sum().backward()
    assert x.grad is not None
    return y.detach(), x.grad
