"""The planned memory of an adapter in its base product equals its tensors' and the measured memory."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from diffusers import UNet2DConditionModel
from torch import nn

from sd_scripts.families.cards.memory_facts import Projection
from sd_scripts.families.cards.registry import card_of, cards, module_of
from sd_scripts.families.common.family import family_of
from sd_scripts.families.sdxl.lora import UNET
from sd_scripts.families.sdxl.memory import swappable_blocks
from sd_scripts.families.sdxl.tiny import UNET as TINY
from sd_scripts.networks.folded.folding import FoldableLinear
from sd_scripts.networks.layers import Dropouts
from sd_scripts.networks.network import AdapterNetwork, attach
from sd_scripts.networks.plan import AdaptedModule, NetworkArgs, plan_layers
from sd_scripts.networks.targets import LoraTarget, adaptable, layers_after_attention, projected_together
from sd_scripts.options.networks.network import NetworkOptions
from sd_scripts.planning.adapter_memory import AdapterMemory
from sd_scripts.planning.memory import GIB, TRAINING
from tests.planning.test_memory_plan import memory_of, settings_of

pytestmark = pytest.mark.run

MEASURED: dict[str, tuple[dict[str, Any], float]] = {
    "LoRA": ({}, 11.78),
    "LoKr": ({"network_type": "lokr", "factor": 8}, 12.91),
    "DoRA": ({"network_type": "dora"}, 12.57),
}
"""GiB of all tensors while SDXL trains compiled at rank 32, on one H200 (docs/performance.md)."""


def test_adapters_of_sdxl_take_the_memory_measured_relative_to_lora() -> None:
    planned = {
        name: memory_of(settings_of("sdxl", "lora", compile=True, **options)).phases[TRAINING] / GIB
        for name, (options, _) in MEASURED.items()
    }
    assert planned == pytest.approx({name: gib for name, (_, gib) in MEASURED.items()}, rel=0.01)
    beside = {name: gib - planned["LoRA"] for name, gib in planned.items()}
    assert beside == pytest.approx({name: gib - MEASURED["LoRA"][1] for name, (_, gib) in MEASURED.items()}, rel=0.04)


def groups_in(model: nn.Module, target: LoraTarget) -> list[list[nn.Linear]]:
    """Return the layers that are adapted by default, layers with the same input together."""
    together: list[Any] = projected_together(model, target)
    grouped = {layer for group in together for layer in group}
    alone: list[Any] = [[layer] for _, layer in adaptable(model, target, conv=False) if layer not in grouped]
    return together + alone


def projections_in(groups: list[list[nn.Linear]]) -> Counter[tuple[int, tuple[int, ...]]]:
    return Counter((group[0].in_features, tuple(layer.out_features for layer in group)) for group in groups)


def counted(projections: tuple[Projection, ...]) -> Counter[tuple[int, tuple[int, ...]]]:
    found: Counter[tuple[int, tuple[int, ...]]] = Counter()
    for each in projections:
        found[each.inputs, each.outputs] += each.count
    return found


def test_projections_match_the_full_size_model() -> None:
    for card in cards():
        target, facts = family_of(card.name).lora, card.plan.memory
        assert not facts or (facts.folded_kinds if facts.projections else ()) == target.folds
        if not facts or not facts.projections:
            continue
        unet = module_of(card.name, "full_size").modules()["denoiser"]
        groups = groups_in(unet, replace(target, extra_modules=()))  # which are not adapted by default
        assert counted(facts.projections) == projections_in(groups)
        blocks = swappable_blocks(unet) if card.name == "sdxl" else [unet]
        inside = {layer for block in blocks for layer in block.modules()}
        swappable = tuple(each for each in facts.projections if each.swappable)
        assert counted(swappable) == projections_in([group for group in groups if group[0] in inside])


def adapted(**options: Any) -> tuple[AdapterNetwork, AdapterMemory]:
    """Adapt a miniature of SDXL's U-Net as a compiled run does, and count its memory."""
    settings = settings_of("sdxl", "lora", compile=True, **options)
    unet = UNet2DConditionModel(**TINY).requires_grad_(False)
    groups = groups_in(unet, UNET)
    facts, layers = card_of("sdxl").plan.memory, [layer for group in groups for layer in group]
    assert facts
    facts = replace(
        facts,
        lora={"denoiser": sum(layer.in_features + layer.out_features for layer in layers)},
        quantized={"denoiser": (0, sum(layer.out_features for layer in layers))},
        projections=tuple(
            Projection(inputs=into, outputs=outs, count=count) for (into, outs), count in projections_in(groups).items()
        ),
    )
    args = NetworkArgs.read(settings, warn=lambda _: None)
    network = attach(
        plan_layers([AdaptedModule(module=unet, target=UNET, lr=1e-4)], args), Dropouts(), torch.Generator()
    )
    network.fold(unet.modules(), projected_together(unet, UNET), layers_after_attention(unet, UNET))
    network.share_gains()
    return network, AdapterMemory(network=settings[NetworkOptions], facts=facts, compiled=True)


