"""A Linear and its LoRA in one matrix product each way: y = [x, x A'] [W, B]' and dx = [g, g B] [W; A].

Apart, the up projection writes an output as large as the base's, which is then added: on a wide layer that takes a good
part of the base's time. The weights of a layer, or of layers with the same input, such as q, k and v, are in one joint
matrix [[W, B], [A, 0]], whose rows and columns serve both products.

It is for compiled code: the compiler lets the kernel that makes x write it straight into the wider matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from sd_scripts.library.kernels.geglu import geglu
from sd_scripts.library.kernels.triton_kernels import HAS_TRITON

LARGEST_RANK = 128
"""Up to which one kernel makes the gradients of both of a LoRA's matrices."""

Factors = tuple[Tensor, Tensor, Tensor, Tensor]
Fill = Callable[[Tensor], object]
"""Writes a matrix into the first columns of a wider one."""


class Ways(NamedTuple):
    """Into which of a layer's two products the adapter goes. Where it does not, its update is computed apart."""

    output: bool = True
    gradient: bool = True
    """The gradient of the input."""


BOTH = Ways()


def define_gradients(device: torch.device) -> None:
    """Define the operator that makes the gradients of a LoRA on a GPU; call before products there are compiled.

    The compiler traces through it, so that defining it imports the compiler, which takes as long as PyTorch itself.
    """
    if HAS_TRITON and device.type == "cuda":
        import sd_scripts.library.kernels.low_rank_gradients  # noqa: F401


torch.library.define("sd_scripts::fill_low_rank", "(Tensor(a!) padded, Tensor low) -> ()")
torch.library.define("sd_scripts::add_low_rank", "(Tensor(a!) y, Tensor h, Tensor matrix) -> ()")


@torch.library.impl("sd_scripts::fill_low_rank", ["CPU", "CUDA"])
def _fill_low_rank(padded: Tensor, low: Tensor) -> None:
    """padded (M, K + r), low (r, K): write the product of the first K columns and low' into the last r."""
    width = low.shape[1]
    torch.mm(padded[:, :width], low.t(), out=padded[:, width:])


@torch.library.register_fake("sd_scripts::fill_low_rank")
def _(padded: Tensor, low: Tensor) -> None:
    return None


@torch.library.impl("sd_scripts::add_low_rank", ["CPU", "CUDA"])
def _add_low_rank(y: Tensor, h: Tensor, matrix: Tensor) -> None:
    """y (M, N), h (M, r), matrix (r, N): add the product in place, where the compiler would copy y first."""
    y.addmm_(h, matrix)


@torch.library.register_fake("sd_scripts::add_low_rank")
def _(y: Tensor, h: Tensor, matrix: Tensor) -> None:
    return None


def folded_product(
    x: Tensor,
    joint: Tensor,
    bias: Tensor | None,
    downs: Sequence[Tensor],
    ups: Sequence[Tensor],
    *,
    pieces: Sequence[int] = (),
    gated: bool = False,
    ways: Ways = BOTH,
) -> list[Tensor]:
    """Apply layers with the same input, (..., in) -> (..., out), and split their outputs, side by side, into `pieces`,
    or with `gated` return their geglu.

    joint (out + r, in + r) = [[W, B], [A, 0]] has the values that are computed with: A (r, in) are the `downs`
    (r_i, in) below each other, B (out, r) the `ups` (out_i, r_i) as blocks of a diagonal. Both are given only to get
    their gradients. An output that is computed apart keeps x itself, without a copy.
    """
    pieces = pieces or [sum(len(up) for up in ups)]
    outputs = apply(_FoldedProduct, x.flatten(0, -2), joint, bias, pieces, gated, *ways, *downs, *ups)
    return [y.unflatten(0, x.shape[:-1]) for y in outputs]


def apply(function: type[torch.autograd.Function], *arguments: Any) -> Sequence[Tensor]:
    """Apply an autograd function. Without gradients the compiler may call its forward without a context, by the number
    of arguments, so it gets a different one."""
    if torch.is_grad_enabled():
        return function.apply(*arguments)  # type: ignore[no-any-return]
    return function.forward(_Forgetful(), *arguments)  # type: ignore[no-any-return]


class _Forgetful:
    """The context of a forward pass that no backward pass follows."""

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        pass


