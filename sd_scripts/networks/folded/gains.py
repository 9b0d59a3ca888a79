"""DoRA's factors of each output, for all layers together, once a step: they depend on the weights alone.

Within a layer they would take a dozen small kernels. Here layers of one shape are stacked: with B (out, r), A (r, in)
and D = B A, |W + D|^2 = |W|^2 + sum(B * (2 W A' + B A A')), by rows. On a GPU one kernel computes that for a whole
stack (library/kernels/low_rank_norms.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from sd_scripts.library.kernels.triton_kernels import HAS_TRITON
from sd_scripts.networks.adapters.dora import DoraLinear
from sd_scripts.networks.folded.folding import stays_plain

if TYPE_CHECKING:
    from sd_scripts.library.kernels.low_rank_norms import LowRankNorms


@dataclass
class Stack:
    """The decomposed layers of one shape, l of them."""

    layers: list[DoraLinear]
    ups: list[nn.Parameter]
    """(out, r) each."""
    downs: list[nn.Parameter]
    """(r, in) each."""

    def __post_init__(self) -> None:
        self.magnitudes = [layer.magnitudes for layer in self.layers]
        self.squares = torch.stack([each.squares for each in self.magnitudes])  # (l, out)
        self.eps = torch.finfo(self.squares.dtype).eps
        self.gains = torch.ones_like(self.squares)
        self.roots = torch.ones_like(self.squares)
        """|W + D|."""
        self.slope = torch.zeros(len(self.ups), *self.ups[0].shape, dtype=self.ups[0].dtype, device=self.ups[0].device)
        """(W + D) A', which the gradient of B needs: (l, out, r)."""
        for each, gain in zip(self.magnitudes, self.gains, strict=True):
            each.gains = nn.Parameter(gain)
        self.kernels: LowRankNorms | None = None
        self._find_weights()

    def _find_weights(self) -> None:
        """Update the kernels' addresses of the weights, which may have been moved to another device and back."""
        parts = [layer.weight for layer in self.layers], self.ups, [each.norms for each in self.magnitudes]
        if not (self.kernels and self.kernels.are_at(*parts)):
            self.kernels = _kernels_for(*parts)

    def refresh(self) -> None:
        """Compute the gains of the present weights."""
        down = torch.stack([*self.downs])
        self._find_weights()
        if self.kernels:
            self.kernels.norms(down, self.squares, self.slope, self.roots, self.gains, self.eps)
            return
        up = torch.stack([*self.ups])
        product = torch.empty_like(self.slope)
        for layer, own_down, own in zip(self.layers, self.downs, product, strict=True):
            torch.mm(layer.weight, own_down.t(), out=own)
        torch.baddbmm(product, up, down @ down.mT, out=self.slope)
        dtype = self.squares.dtype
        change = (up.to(dtype) * (product.to(dtype) + self.slope.to(dtype))).sum(2)
        torch.sqrt((self.squares + change).clamp_min_(self.eps**2), out=self.roots)
        norms = torch.stack([each.norms.flatten() for each in self.magnitudes])
        torch.div(norms, self.roots + self.eps, out=self.gains)

    def pass_on(self) -> None:
        """Add the gradients that norms, ups and downs get through the gains."""
        gain_grads = [each.gains.grad for each in self.magnitudes]  # type: ignore[union-attr]
        if all(grad is None for grad in gain_grads):
            return
        grads = torch.stack([torch.zeros_like(self.gains[0]) if grad is None else grad for grad in gain_grads])
        per_norm = grads / (self.roots + self.eps)
        for each, own in zip(self.magnitudes, per_norm, strict=True):
            each.norms.grad = own.view(each.norms.shape)
        # d gain / d square = -gain / (root + eps) / (2 root), and a square changes by twice the slope
        weight = torch.where(self.roots > self.eps, -per_norm * self.gains / self.roots, 0.0)[:, :, None]
        up, down = torch.stack([*self.ups]), torch.stack([*self.downs])
        scaled = torch.mul(weight, up, out=torch.empty_like(up))  # (l, out, r)
        down_grads = (up.mT @ scaled) @ down
        if self.kernels:
            self.kernels.add_products(scaled, down_grads)
        else:
            for own_grad, own, layer in zip(down_grads, scaled, self.layers, strict=True):
                own_grad.addmm_(own.t(), layer.weight)
        up_grads = torch.mul(weight, self.slope, out=torch.empty_like(up))
        _add([(up, grad) for up, grad in zip(self.ups, up_grads, strict=True)])
        _add([(down, grad) for down, grad in zip(self.downs, down_grads, strict=True)])


def _kernels_for(weights: Sequence[Tensor], ups: Sequence[Tensor], norms: Sequence[Tensor]) -> LowRankNorms | None:
    """Return the kernels for layers of one shape, or None where plain PyTorch computes them."""
    if not (HAS_TRITON and weights[0].is_cuda):
        return None
    from sd_scripts.library.kernels.low_rank_norms import LowRankNorms

    return LowRankNorms(weights, ups, norms) if LowRankNorms.fits(weights, ups, norms) else None


def _add(pairs: list[tuple[nn.Parameter, Tensor]]) -> None:
    """Add to the gradients of parameters."""
    there = [(parameter.grad, grad) for parameter, grad in pairs if parameter.grad is not None]
    if there:
        torch._foreach_add_([own for own, _ in there], [grad for _, grad in there])
    for parameter, grad in pairs:
        if parameter.grad is None:
            parameter.grad = grad


@dataclass
class Gains:
    """The gains of all layers of a network that can share the work."""

    stacks: list[Stack] = field(default_factory=list)
    outdated: bool = True
    """Whether weights have changed since they were computed."""

    @torch.no_grad()
    def refresh(self) -> None:
        for stack in self.stacks:
            stack.refresh()
        self.outdated = False

    def refresh_before(self, modules: Iterable[nn.Module]) -> None:
        """Refresh outdated gains whenever one of `modules` is called, so that a recorded step does it too."""
        if not self.stacks:
            return
        for module in modules:
            module.register_forward_pre_hook(self._refresh_if_needed)

    def _refresh_if_needed(self, *_: object) -> None:
        if torch.compiler.is_compiling():
            return
        # a recorded step is replayed after any update, also if it was not when it was recorded
        recording = torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
        if self.outdated or recording:
            self.refresh()

    @torch.no_grad()
    def pass_on(self) -> None:
        for stack in self.stacks:
            stack.pass_on()
        self.clear()

    def clear(self) -> None:
        """Drop gradients that are not passed on."""
        for stack in self.stacks:
            for each in stack.magnitudes:
                each.gains.grad = None  # type: ignore[union-attr]


def gains_of(layers: Iterable[nn.Module]) -> Gains:
    """Return the gains of those layers of DoRA whose weights are neither quantized nor swapped."""
    shapes: dict[tuple[int, ...], list[DoraLinear]] = {}
    for layer in layers:
        if isinstance(layer, DoraLinear) and stays_plain(layer) and layer.weight.dtype == layer.lora_up.dtype:
            shapes.setdefault((*layer.lora_up.shape, *layer.lora_down.shape), []).append(layer)
    return Gains(
        [
            Stack(layers=alike, ups=[each.lora_up for each in alike], downs=[each.lora_down for each in alike])
            for alike in shapes.values()
        ]
    )
