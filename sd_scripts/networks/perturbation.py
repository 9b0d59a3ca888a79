"""Noise on the frozen weights in training, scaled by weights and gradients, for flatter minima (ggpo_beta, ggpo_sigma).

Gradient-guided perturbation, LoRA-GGPO, https://arxiv.org/abs/2502.14538. A weight of `out` rows gets Gaussian noise
whose deviation in row i is (sigma |W_i| + beta |G_i|^2) / sqrt(out): W with the adapter's update in it, G the gradient
of that update. The adapter gives both norms (`row_squares`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from sd_scripts.library.quantization.quantized import stored_weight

if TYPE_CHECKING:
    from sd_scripts.networks.adapter import Adapter


@dataclass(frozen=True, kw_only=True)
class Perturbation:
    beta: float
    sigma: float


class RowNoise:
    """Noise deviations of all Linears of a network, as views in the layers' buffers; 0 before the first update."""

    def __init__(self, perturbation: Perturbation, layers: Sequence[Adapter], device: torch.device):
        self.perturbation = perturbation
        self.layers = [layer for layer in layers if layer.perturbable]
        if not self.layers:
            raise ValueError("network_args: ggpo_beta and ggpo_sigma have no effect on these layers; remove both")
        sizes = [len(layer.layer.weight) for layer in self.layers]  # type: ignore[arg-type]
        self.deviations = torch.zeros(sum(sizes), device=device)
        """(rows of all layers,) float32"""
        self._views = self.deviations.split(sizes)
        self._frozen = [_row_squares_of(layer.layer, device) for layer in self.layers]  # type: ignore[arg-type]
        for layer, view in zip(self.layers, self._views, strict=True):
            layer.layer.row_noise = view  # type: ignore[assignment]

    @torch.no_grad()
    def update(self) -> None:
        """Update the deviations from the masters and their gradients; rows with non-finite values stay unchanged."""
        beta, sigma = self.perturbation.beta, self.perturbation.sigma
        for layer, view, frozen in zip(self.layers, self._views, self._frozen, strict=True):
            learned, steep = layer.row_squares()
            weight = (frozen + layer.scale**2 * learned).sqrt()
            fresh = (sigma * weight + beta * layer.scale**2 * steep) / len(view) ** 0.5
            view.copy_(torch.where(fresh.isfinite(), fresh, view))


def _row_squares_of(layer: nn.Linear, device: torch.device) -> Tensor:
    return stored_weight(layer, device).square().sum(dim=1)
