"""A small block like the models', whose outputs and gradients are compared between ways to run it."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sd_scripts.library.diffusion.attention import attention

WIDTH, HEADS, TOKENS, BATCH = 128, 4, 64, 2
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 5e-2}
"""Largest difference, relative to the reference's norm. Roundings of the dtype are a few times smaller."""


class Block(nn.Module):
    """Modulated attention and a gated MLP, each with a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.modulation = nn.Linear(WIDTH, 2 * WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.proj = nn.Linear(WIDTH, WIDTH)
        self.up = nn.Linear(WIDTH, 8 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor, vec: Tensor) -> Tensor:
        shift, scale = self.modulation(F.silu(vec))[:, None].chunk(2, -1)  # (B, 1, C)
        modulated = (1 + scale) * self.norm1(x) + shift
        q, k, v = self.qkv(modulated).unflatten(-1, (3, HEADS, -1)).unbind(2)  # (B, S, H, D)
        x = x + self.proj(attention(q, k, v))
        hidden, gate = self.up(self.norm2(x)).chunk(2, -1)
        out: Tensor = self.down(hidden * F.gelu(gate))
        return x + out


@dataclass(frozen=True)
class Inputs:
    x: Tensor
    vec: Tensor
    target: Tensor


def make(device: torch.device, dtype: torch.dtype | None = None) -> tuple[Block, Inputs]:
    """Return a block and its inputs, the same in every process, by default in the dtype that trains on this device."""
    if dtype is None:
        bf16 = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        dtype = torch.bfloat16 if bf16 else torch.float32
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        block = Block()
        x = torch.randn(BATCH, TOKENS, WIDTH)
        vec = torch.randn(BATCH, WIDTH)
        target = torch.randn(BATCH, TOKENS, WIDTH)
    moved = (each.to(device, dtype) for each in (x, vec, target))
    return block.to(device, dtype), Inputs(*moved)


def forward_backward(block: nn.Module, inputs: Inputs) -> Tensor:
    """Run a step without an optimizer, which leaves gradients, and return the output."""
    out: Tensor = block(inputs.x, inputs.vec)
    F.mse_loss(out.float(), inputs.target.float()).backward()
    return out.detach()


def results(block: nn.Module, step: Callable[[], Tensor]) -> dict[str, Tensor]:
    """Return the results of a step: the output and the gradients."""
    block.zero_grad()
    return {"output": step(), **gradients(block)}


def gradients(block: nn.Module) -> dict[str, Tensor]:
    return {f"gradient of {name}": p.grad for name, p in block.named_parameters() if p.grad is not None}


def difference(found: dict[str, Tensor], expected: dict[str, Tensor]) -> tuple[str, float]:
    """Return the name of the tensor that differs most, or that is not finite, and by how much, relative to its norm."""
    assert found.keys() == expected.keys(), "a gradient is missing"
    by = {}
    for name, value in expected.items():
        reference = value.double().cpu()
        by[name] = float((found[name].double().cpu() - reference).norm() / reference.norm())
        if not math.isfinite(by[name]):
            return name, by[name]
    worst = max(by, key=lambda name: by[name])
    return worst, by[worst]
