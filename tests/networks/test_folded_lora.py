"""LoRA folded into the base product: the paper's formula, in compiled code."""

from collections.abc import Sequence
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

from sd_scripts.families.sdxl.tiny import UNET as TINY_UNET
from sd_scripts.families.sdxl.unet import prepare_unet
from sd_scripts.library.compile_utils import compile_model
from sd_scripts.library.files.lean_diffusers import BasicTransformerBlock, UNet2DConditionModel
from sd_scripts.library.kernels.folded_product import Ways
from sd_scripts.networks.adapter import Adapter, Group, LayerPlan
from sd_scripts.networks.adapters.dora import Dora, DoraLinear
from sd_scripts.networks.adapters.lokr import Lokr, LokrLinear
from sd_scripts.networks.adapters.lora import Lora
from sd_scripts.networks.layers import Dropouts, project_geglu, project_together
from sd_scripts.networks.network import AdapterNetwork, attach
from sd_scripts.options.compile import CompileOptions
from sd_scripts.training.methods.lora import layers_to_fold
from tests.support.networks.lora import adapt

pytestmark = pytest.mark.run

UNET, OUTPUTS = Group("unet", 1e-3), {"axis": "out"}


class Block(nn.Module):
    """Layers that share an input, one that does not, and one that is too narrow to be folded."""

    def __init__(self, odd: int = 12) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(16, out, bias=False) for out in (24, 24, 32))
        self.norm, self.up, self.down = nn.LayerNorm(32), nn.Linear(32, 128), nn.Linear(64, 16)
        self.odd = nn.Linear(16, odd)

    def forward(self, x: Tensor) -> Tensor:
        """(B, S, 16) -> (B, S, odd)"""
        q, k, v = project_together((self.q, self.k, self.v), x)
        mixed = self.norm(v + (q * k).sum(-1, keepdim=True).tanh())
        return self.odd(x + self.down(project_geglu(self.up, mixed)))


def folded_block(odd: int = 12) -> tuple[Block, AdapterNetwork]:
    torch.manual_seed(0)
    block = Block(odd)
    network = adapt(block, 8, 4.0)
    network.fold(block.modules(), [[block.q, block.k, block.v]], [block.down])
    return block, network


def test_layers_of_one_input_share_a_matrix() -> None:
    block, network = folded_block()
    assert network.folded is not None
    matrices = {layer.joint_layers: tuple(layer.joint.shape) for layer in (block.q, block.up)}  # type: ignore[union-attr]
    assert matrices == {3: (24 + 24 + 32 + 3 * 8, 16 + 3 * 8), 1: (128 + 8, 32 + 8)}
    assert [layer.joint for layer in (block.k, block.v, block.odd)] == [None, None, None]
    assert block.k.weight.untyped_storage().data_ptr() == block.q.joint.untyped_storage().data_ptr()


@pytest.mark.parametrize("odd", [12, 16])
def test_the_copies_are_kept_once(odd: int) -> None:
    """Weights of layers that are not folded stay where they are."""
    block, network = folded_block(odd)
    where = block.odd.lora_down.data_ptr()
    network.refresh()
    assert block.odd.lora_down.data_ptr() == where
    assert network.compute.untyped_storage().nbytes() == (0 if odd == 16 else network.compute.nbytes)


@pytest.mark.parametrize(("output", "gradient"), [(False, False), (False, True), (True, False)])
def test_each_product_may_be_a_joint_one(output: bool, gradient: bool, no_graphs: None) -> None:
    """Which products there are is decided in our function, which Dynamo traces; AOTAutograd compiles both below."""
    block, network = folded_block()
    for layer in (block.q, block.up, block.down):
        layer.ways = Ways(output, gradient)  # type: ignore[assignment]
    x = torch.randn(3, 10, 16, requires_grad=True)
    results = []
    for run in (block, torch.compile(block, backend="eager", fullgraph=True)):
        run(x).square().sum().backward()
        network.collect_gradients()
        results.append((network.gradients.clone(), x.grad))
        x.grad = None
        network.zero_grad()
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_a_large_layer_joins_the_product_with_the_wider_result() -> None:
    model = nn.ModuleDict({"wide": nn.Linear(16, 48), "deep": nn.Linear(48, 16), "small": nn.Linear(48, 8)})
    layers = adapt(model, 8), dict(model.named_modules())
    with mock.patch("sd_scripts.networks.folded.folding.LARGE", 16):
        layers[0].fold(model.modules())
    ways = {name: layer.ways for name, layer in layers[1].items() if name}  # type: ignore[union-attr]
    assert ways == {"wide": Ways(gradient=False), "deep": Ways(output=False), "small": Ways()}