def joint_values(network: AdapterNetwork) -> int:
    """Return the size of the joint matrices besides base weights."""
    layers = [each.layer for each in network.layers if isinstance(each.layer, FoldableLinear)]
    joints = {layer.joint.data_ptr(): layer.joint for layer in layers if layer.joint is not None}
    inside = [layer for layer in layers if layer.weight.untyped_storage().data_ptr() in joints]
    return sum(joint.numel() for joint in joints.values()) - sum(layer.weight.numel() for layer in inside)


@pytest.mark.parametrize(
    "options",
    [
        {"network_dim": 8},
        {"network_dim": 4},  # pairs are folded, single layers are not
        {"network_dim": 8, "network_type": "dora"},
        {"network_dim": 8, "network_type": "dora", "wd_on_output": False},
        {"network_dim": 4, "network_type": "lokr", "factor": 2},
        {"network_dim": 4, "network_type": "lokr", "factor": 4},  # too much for narrow layers
        {"network_dim": 4, "network_type": "lokr", "factor": 2, "decompose_both": True},
        {"network_dim": 4, "network_type": "lokr"},
        {"network_dim": 4, "network_type": "lokr", "factor": 2, "dora_wd": True},
    ],
    ids=lambda options: " ".join(map(str, options.values())),
)
def test_joint_matrices_are_as_large_as_counted(options: dict[str, Any]) -> None:
    network, memory = adapted(**options)
    assert sum(values for _, values in memory.joint_matrices()) == joint_values(network)
    if options.get("network_type") != "lokr" and "wd_on_output" not in options:  # whose values are counted only about
        copies = network.compute.untyped_storage().nbytes() // network.compute.itemsize
        slopes = sum(stack.slope.numel() for stack in network.gains.stacks)
        assert memory.held == copies + joint_values(network) + slopes * memory.is_dora
        assert memory.trained == network.masters.numel()


def lokr_of_sdxl(**changed: Any) -> AdapterMemory:
    facts, settings = card_of("sdxl").plan.memory, settings_of("sdxl", "lora", network_type="lokr", factor=8)
    assert facts
    return AdapterMemory(network=settings[NetworkOptions], facts=facts, **{"compiled": True, **changed})


def test_where_memory_is_saved_or_weights_are_quantized_no_lokr_is_folded() -> None:
    assert lokr_of_sdxl().kept > 0
    others = [lokr_of_sdxl(**{name: value}) for name, value in (("checkpointed", True), ("plain", False))]
    assert [(each.kept, list(each.joint_matrices())) for each in others] == [(0, [])] * 2


def test_layers_of_swapped_blocks_have_no_joint_matrices() -> None:
    resident, swapped = (dict(lokr_of_sdxl(swaps=swaps).joint_matrices()) for swaps in (False, True))
    assert swapped == {each: values for each, values in resident.items() if not each.swappable}
    assert swapped
