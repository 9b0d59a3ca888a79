"""Gradient clipping to `max_grad_norm`: one norm over all gradients, one factor for all of them."""

import torch
from torch import Tensor


def grad_norm(gradients: list[Tensor], device: torch.device) -> Tensor:
    """Return the norm of all gradients together, float32 ()."""
    if not gradients:
        return torch.zeros((), device=device)
    return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients, 2, torch.float32)))


def clip_factor(norm: Tensor, max_norm: float) -> Tensor:
    """Return the factor that clips gradients of this norm to `max_norm`, or 1 if that is 0.

    It is 0 if the norm is non-finite: all or nothing, since the other gradients cannot be trusted either.
    """
    factor = (max_norm / (norm + 1e-6)).clamp_max(1.0) if max_norm else torch.ones_like(norm)
    return factor.where(norm.isfinite(), 0.0)
