"""The kernels of normalised and rotated heads on a GPU, against the plain form in float64."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sd_scripts.library.diffusion.dit_layers import EPS, apply_rope, rope_of
from sd_scripts.library.kernels.norm_rope import normed_and_rotated

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: Triton kernels")

GPU = torch.device("cuda")


def exact(parts: list[Tensor], scales: list[Tensor], rope: Any) -> Tensor:
    normed = [F.rms_norm(x.double(), x.shape[-1:], eps=EPS) * s.double() for x, s in zip(parts, scales, strict=True)]
    return apply_rope(torch.cat(normed, dim=1), [each.double() for each in rope])


def error(found: Tensor, want: Tensor) -> float:
    return ((found.double() - want).norm() / want.norm()).item()


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-6), (torch.bfloat16, 3e-3), (torch.float16, 4e-4)])
@pytest.mark.parametrize(
    ("batch", "tokens", "heads", "width"), [(2, (128, 989), 24, 128), (1, (4608,), 24, 128), (3, (5, 7), 2, 32)]
)
@pytest.mark.parametrize("compiled", [False, True])
def test_norm_rope_kernels_match_values_and_gradients_of_plain_pytorch(
    dtype: torch.dtype, bound: float, batch: int, tokens: tuple[int, ...], heads: int, width: int, compiled: bool
) -> None:
    """Of parts that lie among other values, as queries do, and for a gradient in attention's order."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    rows = [torch.randn(batch, count, 3 * heads * width, device=GPU, dtype=dtype) for count in tokens]
    parts = [x[..., heads * width : 2 * heads * width].unflatten(-1, (heads, width)).detach() for x in rows]
    scales = [(1 + 0.1 * torch.randn(width, device=GPU)).to(dtype) for _ in tokens]
    rope = rope_of(100 * torch.rand(sum(tokens), 3).double(), (width // 4, width // 4, width // 2), GPU)
    grad = torch.randn(batch, heads, sum(tokens), width, device=GPU, dtype=dtype).transpose(1, 2)

    run = torch.compile(normed_and_rotated, fullgraph=True) if compiled else normed_and_rotated
    ours, theirs = ([x.clone().requires_grad_() for x in parts] for _ in range(2))
    found, want = run(ours, scales, rope), exact(theirs, scales, rope)
    assert found.dtype == dtype
    assert error(found, want) < bound
    found.backward(grad)
    want.backward(grad.double())
    for x, y in zip(ours, theirs, strict=True):
        assert y.grad is not None
        assert error(x.grad, y.grad.double()) < 2 * bound  # type: ignore[arg-type]


def test_a_rope_for_each_image_gives_the_values_and_gradients_of_plain_pytorch() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 37, 3 * 4 * 64, device=GPU)[..., 256:512].unflatten(-1, (4, 64))
    angles, scale = 100 * torch.rand(2, 37, 1, 32, device=GPU), torch.rand(64, device=GPU)
    ours, theirs = (x.detach().clone().requires_grad_() for _ in range(2))
    found = normed_and_rotated([ours], [scale], (angles.cos(), angles.sin()))
    want = exact([theirs], [scale], (angles.cos(), angles.sin()))
    assert error(found, want) < 1e-6
    grad = torch.randn(2, 4, 37, 64, device=GPU).transpose(1, 2)
    found.backward(grad)
    want.backward(grad.double())
    assert error(ours.grad, theirs.grad.double()) < 2e-6  # type: ignore[arg-type, union-attr]


def test_trained_scales_have_gradients() -> None:
    rope = rope_of(torch.rand(6, 1).double(), (16,), GPU)
    scale = torch.ones(16, device=GPU, requires_grad=True)
    normed_and_rotated([torch.randn(1, 6, 2, 16, device=GPU)], [scale], rope).square().sum().backward()
    assert scale.grad is not None
    assert scale.grad.count_nonzero() == 16
