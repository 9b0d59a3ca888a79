"""SDXL's swapped blocks compute and train like resident ones, bit for bit."""

import copy
import functools
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

from sd_scripts.families.common.family import Components
from sd_scripts.families.common.placing import placement_of
from sd_scripts.families.sdxl.memory import place, swappable_blocks
from sd_scripts.families.sdxl.tiny import TEXT_WIDTHS, tiny_modules
from sd_scripts.families.sdxl.unet import checkpoint_gradients, prepare_unet
from sd_scripts.library.diffusion.block_swap import SLOTS
from sd_scripts.library.quantization import fp8
from sd_scripts.networks.adapters.lora import LoraLinear
from sd_scripts.networks.folded.folding import fold
from sd_scripts.networks.layers import Dropouts
from sd_scripts.options.networks.network import NetworkOptions
from sd_scripts.options.training import TrainingOptions
from sd_scripts.settings.settings import Settings
from tests.support.scripts import SDXL_FULL, SDXL_LORA
from tests.support.swap import CPU, update_by_block, update_in_backward, updates

pytestmark = pytest.mark.run

MOST = 9
"""Of the miniature's 11 transformer blocks."""


@functools.cache
def miniature_unet() -> nn.Module:
    """Do not change it."""
    return tiny_modules(300)["denoiser"]


def placed(swap: int, *, trainable: bool, checkpointing: bool = False, quantized: bool = False) -> Any:
    unet = prepare_unet(copy.deepcopy(miniature_unet()).requires_grad_(trainable))
    for layer in (layer for block in swappable_blocks(unet) for layer in list(block.modules()) if quantized):
        if isinstance(layer, nn.Linear):
            fp8.quantize_(layer, torch.float32)
    script = SDXL_FULL if trainable else SDXL_LORA
    settings = Settings(script, {"blocks_to_swap": swap, "gradient_checkpointing": checkpointing})
    place(
        Components(denoiser=unet, vae=nn.Identity(), text_encoders=[], tokenizers=[], source=""),
        placement_of(settings),
        CPU,
    )
    if checkpointing:
        checkpoint_gradients(unet, settings[TrainingOptions], settings.get(NetworkOptions))
    return unet


def adapted(swap: int, rank: int = 2, **more: Any) -> Any:
    """With a LoRA on every Linear of the transformers."""
    unet = placed(swap, trainable=False, **more)
    torch.manual_seed(1)
    for path, layer in list(unet.named_modules()):
        if isinstance(layer, nn.Linear) and "attentions" in path:
            lora = LoraLinear(layer, rank, Dropouts())
            for p in (lora.lora_down, lora.lora_up):
                nn.init.normal_(p, std=0.1)
            parent, _, name = path.rpartition(".")
            setattr(unet.get_submodule(parent), name, lora)
    return unet


def run(unet: Any, seed: int) -> tuple[Tensor, Tensor]:
    """Output and the context that it was given, which gets a gradient too: text encoders may be trained."""
    g = torch.Generator().manual_seed(seed)
    context = torch.randn(2, 9, sum(TEXT_WIDTHS), generator=g).requires_grad_()
    added = {"text_embeds": torch.randn(2, TEXT_WIDTHS[1], generator=g), "time_ids": torch.full((2, 6), 64)}
    noisy, steps = torch.randn(2, 4, 16, 16, generator=g), torch.tensor([5, 700])
    return unet(noisy, steps, context, added_cond_kwargs=added, return_dict=False)[0], context


def learned(unet: Any, seed: int) -> dict[str, Tensor]:
    """Output and gradients of a batch."""
    out, context = run(unet, seed)
    out.square().mean().backward()
    found = {"out": out.detach(), "context": context.grad}
    for name, p in unet.named_parameters():
        if p.grad is not None:
            found[name], p.grad = p.grad, None
    return found  # type: ignore[return-value]


def differing(ours: dict[str, Tensor], wanted: dict[str, Tensor]) -> list[str]:
    assert ours.keys() == wanted.keys()
    return [name for name in wanted if not torch.equal(ours[name], wanted[name])]


