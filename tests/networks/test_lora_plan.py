"""Which layers of SDXL are trained, with which ranks, alphas and rates: at full size, without memory for it."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from sd_scripts.families.sdxl.card.layer_rules import BlockRules, block_of
from sd_scripts.families.sdxl.full_size import modules as modules_of_sdxl
from sd_scripts.families.sdxl.lora import TEXT_ENCODERS, UNET
from sd_scripts.networks.adapter import LayerPlan
from sd_scripts.networks.layers import Dropouts
from sd_scripts.networks.network import attach
from sd_scripts.networks.plan import AdaptedModule, NetworkArgs, parameter_groups, plan_layers
from sd_scripts.networks.targets import is_conv
from sd_scripts.options.networks.network import NetworkOptions
from sd_scripts.settings.settings import Settings
from tests.support.scripts import SDXL_LORA

pytestmark = pytest.mark.run

REFERENCE = Path(__file__).parents[1] / "reference"
KEYS = json.loads((REFERENCE / "sd_lora_keys.json").read_text())
"""Set -> layer -> shapes of its down and up."""


def full_size() -> list[AdaptedModule]:
    modules = modules_of_sdxl()
    adapted = [AdaptedModule(module=modules["denoiser"], target=UNET, lr=1e-4)]
    for number, target in enumerate(TEXT_ENCODERS, 1):
        adapted.append(AdaptedModule(module=modules[f"text_encoder{number}"], target=target, lr=number * 1e-5))
    return adapted


@pytest.fixture(scope="module")
def sdxl() -> list[AdaptedModule]:
    """For planning only, which leaves the modules unchanged."""
    return full_size()


def read(*args: str, warnings: list[str] | None = None, **options: Any) -> NetworkArgs:
    settings = Settings(
        replace(SDXL_LORA, groups=(NetworkOptions,)), {"network_dim": 4, "network_args": list(args), **options}
    )
    return NetworkArgs.read(settings, ([] if warnings is None else warnings).append)


def plan(modules: list[AdaptedModule], *args: str, **options: Any) -> dict[str, LayerPlan]:
    return {each.name: each for each in plan_layers(modules, read(*args, **options))}


def layer_of(each: LayerPlan) -> nn.Module:
    return each.module.get_submodule(each.path)


@pytest.mark.parametrize(("keys", "args"), [("sdxl_linear_dim4", []), ("sdxl_conv_dim4_conv2", ["conv_dim=2"])])
def test_layers_and_shapes_at_full_size_match_the_reference(keys: str, args: list[str]) -> None:
    modules = full_size()
    network = attach(plan_layers(modules, read(*args)), Dropouts(), torch.Generator().manual_seed(0))
    shapes = {layer.name: [list(layer.down.shape), list(layer.up.shape)] for layer in network.layers}
    assert shapes == KEYS[keys]


def test_722_layers_of_the_unet_and_264_of_the_text_encoders(sdxl: list[AdaptedModule]) -> None:
    names = list(plan(sdxl))
    assert [sum(name.startswith(start) for name in names) for start in ("lora_unet", "lora_te1", "lora_te2")] == [
        722,
        72,
        192,
    ]
    assert len(plan(sdxl[:1], "conv_dim=4")) == 788


def test_unset_rank_is_4_alpha_1_and_conv_alpha_1(sdxl: list[AdaptedModule]) -> None:
    plans = plan(sdxl[:1], "conv_dim=8", network_dim=None)
    linear = {(each.rank, each.alpha) for each in plans.values() if not is_conv(layer_of(each))}
    conv = {(each.rank, each.alpha) for each in plans.values() if is_conv(layer_of(each))}
    assert (linear, conv) == ({(4, 1.0)}, {(8, 1.0)})


def test_alpha_0_is_the_rank(sdxl: list[AdaptedModule]) -> None:
    plans = plan(sdxl[:1], "conv_dim=8", "conv_alpha=0", network_alpha=0.0)
    assert {(each.rank, each.alpha) for each in plans.values()} == {(4, 4.0), (8, 8.0)}


def test_a_1x1_convolution_and_the_linears_of_a_resnet_have_the_rank_of_linears(sdxl: list[AdaptedModule]) -> None:
    plans = plan(sdxl[:1], "conv_dim=2", "conv_alpha=0.5", network_alpha=3.0)
    for name in ("lora_unet_input_blocks_4_0_skip_connection", "lora_unet_input_blocks_4_0_emb_layers_1"):
        assert (plans[name].rank, plans[name].alpha) == (4, 3.0)
    assert (plans["lora_unet_input_blocks_3_0_op"].rank, plans["lora_unet_input_blocks_3_0_op"].alpha) == (2, 0.5)


def test_conv_dim_0_leaves_the_convolutions_alone(sdxl: list[AdaptedModule]) -> None:
    assert plan(sdxl, "conv_dim=0").keys() == plan(sdxl).keys()


def test_a_lora_name_identifies_its_block() -> None:
    for name, block in {
        "lora_unet_time_embed_0": 0,
        "lora_unet_label_emb_0_0": 0,
        "lora_unet_input_blocks_1_0_in_layers_2": 2,
        "lora_unet_input_blocks_8_1_proj_in": 9,
        "lora_unet_middle_block_0_in_layers_2": 10,
        "lora_unet_middle_block_2_in_layers_2": 12,
        "lora_unet_output_blocks_0_1_proj_in": 13,
        "lora_unet_output_blocks_8_0_in_layers_2": 21,
        "lora_unet_out_2": 22,
    }.items():
        assert block_of(name) == block, name


def numbers(of: range | list[float]) -> str:
    return ",".join(map(str, of))


def test_ranks_and_alphas_by_block_and_0_leaves_a_block_out(sdxl: list[AdaptedModule]) -> None:
    plans = plan(
        sdxl,
        f"block_dims={numbers(range(23))}",
        f"block_alphas={numbers(range(1, 24))}",
        f"conv_block_dims={numbers([0] * 10 + [7] * 13)}",
        f"conv_block_alphas={numbers([0.5] * 23)}",
    )
    for name, each in plans.items():
        if name.startswith("lora_te"):
            assert (each.rank, each.alpha) == (4, 1.0)
        elif is_conv(layer_of(each)):
            assert block_of(name) >= 10
            assert (each.rank, each.alpha) == (7, 0.5)
        else:
            assert (each.rank, each.alpha) == (block_of(name), block_of(name) + 1)


def rates(args: NetworkArgs) -> list[list[float]]:
    assert isinstance(args.rules, BlockRules)
    weights = args.rules.lr_weights or []
    return [[round(w, 4) for w in part] for part in (weights[:9], weights[9:12], weights[12:])]


@pytest.mark.parametrize(
    ("course", "expected"),
    [
        ("linear", [i / 8 for i in range(9)]),
        ("reverse_linear", [1 - i / 8 for i in range(9)]),
        ("sine", [math.sin(math.pi * i / 16) for i in range(9)]),
        ("cosine", [math.cos(math.pi * i / 16) for i in range(9)]),
        ("zeros+0.5", [0.5] * 9),
        ("cosine+.25", [math.cos(math.pi * i / 16) + 0.25 for i in range(9)]),
        ("0.1,0.2,0.3,0.4,0.5,0.6,0.7,0.8,0.9", [i / 10 for i in range(1, 10)]),
    ],
)
def test_block_learning_rates_are_numbers_or_a_named_curve(course: str, expected: list[float]) -> None:
    down, middle, up = rates(read(f"down_lr_weight={course}"))
    assert down == [round(w, 4) for w in expected]
    assert (middle, up) == ([1.0] * 3, [1.0] * 9)
    _, _, up = rates(read(f"up_lr_weight={course}"))
    assert up == [round(w, 4) for w in expected]


def test_a_list_of_a_different_length_is_padded_or_cut_with_a_warning() -> None:
    warnings: list[str] = []
    args = read("mid_lr_weight=0.5", f"up_lr_weight={numbers([0.5] * 12)}", warnings=warnings)
    assert rates(args)[1:] == [[0.5, 1.0, 1.0], [0.5] * 9]
    assert warnings == [
        "network_args: mid_lr_weight has 1 values for 3 blocks; the rest are 1",
        "network_args: up_lr_weight has 12 values for 9 blocks; extra values are ignored",
    ]


def test_block_rates_below_the_threshold_are_0_and_their_layers_left_out(sdxl: list[AdaptedModule]) -> None:
    args = ("down_lr_weight=linear", "up_lr_weight=zeros", "block_lr_zero_threshold=0.7")
    assert rates(read(*args)) == [[0] * 6 + [0.75, 0.875, 1], [1] * 3, [0] * 9]
    plans = plan(sdxl, *args)
    assert {block_of(name) for name in plans if name.startswith("lora_unet")} == {8, 9, 11}
    assert sum(name.startswith("lora_te") for name in plans) == 264


class Tiny(nn.Module):
    """A layer in the second down block and one in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.down_blocks = nn.ModuleList([nn.Module(), nn.Module()])
        self.down_blocks[1].attentions = nn.ModuleList([_transformer()])
        self.mid_block = nn.Module()
        self.mid_block.attentions = nn.ModuleList([_transformer()])


