"""Attention that ignores padding at the ends of sequences, by kernels that take neither masks nor lengths.

cuDNN's attention, the fastest on H100 and H200, takes lengths only as it plans a kernel. So it computes with all n + p
keys, with keys and values of padding set to 0, and the contribution of padding to the sum Z of a softmax is taken out
afterwards: each adds e^0 = 1, and nothing to the weighted values, so the output is (Z + p) / Z times the kernel's.

So that Z never drowns in p, the mean of the valid keys is subtracted from them first. That changes no softmax, and then
Z >= n, since the exponents of a row have mean 0 (Jensen's inequality). The kernel's backward, given the corrected
output and sum, returns the gradients of the valid part.
"""

from typing import Any

import torch
from torch import Tensor

_ATEN = torch.ops.aten


def suits(device: torch.device) -> bool:
    """Return whether this is the fastest attention there: where PyTorch prefers cuDNN, H100, H200 and B200."""
    return (
        device.type == "cuda"
        and torch.version.hip is None
        and torch.cuda.get_device_capability(device) in ((9, 0), (10, 0))
        and torch.backends.cuda.cudnn_sdp_enabled()
        and not torch.are_deterministic_algorithms_enabled()  # cuDNN's backward adds in any order
    )


def fits(q: Tensor) -> bool:
    """Return whether the kernel takes queries (B, S, H, D)."""
    return q.shape[-1] % 8 == 0 and q.shape[-1] <= 128 and q.dtype in (torch.bfloat16, torch.float16)


def attention_without_padding(q: Tensor, k: Tensor, v: Tensor, valid: Tensor) -> Tensor:
    """Softmax(q k' / sqrt(d)) v over the valid keys of each sequence; q, k, v (B, S, H, D), valid (B, S) bool, True
    first -> (B, S, H, D). Queries of padding attend to the valid keys, too."""
    out: Tensor = _WithoutPadding.apply(q, k, v, valid)
    return out


class _WithoutPadding(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, valid: Tensor) -> Tensor:  # type: ignore[override]
        keep, count = valid[..., None, None], valid.sum(1)
        mean = torch.where(keep, k, 0).sum(1, keepdim=True, dtype=torch.float32) / count.view(-1, 1, 1, 1)
        k = torch.where(keep, k - mean, 0).to(k.dtype)
        v = torch.where(keep, v, 0)
        out, sums = _all_keys(q, k, v)
        padding = (valid.shape[1] - count).view(-1, 1, 1)
        share = -torch.expm1(padding.log() - sums)  # Z / (Z + p)
        out = (out / share.transpose(1, 2)[..., None]).to(q.dtype)
        ctx.save_for_backward(q, k, v, out, sums + share.log(), valid)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:  # type: ignore[override]
        q, k, v, out, sums, valid = ctx.saved_tensors
        keep = valid[..., None, None]
        grads = _all_keys_back(grad.contiguous(), q, k, v, out, sums)
        return grads[0], torch.where(keep, grads[1], 0), torch.where(keep, grads[2], 0), None


@torch.library.custom_op("sd_scripts::attention_with_sums", mutates_args=())
def _all_keys(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Attention to all keys, and the logarithms of the softmax sums: (B, S, H, D) -> (B, S, H, D), (B, H, S)."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    if q.is_cuda:
        results = _ATEN._scaled_dot_product_cudnn_attention(q, k, v, None, True)
    else:
        results = _ATEN._scaled_dot_product_flash_attention_for_cpu(q, k, v)
    return results[0].transpose(1, 2).contiguous(), results[1].view(q.shape[:3]).contiguous()


@_all_keys.register_fake
def _(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    batch, length, heads, _ = q.shape
    return q.new_empty(q.shape), q.new_empty((batch, heads, length), dtype=torch.float32)


@torch.library.custom_op("sd_scripts::attention_with_sums_back", mutates_args=())
def _all_keys_back(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, sums: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q, k and v; `grad` and the others as the forward's, `sums` (B, H, S)."""
    grad, q, k, v, out = (x.transpose(1, 2) for x in (grad, q, k, v, out))
    if q.is_cuda:
        unused = torch.zeros((), dtype=torch.int64, device=q.device)  # the seed and offset of a dropout
        length = q.shape[2]
        gradients = _ATEN._scaled_dot_product_cudnn_attention_backward(
            *(grad, q, k, v, out, sums[..., None], unused, unused, None, None, None, length, length, 0.0, False)
        )
    else:
        gradients = _ATEN._scaled_dot_product_flash_attention_for_cpu_backward(grad, q, k, v, out, sums, 0.0, False)
    dq, dk, dv = (x.transpose(1, 2).contiguous() for x in gradients)
    return dq, dk, dv


@_all_keys_back.register_fake
def _(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, sums: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return q.new_empty(q.shape), q.new_empty(q.shape), q.new_empty(q.shape)
