"""Normalised and rotated heads: the plain form is the paper's formula."""

import math

import pytest
import torch
import torch.nn.functional as F

from sd_scripts.library.diffusion.dit_layers import EPS, rope_of
from sd_scripts.library.kernels.norm_rope import normed_and_rotated


def test_heads_are_complex_numbers_rotated_by_the_position() -> None:
    """RMS norm (Zhang and Sennrich 2019), then rotary embedding (Su et al. 2021): pairs times e^(i angle)."""
    torch.manual_seed(0)
    parts = [torch.randn(2, tokens, 3, 8) for tokens in (5, 4)]
    scales = [1 + 0.1 * torch.randn(8) for _ in parts]
    positions = torch.arange(9, dtype=torch.float64)[:, None]
    rope = rope_of(positions, (8,), torch.device("cpu"))

    rates = 10_000 ** -(torch.arange(4) / 4)
    turns = torch.polar(torch.ones(9, 4), positions.float() * rates)[None, :, None]
    normed = torch.cat(
        [x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * s for x, s in zip(parts, scales, strict=True)], dim=1
    )
    want = torch.view_as_real(torch.view_as_complex(normed.unflatten(-1, (4, 2))) * turns).flatten(-2)
    torch.testing.assert_close(normed_and_rotated(parts, scales, rope), want)


def test_rotation_preserves_norms_and_products_at_one_position() -> None:
    torch.manual_seed(0)
    q, k = torch.randn(2, 1, 6, 2, 16).unbind(0)
    rope = rope_of(torch.rand(6, 1).double() * math.pi, (16,), torch.device("cpu"))
    one = torch.ones(16)
    turned = [normed_and_rotated([x], [one], rope) for x in (q, k)]
    plain = [F.rms_norm(x, (16,), eps=EPS) for x in (q, k)]
    torch.testing.assert_close(turned[0].norm(dim=-1), plain[0].norm(dim=-1))
    torch.testing.assert_close((turned[0] * turned[1]).sum(-1), (plain[0] * plain[1]).sum(-1))


def test_each_image_of_a_batch_may_have_a_rope_of_its_own() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 5, 3 * 2 * 8)[..., 16:32].unflatten(-1, (2, 8)).requires_grad_()
    angles = torch.rand(2, 5, 1, 4)
    rope, scale = (angles.cos(), angles.sin()), torch.rand(8)
    found = normed_and_rotated([x], [scale], rope)
    alone = [
        normed_and_rotated([image], [scale], (cos, sin))
        for image, cos, sin in zip(x.split(1), *(each.split(1) for each in rope), strict=True)
    ]
    assert torch.equal(found, torch.cat(alone))
    weights = torch.randn_like(found)
    gradients = [torch.autograd.grad((each * weights).sum(), x)[0] for each in (found, torch.cat(alone))]
    assert torch.equal(*gradients)


@pytest.mark.parametrize("backend", ["", "aot_eager", pytest.param("inductor", marks=pytest.mark.inductor)])
def test_the_operator_that_kernels_implement_has_the_gradients_of_the_plain_form(backend: str) -> None:
    torch._dynamo.reset()
    rows = [torch.randn(2, tokens, 3 * 6 * 8) for tokens in (5, 4)]
    parts = [x[..., 48:96].unflatten(-1, (6, 8)).detach() for x in rows]
    scales = [1 + 0.1 * torch.randn(8) for _ in parts]
    rope, eps = rope_of(torch.rand(9, 1).double(), (8,), torch.device("cpu")), 0.1
    results = []
    for operator in (False, True):
        inputs = [x.clone().requires_grad_() for x in parts]
        if operator:
            run = torch.ops.sd_scripts.norm_rope
            found = (torch.compile(run, backend=backend) if backend else run)(inputs, scales, *rope, eps)
        else:
            found = normed_and_rotated(inputs, scales, rope, eps)
        found.square().cumsum(1).sum().backward()
        results.append((found, *[x.grad for x in inputs]))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs)
