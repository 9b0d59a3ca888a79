"""On a GPU: the kernels of adapters compute what plain PyTorch does."""

import pytest
import torch
from torch import Tensor, nn

from sd_scripts.library.kernels.block_inverse import inverse_of_blocks
from sd_scripts.library.kernels.folded_kronecker import plain_gradients
from sd_scripts.library.kernels.geglu import geglu
from sd_scripts.networks.folded import gains
from sd_scripts.networks.layers import project_geglu
from tests.support.networks.adapters import adapted

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: kernels in Triton")

CUDA = torch.device("cuda")


def learned(kernels: bool, rank: int, dtype: torch.dtype, patch: pytest.MonkeyPatch) -> tuple[Tensor, Tensor]:
    """Return the gains of a DoRA layer and the gradients of its network, with the kernels or without."""
    pytest.importorskip("triton")
    torch.manual_seed(0)
    layer = nn.Linear(200, 136).to(CUDA, dtype)
    patch.setattr(gains, "HAS_TRITON", kernels)
    model, network = adapted(layer, "dora", rank, {"axis": "out"}, shared=True)
    (stack,) = network.gains.stacks
    assert bool(stack.kernels) == kernels
    x = torch.randn(4, 7, 200, generator=torch.Generator().manual_seed(1)).to(CUDA, dtype)
    model(x).float().square().mean().backward()
    network.collect_gradients()
    return stack.gains.clone(), network.gradients.clone()


@pytest.mark.parametrize("rank", [8, 24, 32, 128])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_gains_of_dora_and_their_gradients_match_plain_products(
    rank: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    (ours, grads), (plain_gains, plain_grads) = (
        learned(kernels, rank, dtype, monkeypatch) for kernels in (True, False)
    )
    torch.testing.assert_close(ours, plain_gains, rtol=1e-3, atol=1e-3)
    assert (grads - plain_grads).norm() < 1e-2 * plain_grads.norm()


def test_weights_whose_rows_are_not_multiples_of_16_bytes_use_plain_products() -> None:
    _, network = adapted(nn.Linear(204, 136).to(CUDA, torch.bfloat16), "dora", 8, {"axis": "out"}, shared=True)
    (stack,) = network.gains.stacks
    assert stack.kernels is None


@pytest.mark.parametrize(
    "sizes", [(8, 160, 8, 160, 32), (8, 1280, 8, 160, 32), (8, 80, 8, 320, 16), (3, 10, 5, 12, 12)]
)
@pytest.mark.parametrize("rows", [77, 1024, 4096])
def test_the_gradients_of_a_folded_lokr_match_plain_products(sizes: tuple[int, ...], rows: int) -> None:
    p, c, q, d, r = sizes
    torch.manual_seed(0)
    # rows of x, h, grad and low are parts of wider ones
    parts = [torch.randn(rows, n + 8, device=CUDA).bfloat16()[:, :n] for n in (q * d, q * r, p * c, q * r)]
    parts += [torch.randn(shape, device=CUDA).bfloat16() for shape in ((p, q), (c, r))]
    ours = torch.ops.sd_scripts.kronecker_gradients(*parts)
    for own, plain in zip(ours, plain_gradients(*(part.double() for part in parts)), strict=True):
        assert (own - plain).norm() < 1e-2 * plain.norm()


@pytest.mark.parametrize("gained", [False, True])
@pytest.mark.parametrize(("rows", "half"), [(1024, 5120), (77, 40), (3, 516)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_gradients_of_geglu_match_autograd(dtype: torch.dtype, rows: int, half: int, gained: bool) -> None:
    torch.manual_seed(0)
    grad, projected = (torch.randn(rows, width, device=CUDA).to(dtype) for width in (half, 2 * half))
    gain = torch.rand(2 * half, device=CUDA) if gained else None
    padded = torch.full((rows, 2 * half + 8), torch.nan, device=CUDA, dtype=dtype)
    torch.ops.sd_scripts.fill_geglu_gradients(padded, grad, projected, gain)
    exact = projected.double().requires_grad_()
    geglu(exact).backward(grad.double())
    wanted = exact.grad if gain is None else exact.grad * gain
    assert (padded[:, :-8] - wanted).norm() < (4e-3 if dtype == torch.bfloat16 else 1e-6) * wanted.norm()
    assert padded[:, -8:].isnan().all()  # the low-rank product's place


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize(("kind", "options"), [("lora", {}), ("lokr", {"factor": 8}), ("dora", {"axis": "out"})])
def test_a_folded_layer_trains_like_an_unfolded_one(
    kind: str, options: dict[str, object], backend: str, gated: bool
) -> None:
    results = []
    for folded in (False, True):
        torch.manual_seed(0)
        layer = nn.Linear(640, 1280).to(CUDA, torch.bfloat16)
        model, network = adapted(layer, kind, 32, options, random=0.02)
        if folded:
            network.fold(model.modules())
            assert network.folded
            network.share_gains()
        x = torch.randn(1024, 640, device=CUDA, dtype=torch.bfloat16, requires_grad=True)
        run = (lambda x, own=model: project_geglu(own[0], x)) if gated else model
        y = (torch.compile(run, backend=backend) if folded else run)(x)
        (y.float().square().sum() / 1024).backward()
        network.collect_gradients()
        results.append((y.detach().float(), x.grad.float(), network.gradients.clone()))  # type: ignore[union-attr]
    for ours, theirs in zip(*results, strict=True):
        assert (ours - theirs).norm() < 2e-2 * theirs.norm()


@pytest.mark.parametrize(("n", "size"), [(4, 1.0), (20, 0.1), (32, 3.0), (40, 30.0), (64, 1.0), (80, 1.0)])
def test_inverses_of_blocks_are_exact(n: int, size: float) -> None:
    torch.manual_seed(0)
    q = torch.randn(3, 5, n, n, dtype=torch.float64, device=CUDA) * size
    blocks = torch.eye(n, device=CUDA) - (q - q.mT)
    torch.testing.assert_close(
        inverse_of_blocks(blocks.float()), torch.linalg.inv(blocks).float(), rtol=1e-3, atol=1e-4
    )
