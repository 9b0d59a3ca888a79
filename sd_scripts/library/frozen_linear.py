"""What a Linear whose weights do not learn computes, whatever form its weights are held in."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def frozen_linear(x: Tensor, layer: nn.Linear) -> Tensor:
    """(..., in) -> (..., out): x W + b, differentiable in x."""
    return F.linear(x, layer.weight, layer.bias)


def compute_dtype(layer: nn.Module) -> torch.dtype:
    """What `layer` takes and gives, which its weights may be held in less than."""
    return layer.weight.dtype  # type: ignore[return-value]
