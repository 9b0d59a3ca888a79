"""A few layers with a LoRA, and the same computed as the paper writes it."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sd_scripts.networks.adapter import Group, LayerPlan
from sd_scripts.networks.adapters.lora import Lora
from sd_scripts.networks.layers import Dropouts
from sd_scripts.networks.network import AdapterNetwork, attach


def adapt(
    model: nn.Module,
    rank: int | dict[str, int] = 2,
    alpha: float | dict[str, float] = 1.0,
    dropouts: Dropouts | None = None,
    masters_dtype: torch.dtype = torch.float32,
) -> AdapterNetwork:
    """A LoRA on every Linear and convolution of `model`, with random ups, so that it has an effect."""
    layers = [
        (path, m) for path, m in model.requires_grad_(False).named_modules() if isinstance(m, nn.Linear | nn.Conv2d)
    ]

    def chosen(values: Any, path: str) -> Any:
        return values[path] if isinstance(values, dict) else values

    unet = Group("unet", 1e-3)
    plans = [
        LayerPlan(
            name=path,
            module=model,
            path=path,
            kind=Lora,
            rank=chosen(rank, path),
            alpha=chosen(alpha, path),
            group=unet,
        )
        for path, _ in layers
    ]
    generator = torch.Generator().manual_seed(0)
    network = attach(plans, dropouts or Dropouts(), generator, masters_dtype)
    fill_ups(network)
    return network


def fill_ups(network: AdapterNetwork, seed: int = 0) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for layer in network.layers:
            layer.up.copy_(torch.randn(layer.up.shape, generator=generator) * layer.rank**-0.5)
    network.refresh()


def plain(layer: Lora, x: Tensor, down: Tensor, up: Tensor) -> Tensor:
    """y = W x + b + alpha / rank · up(down(x)), with the tensors `down` and `up`."""
    base, scale = layer.layer, layer.alpha / layer.rank
    if isinstance(base, nn.Linear):
        return F.linear(x, base.weight, base.bias) + scale * F.linear(F.linear(x, down), up)
    low = F.conv2d(x, down, None, base.stride, base.padding)
    return F.conv2d(x, base.weight, base.bias, base.stride, base.padding) + scale * F.conv2d(low, up)


def plain_gradients(layer: Lora, x: Tensor) -> list[Tensor]:
    """Of the sum of squares of the output, to down, up and x."""
    leaves = [t.detach().clone().requires_grad_() for t in (layer.down, layer.up, x)]
    plain(layer, leaves[2], leaves[0], leaves[1]).square().sum().backward()
    return [leaf.grad for leaf in leaves if leaf.grad is not None]
