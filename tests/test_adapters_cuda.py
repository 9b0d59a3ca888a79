"""On a GPU: the kernels of adapters compute what plain PyTorch does."""

import pytest
import torch
from adapter_help import adapted
from torch import Tensor, nn

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: kernels in Triton")

CUDA = torch.device("cuda")


def learned(kernels: bool, rank: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the gains of a DoRA layer and the gradients of its network, with the kernels or without."""
    torch.manual_seed(0)
    layer = nn.Linear(200, 136).to(CUDA, dtype)
    model, network = adapted(layer, "dora", rank, {"axis": "out"}, shared=True)
    (stack,) = network.gains.stacks
    assert stack.kernels
    if not kernels:
        stack.kernels = None
    x = torch.randn(4, 7, 200, generator=torch.Generator().manual_seed(1)).to(CUDA, dtype)
    model(x).float().square().mean().backward()
    network.collect_gradients()
    return stack.gains.clone(), network.gradients.clone()


@pytest.mark.parametrize("rank", [8, 24, 32, 128])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_gains_of_dora_and_their_gradients_are_those_of_plain_products(rank: int, dtype: torch.dtype) -> None:
    (gains, grads), (plain_gains, plain_grads) = (learned(kernels, rank, dtype) for kernels in (True, False))
    torch.testing.assert_close(gains, plain_gains, rtol=1e-3, atol=1e-3)
    assert (grads - plain_grads).norm() < 1e-2 * plain_grads.norm()