def _transformer() -> nn.Module:
    block: nn.Module = type("Transformer2DModel", (nn.Module,), {})()
    block.proj_in = nn.Linear(4, 4)
    return block


def groups(*args: str, unet_lr: float = 1e-3) -> tuple[dict[str, float], Any]:
    """Name -> rate, of a U-Net and one text encoder with a layer."""
    encoder = nn.Module()
    encoder.mlp = type("CLIPMLP", (nn.Module,), {})()
    encoder.mlp.fc1 = nn.Linear(4, 4)
    modules = [
        AdaptedModule(module=Tiny(), target=UNET, lr=unet_lr),
        AdaptedModule(module=encoder, target=TEXT_ENCODERS[0], lr=1e-5),
    ]
    network = attach(plan_layers(modules, read(*args)), Dropouts(), torch.Generator())
    made = parameter_groups(network)
    assert len({id(p) for group in made for p in group["params"]}) == sum(len(group["params"]) for group in made)
    return {group["name"]: group["lr"] for group in made}, network


def test_each_module_has_its_own_rate() -> None:
    assert groups()[0] == {"unet": 1e-3, "textencoder 1": 1e-5}


def test_each_block_has_its_own_rate() -> None:
    expected = {"unet_block5": 0.4e-3, "unet_block11": 2e-3, "textencoder 1": 1e-5}
    assert groups(f"down_lr_weight={numbers([0.4] * 9)}", "mid_lr_weight=2,2,2")[0] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("args", "unet", "text"),
    [
        (["loraplus_lr_ratio=4"], 4e-3, 4e-5),
        (["loraplus_lr_ratio=4", "loraplus_unet_lr_ratio=8"], 8e-3, 4e-5),
        (["loraplus_unet_lr_ratio=8"], 8e-3, None),
        (["loraplus_text_encoder_lr_ratio=2"], None, 2e-5),
        (["loraplus_lr_ratio=4", "loraplus_text_encoder_lr_ratio=0"], 4e-3, None),
    ],
)
def test_lora_plus_gives_the_ups_a_higher_rate(args: list[str], unet: float | None, text: float | None) -> None:
    plus = {"unet plus": unet, "textencoder 1 plus": text}
    expected = {"unet": 1e-3, "textencoder 1": 1e-5, **{name: lr for name, lr in plus.items() if lr}}
    assert groups(*args)[0] == pytest.approx(expected)


