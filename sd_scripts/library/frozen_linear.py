"""What a Linear whose weights do not learn computes, whatever form its weights are held in."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sd_scripts.library.fp8 import STORAGE, fp8_linear


def frozen_linear(x: Tensor, layer: nn.Linear) -> Tensor:
    """(..., in) -> (..., out): x W + b, differentiable in x."""
    if layer.weight.dtype == STORAGE:
        return fp8_linear(x, layer)
    return F.linear(x, layer.weight, layer.bias)


def compute_dtype(layer: nn.Module) -> torch.dtype:
    """What `layer` takes and gives, which its weights may be held in less than."""
    dtype: torch.dtype = getattr(layer, "compute_dtype", layer.weight.dtype)  # type: ignore[arg-type]
    return dtype


def share_frozen(layer: nn.Linear, base: nn.Linear) -> None:
    """Let `layer` compute with the weights of `base`, the same objects: what moves them moves them for both."""
    layer.weight, layer.bias = base.weight, base.bias
    layer.compute_dtype = compute_dtype(base)  # type: ignore[assignment]
    layer.fp8_compute = getattr(base, "fp8_compute", False)  # type: ignore[assignment]
    layer.scale_exact = getattr(base, "scale_exact", True)  # type: ignore[assignment]
    for name in ("weight_scale", "weight_transposed"):
        layer.register_buffer(name, getattr(base, name, None), persistent=name == "weight_scale")
