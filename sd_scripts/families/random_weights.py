"""Random weights for a full-size module: quick to make, since a benchmark needs their sizes and not what they know."""

import torch
from torch import Tensor, nn

DRAWN = 2**22 + 1
"""Numbers that are drawn and then repeated, since drawing billions takes minutes; odd, so that the rows of a matrix
differ."""


def random_weights(module: nn.Module, dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    """Return a state dict for a module on the meta device: matrices that preserve the variance of activations, norms
    of 1 and biases of 0."""
    noise = torch.randn(DRAWN, generator=torch.Generator().manual_seed(0))
    weights = {}
    for name, empty in module.state_dict().items():
        if empty.ndim < 2:
            weights[name] = torch.full(empty.shape, float(name.endswith(("weight", "scale"))), dtype=dtype)
        else:
            scaled = (noise * empty[0].numel() ** -0.5).to(dtype)
            weights[name] = scaled.repeat(-(-empty.numel() // DRAWN))[: empty.numel()].view(empty.shape)
    return weights
