"""RMS normalisation of the heads of queries or keys and their rotation, as one operator.

The compiler makes kernels of it that take two to three times as long as their memory traffic on a large GPU, and
without compiling it is a dozen passes in float32. One kernel reads the projection's output and writes attention's
input, and its backward pass needs nothing but the projection's output.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sd_scripts.library.diffusion.dit_layers import EPS, Rope, apply_rope
from sd_scripts.library.kernels.triton_kernels import HAS_TRITON, built_for

LARGEST_HEAD = 256


def normed_and_rotated(parts: Sequence[Tensor], scales: Sequence[Tensor], rope: Rope, eps: float = EPS) -> Tensor:
    """Normalise each head of the `parts`, scale it by the part's `scales` (D,), join the parts along their tokens and
    rotate them, all in float32.

    parts (B, S_i, H, D), rope of S = sum of S_i tokens, for all images or, of a single part, for each
    -> (B, S, H, D) in the parts' dtype.
    """
    if len(rope[0]) > 1:  # the kernels take one rope, so the tokens of all images become one sequence
        (x,) = parts
        cos, sin = (each.flatten(0, 1)[None] for each in rope)
        return normed_and_rotated([x.flatten(0, 1)[None]], scales, (cos, sin), eps)[0].unflatten(0, x.shape[:2])
    trained = torch.is_grad_enabled() and any(scale.requires_grad for scale in scales)
    if _has_kernel(parts[0]) and not trained:
        return _norm_rope(list(parts), list(scales), *rope, eps)
    return _plain(parts, scales, rope, eps)


def _has_kernel(x: Tensor) -> bool:
    width = x.shape[-1]
    return HAS_TRITON and x.is_cuda and width <= LARGEST_HEAD and not width & (width - 1)


@cache
def _kernel_on(device: torch.device) -> Any:
    """Return the kernel module for this device, or None to use plain PyTorch."""
    heads, row = torch.ones(1, 1, 2, 32, device=device), torch.ones(32, device=device)
    return built_for(
        device,
        "sd_scripts.library.kernels.norm_rope_kernel",
        lambda kernels: kernels.forward([heads], [row], row, row, EPS),
        "normalising and rotating heads takes longer",
    )


def _plain(parts: Sequence[Tensor], scales: Sequence[Tensor], rope: Rope, eps: float) -> Tensor:
    normed = [F.rms_norm(x.float(), x.shape[-1:], eps=eps) * s.float() for x, s in zip(parts, scales, strict=True)]
    joined = torch.cat(normed, dim=1) if len(normed) > 1 else normed[0]
    return apply_rope(joined, rope).to(parts[0].dtype)


def _plain_back(
    grad: Tensor, parts: Sequence[Tensor], scales: Sequence[Tensor], rope: Rope, eps: float
) -> list[Tensor]:
    """Return the gradients of the parts from the result's: rotated back, then through the norm."""
    turned = apply_rope(grad.float(), (rope[0], -rope[1])).split([x.shape[1] for x in parts], dim=1)
    gradients = []
    for x, slope, scale in zip(parts, turned, scales, strict=True):
        root = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + eps)
        normed, slope = x.float() * root, slope * scale.float()
        gradients.append((root * (slope - normed * (slope * normed).mean(-1, keepdim=True))).to(x.dtype))
    return gradients


@torch.library.custom_op("sd_scripts::norm_rope", mutates_args=())
def _norm_rope(parts: list[Tensor], scales: list[Tensor], cos: Tensor, sin: Tensor, eps: float) -> Tensor:
    kernel = _kernel_on(parts[0].device)
    if kernel is None:
        return _plain(parts, scales, (cos, sin), eps)
    with torch.cuda.device(parts[0].device):
        return kernel.forward(parts, scales, cos, sin, eps)  # type: ignore[no-any-return]


@torch.library.custom_op("sd_scripts::norm_rope_back", mutates_args=())
def _norm_rope_back(
    grad: Tensor, parts: list[Tensor], scales: list[Tensor], cos: Tensor, sin: Tensor, eps: float
) -> list[Tensor]:
    kernel = _kernel_on(grad.device)
    if kernel is None:
        return _plain_back(grad, parts, scales, (cos, sin), eps)
    with torch.cuda.device(grad.device):
        return kernel.backward(grad, parts, scales, cos, sin, eps)  # type: ignore[no-any-return]


@_norm_rope.register_fake
def _(parts: list[Tensor], scales: list[Tensor], cos: Tensor, sin: Tensor, eps: float) -> Tensor:
    batch, _, *head = parts[0].shape
    return parts[0].new_empty(batch, sum(x.shape[1] for x in parts), *head)


@_norm_rope_back.register_fake
def _(grad: Tensor, parts: list[Tensor], scales: list[Tensor], cos: Tensor, sin: Tensor, eps: float) -> list[Tensor]:
    return [x.new_empty(x.shape) for x in parts]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    parts, scales, cos, sin, ctx.eps = inputs
    ctx.count = len(parts)
    ctx.save_for_backward(*parts, *scales, cos, sin)


def _gradients(ctx: Any, grad: Tensor) -> tuple[list[Tensor], list[None], None, None, None]:
    *both, cos, sin = ctx.saved_tensors
    parts, scales = both[: ctx.count], both[ctx.count :]
    return _norm_rope_back(grad, parts, scales, cos, sin, ctx.eps), [None] * len(scales), None, None, None


_norm_rope.register_autograd(_gradients, setup_context=_keep)
