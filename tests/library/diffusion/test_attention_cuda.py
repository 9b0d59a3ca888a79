"""On a GPU: gradients through our attention match PyTorch's math backend, whatever strides they meet."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from sd_scripts.library.diffusion.attention import _bounds, attention, padding_mask

pytestmark = [
    pytest.mark.deep,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: the plans of cuDNN are in question"),
]

SHAPES = {"sdxl": (2, 1024, 10, 64), "flux": (1, 4608, 24, 128), "flux, odd length": (1, 576 + 64, 24, 128)}
"""Batch, tokens, heads, width of a head."""


@pytest.fixture
def deterministic() -> Iterator[None]:
    """As the option of this name sets it."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def gradients(shape: tuple[int, ...], strided: bool, backend: SDPBackend | None, masked: bool) -> list[Tensor]:
    batch, tokens, heads, width = shape
    g = torch.Generator("cuda").manual_seed(0)
    q, k, v = (torch.randn(shape, device="cuda", dtype=torch.bfloat16, generator=g).requires_grad_() for _ in range(3))
    mask = torch.ones(batch, 1, 1, tokens, dtype=torch.bool, device="cuda")
    mask[..., 7:70] = False
    whole = heads * width
    grad = torch.randn(batch, tokens, 3 * whole, device="cuda", dtype=torch.bfloat16, generator=g)
    if backend is None:
        out = attention(q, k, v, mask if masked else None)
    else:
        q32, k32, v32 = (x.float().transpose(1, 2) for x in (q, k, v))
        with sdpa_kernel(backend):
            out = torch.nn.functional.scaled_dot_product_attention(q32, k32, v32, attn_mask=mask if masked else None)
        out = out.transpose(1, 2).flatten(2).to(torch.bfloat16)
    part = grad[..., whole : 2 * whole]
    out.backward(part if strided else part.contiguous())
    return [x.grad.float() for x in (q, k, v) if x.grad is not None]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("order", [(False, True), (True, False)])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_gradients_do_not_depend_on_the_strides_that_came_before(
    shape: tuple[int, ...], order: tuple[bool, bool], masked: bool
) -> None:
    wanted = gradients(shape, False, SDPBackend.MATH, masked)
    for strided in order:
        for ours, reference in zip(gradients(shape, strided, None, masked), wanted, strict=True):
            assert ((ours - reference).norm() / reference.norm()).item() < 0.01


@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_deterministic_gradients_repeat(shape: tuple[int, ...], masked: bool) -> None:
    first = gradients(shape, False, None, masked)
    for _ in range(3):
        assert all(map(torch.equal, gradients(shape, False, None, masked), first))


@pytest.mark.parametrize("valid", [(6889 + 70,), (6889 + 128,), (700, 768)], ids=["short", "long", "batch"])
def test_padding_that_is_skipped_changes_neither_outputs_nor_gradients(valid: tuple[int, ...]) -> None:
    """The lengths of Qwen-Image at 1328x1328 with a caption of up to 128 tokens, and a small batch."""
    tokens, g = -(-max(valid) // 64) * 64, torch.Generator("cuda").manual_seed(0)
    shape = (len(valid), tokens, 4, 128)
    keys = torch.arange(tokens, device="cuda") < torch.tensor(valid, device="cuda")[:, None]
    q, k, v = (torch.randn(shape, device="cuda", dtype=torch.bfloat16, generator=g).requires_grad_() for _ in range(3))
    grad = torch.randn(*shape[:2], 512, device="cuda", dtype=torch.bfloat16, generator=g) * keys[..., None]

    def found(mask: Tensor) -> list[Tensor]:
        out = attention(q, k, v, mask)
        return [out * keys[..., None], *torch.autograd.grad(out, (q, k, v), grad)]

    wanted = found(keys[:, None, None])
    for mask in (padding_mask(keys, torch.bfloat16), _bounds(keys)):
        for skipped, masked in zip(found(mask), wanted, strict=True):
            assert ((skipped - masked).norm() / masked.norm()).item() < 0.01


@pytest.mark.usefixtures("deterministic")
def test_deterministic_runs_skip_padding_by_kernels_that_repeat() -> None:
    keys = torch.ones(1, 64, dtype=torch.bool, device="cuda")
    assert padding_mask(keys, torch.bfloat16).dtype == torch.int32
