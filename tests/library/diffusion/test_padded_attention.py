"""Attention whose padding is taken out afterwards equals attention with a mask, but for its sums in float32."""

import pytest
import torch
from torch import Tensor

from sd_scripts.library.diffusion.padded_attention import attention_without_padding

VALID = torch.arange(12) < torch.tensor([12, 9, 1])[:, None]


def inputs(key_offset: float = 0.0, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(3, 12, 2, 8, generator=g, dtype=torch.float64) for _ in range(3))
    k += key_offset * torch.randn(1, 1, 2, 8, generator=g, dtype=torch.float64)
    return [x.to(dtype).requires_grad_() for x in (q, k, v)]


def masked(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=VALID[:, None, None]).transpose(1, 2)


def found(attend: object, given: list[Tensor]) -> list[Tensor]:
    """The outputs of valid queries, and the gradients of q, k and v."""
    assert callable(attend)
    out = attend(*given) * VALID[..., None, None]
    grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(out.dtype)
    return [out, *torch.autograd.grad(out, given, grad)]


@pytest.mark.parametrize("key_offset", [0.0, 1.0, 30.0])
def test_outputs_and_gradients_equal_those_with_a_mask(key_offset: float) -> None:
    """Also where all keys lie far to one side, so that the sums of the softmaxes are tiny or huge."""
    given = inputs(key_offset)
    ours = found(lambda q, k, v: attention_without_padding(q, k, v, VALID), given)
    for mine, wanted in zip(ours, found(masked, given), strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-5, atol=1e-5)


def test_in_bf16_it_differs_from_exact_mathematics_no_more_than_a_mask_does() -> None:
    exact = found(masked, inputs(1.0))
    half = inputs(1.0, torch.bfloat16)
    ours = found(lambda q, k, v: attention_without_padding(q, k, v, VALID), half)
    for mine, theirs, wanted in zip(ours, found(masked, half), exact, strict=True):
        assert (mine.double() - wanted).norm() < 2 * (theirs.double() - wanted).norm() + 1e-3


def test_the_content_of_padding_changes_nothing() -> None:
    given = inputs()
    with torch.no_grad():
        plain = attention_without_padding(*given, VALID)
        other = attention_without_padding(
            given[0], *(x.masked_fill(~VALID[..., None, None], torch.inf) for x in given[1:]), VALID
        )
    assert torch.equal(plain, other)


def test_compiled_it_is_the_same_in_one_graph() -> None:
    given = inputs(dtype=torch.float32)
    compiled = torch.compile(attention_without_padding, backend="aot_eager", fullgraph=True)
    ours = found(lambda q, k, v: compiled(q, k, v, VALID), given)
    for mine, wanted in zip(ours, found(masked, given), strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-5, atol=1e-5)
