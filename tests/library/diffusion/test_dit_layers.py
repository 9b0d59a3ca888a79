"""Parts that diffusion transformers share."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sd_scripts.library.diffusion.dit_layers import TanhGELU


def value_and_gradient(function: object, x: Tensor) -> tuple[Tensor, Tensor]:
    x = x.detach().clone().requires_grad_()
    y = function(x)  # type: ignore[operator]
    y.backward(torch.ones_like(y))
    assert x.grad is not None
    return y.detach(), x.grad


@pytest.mark.parametrize(("dtype", "allowed"), [(torch.float32, 2e-6), (torch.bfloat16, 2**-8)])
def test_gelu_is_the_same_function_in_the_form_for_inductor(dtype: torch.dtype, allowed: float, no_graphs: None):
    gelu = TanhGELU()
    gelu.for_inductor = True
    x = torch.cat((torch.linspace(-12, 12, 2001), torch.tensor([-1e4, -100.0, 0.0, 100.0, 1e4]))).to(dtype)
    exact = value_and_gradient(lambda each: F.gelu(each, approximate="tanh"), x.double())
    compiled = torch.compile(gelu, backend="aot_eager", fullgraph=True)
    for function in (gelu, compiled):
        for computed, true in zip(value_and_gradient(function, x), exact, strict=True):
            assert computed.dtype == dtype
            torch.testing.assert_close(computed.double(), true, rtol=allowed, atol=allowed)
