"""The one attention of all families: PyTorch's scaled_dot_product_attention, with a guard for its backward.

Padding at the ends of sequences is not masked, as what takes a mask is several times as slow: FlashAttention reads the
lengths of sequences as data, and what padding adds to cuDNN's attention is taken out afterwards (padded_attention).
"""

import importlib.util
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from sd_scripts.library.diffusion import padded_attention

MASKED = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""With a mask cuDNN's backward can give NaN at some lengths (pytorch #196678), and FlashAttention takes none."""


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """Softmax(q k' / sqrt(d)) v.

    q (B, S, H, D), k and v (B, T, H, D), mask bool with four dimensions that broadcast to (B, H, S, T), or as
    padding_mask returns it where S = T -> (B, S, H * D).
    """
    if mask is not None and mask.dtype == torch.int32:
        return _within_bounds(q, k, v, mask)
    if mask is not None and mask.dim() == 2:
        if padded_attention.fits(q):
            return padded_attention.attention_without_padding(q, k, v, mask).flatten(2)
        mask = mask[:, None, None]
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    with sdpa_kernel(MASKED) if mask is not None and q.is_cuda else nullcontext():
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    out = out.transpose(1, 2).flatten(2)
    return _DenseGradient.apply(out) if out.is_cuda and out.requires_grad else out


def padding_mask(valid: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the mask for keys (B, S) bool that are valid but for padding at their ends, and inputs of `dtype`.

    Where cuDNN is the fastest it is `valid` itself. Where FlashAttention can run these are the bounds of 2B sequences,
    int32 (2B + 1,): of valid tokens and of padding, which then only attends to itself. Elsewhere it is a mask
    (B, 1, 1, S).
    """
    if dtype in (torch.bfloat16, torch.float16) and padded_attention.suits(valid.device):
        return valid
    if not _has_flash_attention(valid.device, dtype):
        return valid[:, None, None]
    return _bounds(valid)


def _bounds(valid: Tensor) -> Tensor:
    starts = valid.shape[1] * torch.arange(len(valid) + 1, device=valid.device)
    ends = starts[:-1] + valid.sum(1)
    return torch.cat((torch.stack((starts[:-1], ends), dim=1).flatten(), starts[-1:])).int()


def _has_flash_attention(device: torch.device, dtype: torch.dtype) -> bool:
    if device.type != "cuda" or dtype not in (torch.bfloat16, torch.float16):
        return False
    with_lengths = importlib.util.find_spec("torch.nn.attention.varlen") is not None
    built = torch.backends.cuda.is_flash_attention_available() and torch.version.hip is None
    return with_lengths and built and torch.cuda.get_device_capability(device) >= (8, 0)


def _within_bounds(q: Tensor, k: Tensor, v: Tensor, bounds: Tensor) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    batch, longest = q.shape[:2]
    q, k, v = (x.flatten(0, 1) for x in (q, k, v))  # (B * S, H, D)
    flat: Any = varlen_attn(q, k, v, bounds, bounds, longest, longest)
    out = flat.unflatten(0, (batch, longest)).flatten(2)
    return _DenseGradient.apply(out) if out.requires_grad else out


class _DenseGradient(torch.autograd.Function):
    """Identity whose gradient is contiguous.

    cuDNN's backward, the default on Hopper, plans for the strides of the gradient that it meets first and returns
    silently wrong numbers when they change. A gradient that is dense already passes without a copy.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        return grad.contiguous()