def test_layers_as_large_as_swapped_ones_are_not_folded() -> None:
    model = nn.ModuleList([nn.Linear(16, 32), nn.Linear(16, 32), nn.Linear(32, 16)])
    network = adapt(model, 8)
    model[0].weight.host_copy = True
    network.fold(model.modules())
    assert [layer.joint is None for layer in model] == [True, True, False]


@pytest.mark.parametrize(("learns_input", "backend"), [(True, "aot_eager"), (False, "eager")])
def test_outputs_and_gradients_match_separate_products(learns_input: bool, backend: str) -> None:
    block, network = folded_block()
    x = torch.randn(3, 10, 16, requires_grad=learns_input)
    results = []
    for run in (block, torch.compile(block, backend=backend, fullgraph=True)):
        y = run(x)
        y.square().sum().backward()
        network.collect_gradients()
        results.append((y.detach(), network.gradients.clone(), x.grad))
        x.grad = None
        network.zero_grad()
    for ours, theirs in zip(*results, strict=True):
        if theirs is not None:
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert results[0][1].count_nonzero() == results[0][1].numel()


def test_a_folded_dora_matches_its_separate_layers() -> None:
    results = []
    for folded in (False, True):
        torch.manual_seed(0)
        block = Block(16)
        network = attached(block, Dora, OUTPUTS)
        if folded:
            network.fold(block.modules(), [[block.q, block.k, block.v]], [block.down])
            network.share_gains()
            assert isinstance(block.q, DoraLinear)
            assert block.q.joint_layers == 3
        run = torch.compile(block, backend="aot_eager", fullgraph=True) if folded else block
        x = torch.randn(3, 10, 16, requires_grad=True)
        for _ in range(2):  # gradients of micro-steps add up
            y = run(x)
            y.square().sum().backward()
            network.collect_gradients()
        results.append((y.detach(), x.grad, network.gradients.clone()))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)
    assert results[0][2].count_nonzero() == results[0][2].numel()


def test_a_folded_lokr_matches_its_separate_layers(no_graphs: None) -> None:
    results = []
    for folded in (False, True):
        torch.manual_seed(0)
        block = Block(16)
        network = attached(block, Lokr, {"factor": 2}, rank=4)
        if folded:
            network.fold(block.modules(), [[block.q, block.k, block.v]], [block.down])
            assert isinstance(block.q, LokrLinear)
            assert (block.q.joint_layers, block.down.joint is None) == (3, False)
            block.q.weight.data = block.q.weight[:0]  # the joint matrix has it
        run = torch.compile(block, backend="aot_eager", fullgraph=True) if folded else block
        x = torch.randn(3, 10, 16, requires_grad=True)
        for _ in range(2):  # gradients of micro-steps add up
            y = run(x)
            y.square().sum().backward()
            network.collect_gradients()
        results.append((y.detach(), x.grad, network.gradients.clone()))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)
    assert results[0][2].count_nonzero() == results[0][2].numel()


