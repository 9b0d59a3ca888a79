"""The layers of a LoRA against the paper's formula: values, gradients, memory, dropouts, graphs."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend

from sd_scripts.networks.layers import Dropouts, project_together
from tests.support.networks.lora import adapt, plain, plain_gradients

LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear (B, C)": (lambda: nn.Linear(6, 8), (3, 6)),
    "linear (B, S, C)": (lambda: nn.Linear(6, 8, bias=False), (2, 5, 6)),
    "linear (B, H, W, C)": (lambda: nn.Linear(6, 8), (2, 3, 4, 6)),
    "conv 1x1": (lambda: nn.Conv2d(4, 6, 1), (2, 4, 5, 5)),
    "conv 3x3": (lambda: nn.Conv2d(4, 6, 3, padding=1), (2, 4, 5, 5)),
    "conv 3x3, stride 2": (lambda: nn.Conv2d(4, 6, 3, stride=2, padding=1, bias=False), (2, 4, 6, 6)),
    "conv 3x3, stride 2, no padding": (lambda: nn.Conv2d(4, 6, 3, stride=2), (2, 4, 7, 7)),
}


class Block(nn.Module):
    """q, k, v and a convolution, as the blocks of a U-Net have them."""

    def __init__(self, width: int = 8):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.conv = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """(B, S, C) -> same"""
        q, k, v = project_together((self.q, self.k, self.v), x)
        mixed = (q * k).tanh() + v  # (B, S, C)
        return self.conv(mixed.movedim(-1, 1).unsqueeze(-1)).squeeze(-1).movedim(1, -1).contiguous()


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize(("rank", "alpha"), [(1, 1.0), (2, 1.0), (16, 4.0)])
def test_output_and_gradients_follow_the_paper(kind: str, rank: int, alpha: float) -> None:
    make, shape = LAYERS[kind]
    model = nn.Sequential(make())
    network = adapt(model, rank, alpha)
    layer, x = network.layers[0], torch.randn(shape, requires_grad=True)
    y = model(x)
    close(y, plain(layer, x, layer.down, layer.up))
    y.square().sum().backward()
    network.collect_gradients()
    for ours, theirs in zip((layer.down.grad, layer.up.grad, x.grad), plain_gradients(layer, x), strict=True):
        close(ours, theirs)


def test_layers_that_project_together_have_the_gradients_of_layers_alone() -> None:
    model = nn.ModuleDict({name: nn.Linear(6, 8) for name in "qkv"})
    network = adapt(model, {"q": 1, "k": 4, "v": 7}, {"q": 1.0, "k": 0.5, "v": 7.0})
    x = torch.randn(2, 5, 6, requires_grad=True)
    outputs = project_together([model[name] for name in "qkv"], x)
    sum(y.square().sum() for y in outputs).backward()  # type: ignore[union-attr]
    network.collect_gradients()
    expected = [plain_gradients(layer, x) for layer in network.layers]
    for layer, y, (down, up, _) in zip(network.layers, outputs, expected, strict=True):
        close(y, plain(layer, x, layer.down, layer.up))
        close(layer.down.grad, down)
        close(layer.up.grad, up)
    close(x.grad, sum(grad for _, _, grad in expected))


def test_layers_without_lora_project_unchanged() -> None:
    layers, x = [nn.Linear(6, 8), nn.Linear(6, 3)], torch.randn(2, 6)
    for y, layer in zip(project_together(layers, x), layers, strict=True):
        assert torch.equal(y, layer(x))


@pytest.mark.parametrize("kind", LAYERS)
def test_an_adapted_layer_keeps_the_attributes_of_the_original(kind: str) -> None:
    make, shape = LAYERS[kind]
    base = make()
    model, x = nn.Sequential(base), torch.randn(shape)
    adapt(model)
    for name in base.__constants__:
        assert getattr(model[0], name) == getattr(base, name), name
    assert (model[0].weight, model[0].bias) == (base.weight, base.bias)
    assert isinstance(model[0], type(base))
    assert model[0].training == base.training
    assert model(x).shape == base(x).shape
    assert str(model[0]).partition("(")[2] == str(base).partition("(")[2]


@pytest.mark.parametrize("kind", LAYERS)
def test_only_the_input_and_the_low_rank_are_kept_for_the_backward(kind: str) -> None:
    make, shape = LAYERS[kind]
    model = nn.Sequential(make())
    network = adapt(model, 2)
    x = torch.randn(shape, requires_grad=True)
    kept = kept_for_backward(lambda: model(x), model)
    assert kept.pop(x.untyped_storage().data_ptr()).numel() == x.numel()
    (low,) = kept.values()
    assert low.numel() == model(x).numel() // network.layers[0].up.shape[0] * 2


def test_layers_that_project_together_keep_their_input_once() -> None:
    block = Block()
    adapt(block, 2)
    x = torch.randn(2, 5, 8, requires_grad=True)
    kept = kept_for_backward(lambda: torch.stack(project_together((block.q, block.k, block.v), x)), block)
    kept.pop(x.untyped_storage().data_ptr())
    assert sorted(t.untyped_storage().nbytes() // 4 for t in kept.values()) == [3 * 2 * 8, 2 * 5 * 3 * 2]  # downs, low


def kept_for_backward(forward: Callable[[], Tensor], model: nn.Module) -> dict[int, Tensor]:
    """Tensors by the address of their memory, without the weights."""
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = forward()
    assert out.untyped_storage().data_ptr() not in kept
    return {address: tensor for address, tensor in kept.items() if address not in weights}


def test_each_dropout_silences_its_part_and_keeps_the_mean() -> None:
    ones = torch.ones(4000, 5, 8)
    neuron = Dropouts(neuron=0.25)(ones)
    assert neuron.mean().item() == pytest.approx(1, abs=0.01)
    assert (neuron == 0).float().mean().item() == pytest.approx(0.25, abs=0.01)

    rank = Dropouts(rank=0.25)(ones)
    assert torch.equal(rank, rank[:, :1].expand_as(rank))  # whole ranks of an image
    assert rank.mean().item() == pytest.approx(1, abs=0.02)
    assert (rank[:, 0] == 0).float().mean().item() == pytest.approx(0.25, abs=0.02)

    module = Dropouts(module=0.25)
    outcomes = torch.stack([module(ones[0]).unique(return_counts=False) for _ in range(2000)])
    assert outcomes.shape == (2000, 1)  # the whole layer, or nothing
    assert outcomes.mean().item() == pytest.approx(0.75, abs=0.04)


@pytest.mark.parametrize("dropouts", [Dropouts(neuron=0.5), Dropouts(rank=0.5), Dropouts(module=0.5)])
def test_dropouts_are_for_training_only(dropouts: Dropouts) -> None:
    block = Block()
    network = adapt(block, 4, dropouts=dropouts)
    x = torch.randn(3, 4, 8)
    block.eval()
    still = block(x)
    assert torch.equal(still, block(x))
    close(block.q(x), plain(network.layers[0], x, network.layers[0].down, network.layers[0].up))
    block.train()
    assert any(not torch.allclose(still, block(x)) for _ in range(8))


@pytest.mark.deep
@pytest.mark.parametrize("dropouts", [Dropouts(), Dropouts(neuron=0.2, rank=0.3, module=0.5)])
def test_equal_blocks_share_one_graph_and_match_eager_blocks(dropouts: Dropouts) -> None:
    torch._dynamo.reset()
    blocks = nn.Sequential(*(Block() for _ in range(3)))
    network = adapt(blocks, 4, 2.0, dropouts)
    x = torch.randn(2, 5, 8, requires_grad=True)
    counter = CompileCounterWithBackend("aot_eager")

    eager = [step(blocks, network, x, seed) for seed in range(3)]
    for block in blocks:
        block.compile(backend=counter, fullgraph=True)
    compiled = [step(blocks, network, x, seed) for seed in range(3)]

    assert counter.frame_count == 1
    for (loss, gradient), (expected, expected_gradient) in zip(compiled, eager, strict=True):
        close(loss, expected)
        close(gradient, expected_gradient)


def step(blocks: nn.Module, network: object, x: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(seed)
    loss = blocks(x).square().mean()
    loss.backward()
    network.collect_gradients()  # type: ignore[attr-defined]
    gradient = network.gradients.clone()  # type: ignore[attr-defined]
    network.zero_grad()  # type: ignore[attr-defined]
    return loss.detach(), gradient


def close(ours: Tensor | None, theirs: Tensor | int) -> None:
    assert isinstance(theirs, Tensor)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