class _FoldedProduct(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        x: Tensor,
        joint: Tensor,
        bias: Tensor | None,
        pieces: Sequence[int],
        gated: bool,
        joins_output: bool,
        joins_gradient: bool,
        *parts: Tensor,
    ) -> tuple[Tensor, ...]:
        downs, ups = parts[: len(parts) // 2], parts[len(parts) // 2 :]
        ctx.ranks, ctx.outs = [len(down) for down in downs], [len(up) for up in ups]
        ctx.sizes = (sum(ctx.outs), x.shape[1])
        ctx.joins_gradient = joins_gradient
        y, *saved = joint_forward(x, joint, bias, ctx.sizes[0], joins_output)
        ctx.save_for_backward(y if gated else None, joint, *saved)
        return (geglu(y),) if gated else y.split(pieces, dim=1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        y, joint, *saved = ctx.saved_tensors
        fill = copying(grads) if y is None else geglu_gradients(grads[0], y)
        x_grad, factors = joint_backward(
            fill, joint, *saved, sizes=ctx.sizes, learns=ctx.needs_input_grad[0], joins=ctx.joins_gradient
        )
        downs, ups = low_rank_gradients_of(*factors, ctx.ranks, ctx.outs)
        return x_grad, None, None, None, None, None, None, *downs, *ups


def joint_forward(x: Tensor, joint: Tensor, bias: Tensor | None, out: int, joins: bool) -> tuple[Tensor, ...]:
    """Return y (M, out) and the tensors that `joint_backward` needs besides the joint matrix."""
    width = x.shape[1]
    if not joins:
        h = F.linear(x, joint[out:, :width])
        y = F.linear(x, joint[:out, :width], bias)
        torch.ops.sd_scripts.add_low_rank(y, h, joint[:out, width:].t())
        return y, x, h
    padded = _with_low_rank(x, copying([x]), joint[out:, :width])
    return F.linear(padded, joint[:out], bias), padded


def joint_backward(
    fill: Fill, joint: Tensor, *saved: Tensor, sizes: tuple[int, int], learns: bool, joins: bool
) -> tuple[Tensor | None, Factors]:
    """Return the gradient of x, and x, h = x A', the gradient of y, which `fill` writes, and its product with B.

    `sizes`: of y and x; `learns`: whether the gradient of x is needed; `joins`: whether by one product.
    """
    out, width = sizes
    x, h = saved if len(saved) == 2 else (saved[0][:, :width], saved[0][:, width:])
    if learns and joins:
        padded = _with_low_rank(x, fill, joint[:out, width:].t())
        return padded @ joint[:, :width], (x, h, padded[:, :out], padded[:, out:])
    grad = x.new_empty(len(x), out)
    fill(grad)
    low = grad @ joint[:out, width:]
    if not learns:
        return None, (x, h, grad, low)
    x_grad = grad @ joint[:out, :width]
    torch.ops.sd_scripts.add_low_rank(x_grad, low, joint[out:, :width])
    return x_grad, (x, h, grad, low)


def _with_low_rank(like: Tensor, fill: Fill, low: Tensor) -> Tensor:
    """Return [x, x low'], (M, K + r), for the x (M, K) that `fill` writes and low (r, K); `like` has M rows."""
    padded = like.new_empty(len(like), low.shape[1] + len(low))
    fill(padded)
    torch.ops.sd_scripts.fill_low_rank(padded, low)
    return padded


def copying(parts: Sequence[Tensor]) -> Fill:
    """Return the launch that writes a matrix given in parts of its columns.

    Each part is written by the kernel that makes it; torch.cat would let one kernel compute all parts for every value.
    """
    widths = [part.shape[1] for part in parts]

    def fill(padded: Tensor) -> None:
        for target, part in zip(padded[:, : sum(widths)].split(widths, dim=1), parts, strict=True):
            target.copy_(part)

    return fill


def geglu_gradients(grad: Tensor, projected: Tensor, gain: Tensor | None = None) -> Fill:
    """Return the launch that writes the gradient of `projected` (M, 2F), times `gain`, if its geglu's gradient is
    `grad` (M, F)."""
    return lambda padded: torch.ops.sd_scripts.fill_geglu_gradients(padded, grad, projected, gain)


def _shares_kernel(grad: Tensor, ranks: Sequence[int], outs: Sequence[int]) -> bool:
    """Return whether one kernel makes the gradients of the matrices of layers of these ranks and outputs."""
    alike = len({*ranks}) == len({*outs}) == 1 and ranks[0] <= LARGEST_RANK
    # in float32 its products are inexact
    return HAS_TRITON and alike and grad.is_cuda and grad.dtype != torch.float32


def low_rank_gradients_of(
    x: Tensor, h: Tensor, grad: Tensor, low: Tensor, ranks: Sequence[int], outs: Sequence[int]
) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    """Return the gradients of downs and ups from x (M, in), h = x A', the output's gradient and low = grad B."""
    if _shares_kernel(grad, ranks, outs):
        # `default`, by which the compiler's cache finds the source of the kernel
        downs, ups = torch.ops.sd_scripts.low_rank_gradients.default(x, h, grad, low, len(ranks))
        return downs.split(ranks), ups.split(outs)
    pairs = zip(grad.split(outs, dim=1), h.split(ranks, dim=1), strict=True)
    return (low.t() @ x).split(ranks), [g.t() @ part for g, part in pairs]