def test_a_rate_of_0_freezes_its_layers() -> None:
    rates_, network = groups(unet_lr=0.0)
    assert rates_ == {"textencoder 1": 1e-5}
    trainable = {layer.name: layer.layer.lora_down.requires_grad for layer in network.layers}
    assert trainable == {name: name.startswith("lora_te1") for name in trainable}


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (["conv_dim=four"], "network_args: conv_dim=four is not a number or a list of numbers"),
        (["conv_dim=2.5"], "network_args: conv_dim=2.5 must be a whole number"),
        (["conv_dim=-1"], "network_args: conv_dim=-1 must be at least 0"),
        (["conv_alpha=nan"], "network_args: conv_alpha=nan must be at least 0"),
        (["conv_dim="], "network_args: conv_dim has 0 values, but needs 1"),
        (["block_dims=1,2,3"], "network_args: block_dims has 3 values, but needs 23"),
        (["rank_dropout=1"], "network_args: rank_dropout=1 drops everything; it must be below 1"),
        (["down_lr_weight=cosin"], "network_args: down_lr_weight=cosin is neither numbers nor one of sine, cosine"),
        (["down_lr_weight=cosine+much"], r"network_args: down_lr_weight=much is not a number"),
        (["loraplus_lr_ratio=-2"], "network_args: loraplus_lr_ratio=-2 must be at least 0"),
    ],
)
def test_a_wrong_value_is_reported_in_one_sentence(args: list[str], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        read(*args)


def test_a_misspelled_key_is_refused_and_one_of_a_different_program_is_reported() -> None:
    warnings: list[str] = []
    read("algo=locon", "preset=full", warnings=warnings)
    assert warnings == [
        "network_args: algo is unknown and has no effect",
        "network_args: preset is unknown and has no effect",
    ]
    with pytest.raises(ValueError, match="Did you mean") as error:
        read("conv_dims=4", "rank_dropuot=0.1", "algo=locon")
    assert str(error.value).splitlines() == [
        "network_args: conv_dims is unknown. Did you mean conv_dim?",
        "network_args: rank_dropuot is unknown. Did you mean rank_dropout?",
    ]


def test_nothing_left_to_train_is_an_error(sdxl: list[AdaptedModule]) -> None:
    with pytest.raises(ValueError, match="network_args: all ranks or learning rates are 0"):
        plan(sdxl[:1], f"block_dims={numbers([0] * 23)}")
    module = AdaptedModule(module=Tiny(), target=UNET, lr=0.0)
    network = attach(plan_layers([module], read()), Dropouts(), torch.Generator())
    with pytest.raises(ValueError, match="learning_rate: all learning rates are 0"):
        parameter_groups(network)


@pytest.mark.parametrize(
    ("network_dropout", "dropout", "expected"), [(None, 0.2, 0.2), (0.1, 0.2, 0.1), (0.0, 0.2, 0.0), (0.1, None, 0.1)]
)
def test_network_dropout_overrides_dropout(
    network_dropout: float | None, dropout: float | None, expected: float
) -> None:
    args = [] if dropout is None else [f"dropout={dropout}"]
    found = read(*args, "rank_dropout=0.3", "module_dropout=0.4", network_dropout=network_dropout).dropouts
    assert found == Dropouts(neuron=expected, rank=0.3, module=0.4)