@pytest.mark.inductor
def test_a_folded_block_of_sdxl_compiled_by_inductor_matches_its_separate_layers(no_graphs: None) -> None:
    """LoRA of q, k and v, DoRA of the GEGLU: both kinds of joint products in one graph, with our attention, compiled as
    in a run. Each kernel takes a second, so the cross-attention, which computes alike, is left out."""
    results = []
    for folded in (False, True):
        torch.manual_seed(0)
        unet = prepare_unet(UNet2DConditionModel(**TINY_UNET))
        block = next(part for part in unet.modules() if isinstance(part, BasicTransformerBlock)).requires_grad_(False)
        block.attn2 = None
        network = attached(block, Lora, {}, dora=("ff.net.0.proj",))
        if folded:
            q, k, v = block.attn1.to_q, block.attn1.to_k, block.attn1.to_v
            network.fold(block.modules(), [[q, k, v]], [block.attn1.to_out[0]])
            network.share_gains()
            assert (q.joint_layers, block.ff.net[0].proj.joint_layers) == (3, 1)
            compile_model(CompileOptions(compile=True, compile_fullgraph=True), block, [[block]], static=True)
        x = torch.randn(2, 16, 32, requires_grad=True)
        y = block(x)
        y.square().sum().backward()
        network.collect_gradients()
        results.append((y.detach(), x.grad, network.gradients.clone()))
    assert counters["stats"]["unique_graphs"] == 1
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


def test_lokr_is_not_folded_if_memory_is_saved() -> None:
    torch.manual_seed(0)
    block = Block(16)
    network = attached(block, Lokr, {"factor": 2}, rank=4)
    network.fold(layers_to_fold(block, saves_memory=True), [[block.q, block.k, block.v]])
    assert network.folded is None
    network.fold(layers_to_fold(block, saves_memory=False), [[block.q, block.k, block.v]])
    assert network.folded is not None


def attached(
    block: nn.Module, kind: type[Adapter], options: dict[str, Any], rank: int = 8, dora: Sequence[str] = ()
) -> AdapterNetwork:
    """All layers of a block with adapters that have an effect, with DoRA on the paths `dora`."""
    plans = [
        LayerPlan(
            name=path,
            module=block,
            path=path,
            kind=Dora if path in dora else kind,
            rank=rank,
            alpha=4.0,
            group=UNET,
            options=OUTPUTS if path in dora else options,
        )
        for path, layer in block.named_modules()
        if isinstance(layer, nn.Linear)
    ]
    network = attach(plans, Dropouts(), torch.Generator().manual_seed(0))
    with torch.no_grad():
        network.masters.add_(0.1 * torch.randn(network.masters.shape))
    network.refresh()
    return network


def test_an_update_reaches_the_joint_matrices() -> None:
    block, network = folded_block()
    x = torch.randn(2, 10, 16)
    compiled = torch.compile(block, backend="eager")
    with torch.no_grad():
        before = compiled(x)
        network.masters.mul_(0.5)
        network.refresh()
        after = compiled(x)
        torch.testing.assert_close(after, block(x))
    assert not torch.allclose(before, after)


def test_shared_gains_follow_the_weights() -> None:
    """After an update, the next call of the model computes with the norms of the new weights."""
    torch.manual_seed(0)
    block = Block(16)
    network = attached(block, Dora, OUTPUTS)
    alone = attached(deepcopy_of_base(block), Dora, OUTPUTS)
    network.share_gains()
    x = torch.randn(2, 5, 16)
    with torch.no_grad():
        for step in range(2):
            alone.masters.copy_(network.masters)
            alone.refresh()
            torch.testing.assert_close(block(x), alone.layers[0].plan.module(x), rtol=1e-4, atol=1e-5)
            network.masters.mul_(0.5 + step)
            network.refresh()


def deepcopy_of_base(block: Block) -> Block:
    """A block of plain layers with the base weights of an adapted one."""
    plain = Block(16)
    own = dict(block.named_modules())
    with torch.no_grad():
        for path, layer in plain.named_modules():
            if isinstance(layer, nn.Linear | nn.LayerNorm):
                layer.weight.copy_(own[path].weight)  # type: ignore[arg-type]
                if layer.bias is not None:
                    layer.bias.copy_(own[path].bias)  # type: ignore[arg-type]
    return plain
