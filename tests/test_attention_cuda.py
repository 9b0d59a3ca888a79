"""On a GPU: gradients through our attention equal those of PyTorch's plain mathematics, whatever strides they meet."""

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from sd_scripts.library.attention import attention

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: the plans of cuDNN are in question")


def gradients(strided: bool, backend: SDPBackend | None) -> list[Tensor]:
    g = torch.Generator("cuda").manual_seed(0)
    q, k, v = (
        torch.randn(2, 1024, 10, 64, device="cuda", dtype=torch.bfloat16, generator=g).requires_grad_()
        for _ in range(3)
    )
    grad = torch.randn(2, 1024, 3 * 640, device="cuda", dtype=torch.bfloat16, generator=g)
    if backend is None:
        out = attention(q, k, v)
    else:
        with sdpa_kernel(backend):
            out = attention(q.float(), k.float(), v.float()).to(torch.bfloat16)
    part = grad[..., 640:1280]
    out.backward(part if strided else part.contiguous())
    return [x.grad.float() for x in (q, k, v) if x.grad is not None]


@pytest.mark.parametrize("order", [(False, True), (True, False)])
def test_gradients_do_not_depend_on_the_strides_that_came_before(order):
    wanted = gradients(False, SDPBackend.MATH)
    for strided in order:
        for ours, reference in zip(gradients(strided, None), wanted, strict=True):
            assert ((ours - reference).norm() / reference.norm()).item() < 0.01