@pytest.mark.parametrize(("checkpointing", "swaps"), [(False, [1, MOST]), (True, [MOST])])
def test_a_lora_gets_the_gradients_of_resident_blocks_with_samples_in_between(
    checkpointing: bool, swaps: list[int]
) -> None:
    plain, *moving = (adapted(swap, checkpointing=checkpointing) for swap in (0, *swaps))
    for seed in (2, 3):
        wanted = learned(plain, seed)
        assert len(wanted) > 200
        for swapped in moving:
            assert differing(learned(swapped, seed), wanted) == []
            with torch.no_grad():
                assert torch.equal(run(swapped, 9)[0], run(plain, 9)[0])
            run(swapped, 9)  # whose backward never comes


def test_a_slot_may_contain_a_different_block_until_one_is_requested() -> None:
    """That the tests here can fail."""
    weights = [block.ff.net[2].weight for block in swappable_blocks(placed(MOST, trainable=False))]
    assert len({w.data_ptr() for w in weights}) == SLOTS
    assert len(weights) == MOST + SLOTS


def test_weights_in_fp8_move_with_their_scales() -> None:
    plain, swapped = (adapted(swap, quantized=True) for swap in (0, MOST))
    for seed in (2, 3):
        assert differing(learned(swapped, seed), learned(plain, seed)) == []
    scales = [block.ff.net[2].weight_scale for block in swappable_blocks(swapped)]
    assert len({scale.data_ptr() for scale in scales}) == SLOTS


def test_weights_that_move_are_not_folded_into_a_lora() -> None:
    """A folded weight lies in a matrix of its own on the device. Nor are those as large folded, whose blocks share the
    graphs of these."""
    unet = adapted(4, rank=8)
    fold(unet.modules())
    moving = {id(layer) for block in unet.swapper._swap_of for layer in block.modules()}
    layers = [layer for layer in unet.modules() if isinstance(layer, LoraLinear)]
    sizes = {(layer.in_features, layer.out_features) for layer in layers if id(layer) in moving}
    assert all((layer.joint is None) == ((layer.in_features, layer.out_features) in sizes) for layer in layers)
    resident = adapted(0, rank=8)
    fold(resident.modules())
    folded = [layer for layer in resident.modules() if isinstance(layer, LoraLinear) and layer.joint is not None]
    assert {(layer.in_features, layer.out_features) for layer in folded} >= sizes


@pytest.mark.parametrize(("swap", "fused", "checkpointing"), [(MOST, False, False), (4, True, True)])
def test_trained_blocks_are_written_back(swap: int, fused: bool, checkpointing: bool) -> None:
    learners = [placed(s, trainable=True, checkpointing=checkpointing) for s in (swap, 0)]
    optimizers = [updates(unet, "SGD") for unet in learners]
    before = {name: tensor.clone() for name, tensor in learners[1].state_dict().items()}
    for unet, update in zip(learners, optimizers, strict=True):
        if fused:
            update_in_backward(unet, update)
        for seed in (2, 3):
            run(unet, seed)[0].square().mean().backward()
            if not fused:
                update_by_block(unet, update)
    ours, wanted = (unet.state_dict() for unet in learners)
    assert differing(ours, wanted) == []
    assert len(differing(wanted, before)) > 300


@pytest.mark.deep
@pytest.mark.usefixtures("no_graphs")
def test_swapped_blocks_share_the_graphs_of_resident_ones() -> None:
    """Checkpointed ones, too. One for each number of tokens: the miniature's levels are equally wide."""
    graphs = []
    for swap in (0, 4):
        torch._dynamo.reset()
        counters.clear()
        unet = adapted(swap, checkpointing=True)
        for block in swappable_blocks(unet):
            block.compile(backend="eager", dynamic=False)
        graphs.append((learned(unet, 2), counters["stats"]["unique_graphs"]))
        assert not counters["graph_break"]
    assert differing(graphs[1][0], graphs[0][0]) == []
    assert graphs[1][1] == graphs[0][1]
