"""LoRA of FLUX.1: which layers are trained and how, the file's keys, ranks of their own for q, k and v, noise,
graphs."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from diffusers import FluxPipeline, FluxTransformer2DModel
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from transformers import CLIPTextConfig, CLIPTextModel, T5Config, T5EncoderModel

from benchmarks.pipelines.flux import to_diffusers
from sd_scripts.families.cards.model_file import describe
from sd_scripts.families.common.family import Components
from sd_scripts.families.common.placing import placement_of
from sd_scripts.families.flux.card.options import FluxNetworkOptions
from sd_scripts.families.flux.keys import bfl_key, diffusers_modules
from sd_scripts.families.flux.load import BLOCK_LISTS
from sd_scripts.families.flux.lora import TEXT_ENCODERS, TRANSFORMER
from sd_scripts.families.flux.model import FluxParams, FluxTransformer
from sd_scripts.library.diffusion.dit_layers import rope_widths
from sd_scripts.library.quantization.int8 import Int8
from sd_scripts.library.quantization.nf4 import Nf4
from sd_scripts.library.quantization.quantized import fits, quantize_
from sd_scripts.networks.adapter import read_layer
from sd_scripts.networks.adapters.lora import Lora, LoraLinear, SplitLoraLinear
from sd_scripts.networks.files.lora_files import merge, read_lora
from sd_scripts.networks.layers import Dropouts
from sd_scripts.networks.network import AdapterNetwork, attach
from sd_scripts.networks.plan import (
    AdaptedModule,
    NetworkArgs,
    parameter_groups,
    plan_layers,
)
from sd_scripts.options.networks.network import NetworkOptions
from sd_scripts.settings.network_choice import KINDS
from sd_scripts.settings.settings import Settings
from sd_scripts.training.methods.lora import LoraTrainable
from tests.support.scripts import FLUX_LORA

pytestmark = pytest.mark.run

KEYS = json.loads((Path(__file__).parents[2] / "reference" / "flux_lora_keys.json").read_text())
"""Set -> layer, # for each number of a block -> how many blocks, shapes of down and up."""
SHAPE = FluxParams(
    width=64,
    heads=2,
    mlp_width=256,
    text_width=12,
    pooled_width=10,
    channels=8,
    double_blocks=3,
    single_blocks=3,
)


def full_size(t5: bool = False) -> list[AdaptedModule]:
    with torch.device("meta"):
        transformer = FluxTransformer(FluxParams())
        clip = CLIPTextModel(CLIPTextConfig(hidden_size=768, intermediate_size=3072, num_attention_heads=12))
        modules = [
            AdaptedModule(module=transformer, target=TRANSFORMER, lr=1e-4),
            AdaptedModule(module=clip, target=TEXT_ENCODERS[0], lr=1e-5),
        ]
        if t5:
            config = T5Config(
                d_model=4096, d_ff=10240, d_kv=64, num_heads=64, num_layers=24, feed_forward_proj="gated-gelu"
            )
            modules.append(AdaptedModule(module=T5EncoderModel(config), target=TEXT_ENCODERS[1], lr=2e-5))
    return modules


@pytest.fixture(scope="module")
def flux() -> list[AdaptedModule]:
    """For planning only, which leaves the modules unchanged."""
    return full_size()


def tiny(seed: int = 0) -> FluxTransformer:
    torch.manual_seed(seed)
    return FluxTransformer(SHAPE).requires_grad_(False)


def adapted(model: nn.Module) -> list[AdaptedModule]:
    return [AdaptedModule(module=model, target=TRANSFORMER, lr=1e-3)]


def read(*args: str, warnings: list[str] | None = None, **options: Any) -> NetworkArgs:
    values = {"network_dim": 4, "network_args": list(args), **options}
    settings = Settings(replace(FLUX_LORA, groups=(NetworkOptions, FluxNetworkOptions)), values)
    return NetworkArgs.read(settings, ([] if warnings is None else warnings).append)


def plan(modules: list[AdaptedModule], *args: str, **options: Any) -> dict[str, int]:
    """Name without its start -> rank."""
    plans = plan_layers(modules, read(*args, **options))
    return {each.name.removeprefix("lora_unet_"): each.rank for each in plans}


def make(model: nn.Module, *args: str, **options: Any) -> AdapterNetwork:
    """A LoRA with random ups, so that it has an effect."""
    args_ = read(*args, **options)
    network = attach(
        plan_layers(adapted(model), args_),
        args_.dropouts,
        torch.Generator().manual_seed(0),
        perturbation=args_.perturbation,
    )
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for layer in network.layers:
            layer.up.copy_(torch.randn(layer.up.shape, generator=generator) * 0.1)
    network.refresh()
    return network


def predict(model: FluxTransformer) -> Tensor:
    """(2, 6, 8), differentiable in the trained weights."""
    generator = torch.Generator().manual_seed(2)
    img, txt, pooled = (torch.randn(2, *size, generator=generator) for size in ((6, 8), (5, 12), (10,)))
    return model(img, txt, pooled, torch.tensor([0.3, 0.8]), torch.tensor([1.0, 3.5]), (2, 3))


def close(ours: Tensor, theirs: Tensor, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


def expected_shapes(keys: str) -> dict[str, list[list[int]]]:
    return {
        name.replace("#", str(number)): [down, up]
        for name, (count, down, up) in KEYS[keys].items()
        for number in range(count or 1)
    }


@pytest.mark.parametrize(
    ("keys", "args", "t5"),
    [
        ("flux_default_dim4", [], False),
        ("flux_split_qkv_train_blocks", ["split_qkv=True", "train_blocks=single"], False),
        ("flux_t5_indims_dim4", ["train_t5xxl=True", "in_dims=[4,4,4,4,4]"], True),
    ],
)
def test_layers_and_shapes_at_full_size_match_the_reference(keys: str, args: list[str], t5: bool) -> None:
    network = attach(plan_layers(full_size(t5), read(*args)), Dropouts(), torch.Generator())
    pairs = {layer.name: layer.pair() for layer in network.layers}
    assert {name: [list(pair.down.shape), list(pair.up.shape)] for name, pair in pairs.items()} == expected_shapes(keys)
    linear1 = pairs["lora_unet_single_blocks_0_linear1"]
    assert linear1.alpha / linear1.rank == 1 / 4


def test_ranks_differ_by_kind_of_layer(flux: list[AdaptedModule]) -> None:
    kinds = {"img_attn_dim": 1, "txt_attn_dim": 2, "img_mlp_dim": 3, "txt_mlp_dim": 5, "single_dim": 6}
    ranks = plan(flux[:1], *(f"{kind}={dim}" for kind, dim in kinds.items()), "txt_mod_dim=0", "single_mod_dim=7")
    assert {name.removeprefix("double_blocks_3_"): rank for name, rank in ranks.items() if "blocks_3_" in name} == {
        **{"img_mod_lin": 4, "img_attn_qkv": 1, "img_attn_proj": 1, "img_mlp_0": 3, "img_mlp_2": 3},
        **{"txt_attn_qkv": 2, "txt_attn_proj": 2, "txt_mlp_0": 5, "txt_mlp_2": 5},
        **{f"single_blocks_3_{name}": rank for name, rank in (("modulation_lin", 7), ("linear1", 6), ("linear2", 6))},
    }


def test_ranks_by_option_equal_ranks_by_network_args(flux: list[AdaptedModule]) -> None:
    options = {"img_attn_dim": 2, "single_dim": 0, "in_dims": "1,0,0,0,2", "train_double_block_indices": "0-3,7"}
    args = [f"{name}={value}" for name, value in options.items()]
    assert plan(flux, **options) == plan(flux, *args) == plan(flux, *args, **options)


def test_an_option_that_contradicts_network_args_is_reported() -> None:
    with pytest.raises(
        ValueError, match=r"^train_blocks: set to double here but to single in network_args; remove one"
    ):
        read("train_blocks=single", train_blocks="double")
    assert read("train_blocks=Single", train_blocks="single")
    assert read("split_qkv=true", split_qkv=True)


@pytest.mark.parametrize(
    ("args", "double", "single"),
    [
        ([], range(19), range(38)),
        (["train_blocks=double"], range(19), ()),
        (["train_blocks=single"], (), range(38)),
        (["train_double_block_indices=0-3,7", "train_single_block_indices=none"], (0, 1, 2, 3, 7), ()),
        (["train_single_block_indices=37, 1 - 2"], range(19), (1, 2, 37)),
        (["train_double_block_indices=all", "train_blocks=double"], range(19), ()),
    ],
)
def test_trained_blocks_are_chosen_by_kind_and_number(
    flux: list[AdaptedModule], args: list[str], double: Any, single: Any
) -> None:
    found: dict[str, set[int]] = {"double": set(), "single": set()}
    for name in plan(flux[:1], *args):
        kind, _, number, *_ = name.split("_")
        found[kind].add(int(number))
    assert found == {"double": set(double), "single": set(single)}


def test_layers_before_the_blocks_are_trained_only_with_in_dims(flux: list[AdaptedModule]) -> None:
    ranks = plan(flux[:1], "in_dims=1,2,0,3,5", "train_blocks=single", "train_single_block_indices=none")
    assert ranks == {
        **{"img_in": 1, "txt_in": 5, "time_in_in_layer": 2, "time_in_out_layer": 2},
        **{"guidance_in_in_layer": 3, "guidance_in_out_layer": 3},
    }


def test_the_first_matching_pattern_overrides_kinds_and_blocks(flux: list[AdaptedModule]) -> None:
    ranks = plan(
        flux,
        "network_reg_dims=blocks_[0-1]_img_attn_proj=9,img_attn=8,_img_in$=3,te1_.*layers_0_mlp=2",
        "img_attn_dim=1",
        "train_double_block_indices=none",
    )
    assert ranks["double_blocks_1_img_attn_proj"] == 9
    assert ranks["double_blocks_1_img_attn_qkv"] == ranks["double_blocks_2_img_attn_proj"] == 8
    assert (ranks["img_in"], ranks["single_blocks_0_linear1"]) == (3, 4)
    assert "double_blocks_0_txt_attn_qkv" not in ranks
    encoder = {name: rank for name, rank in ranks.items() if name.startswith("lora_te1") and "layers_0_" in name}
    assert sorted(encoder.values()) == [2, 2, 4, 4, 4, 4]


@pytest.mark.parametrize("ranks", ["1,2,3", "4,0,0,0,many", "4,0,0,0,1.5", "four"])
def test_ranks_before_the_blocks_are_five_whole_numbers(ranks: str) -> None:
    (problem,) = FluxNetworkOptions(in_dims=ranks).check()
    assert problem == ("in_dims", f"{ranks!r} is not five whole numbers, such as 4,0,0,0,4")
    assert not [*FluxNetworkOptions(in_dims="[4, 0,0,0,4]").check(), *FluxNetworkOptions().check()]


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (["train_double_block_indices=0-19"], "train_double_block_indices: no such block: 19; this model has 19"),
        (["train_single_block_indices=38"], "train_single_block_indices: no such block: 38; this model has 38"),
        (["train_double_block_indices=3-1"], "train_double_block_indices: '3-1' is not a number or range; write all,"),
        (["train_single_block_indices=0,x"], "train_single_block_indices: 'x' is not a number or range"),
        (["in_dims=4,4"], "network_args: in_dims has 2 values, but needs 5"),
        (["img_attn_dim=2.5"], "network_args: img_attn_dim=2.5 must be a whole number"),
        (["train_blocks=triple"], "network_args: train_blocks=triple is not one of all, double, single"),
        (["split_qkv=maybe"], "network_args: split_qkv=maybe must be True or False"),
        (["network_reg_dims=attn"], "network_args: network_reg_dims=attn is not of the form regex=value"),
        (["network_reg_dims=attn(=4"], r"network_args: network_reg_dims: 'attn\(' is not a valid regular expression"),
        (["network_reg_lrs=attn=fast"], "network_args: network_reg_lrs=fast is not a number"),
        (["ggpo_beta=0.01"], "network_args: ggpo_beta and ggpo_sigma must be set together"),
        (["train_blocks=double", "train_double_block_indices=none"], "network_args: all ranks or learning rates are 0"),
    ],
)
def test_a_wrong_value_is_reported_in_one_sentence(flux: list[AdaptedModule], args: list[str], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        plan(flux[:1], *args)


def test_keys_of_other_families_and_keys_without_effect_are_reported() -> None:
    warnings: list[str] = []
    read("down_lr_weight=1", "unet_dim=2", "conv_dim=4", "verbose=True", "train_t5xxl=True", warnings=warnings)
    read("train_single_block_indices=all", train_blocks="double", warnings=warnings)
    read(train_blocks="double", train_single_block_indices="0-2", warnings=warnings)
    assert warnings.pop() == "train_single_block_indices: has no effect with train_blocks = double"
    assert warnings == [
        "network_args: conv_dim and conv_alpha have no effect because FLUX.1 has no convolutions",
        "network_args: verbose has no effect; the saved file names every layer with its rank",
        "network_args: down_lr_weight is unknown and has no effect",
        "network_args: unet_dim is unknown and has no effect",
    ]
    with pytest.raises(ValueError, match=r"img_att_dim is unknown\. Did you mean img_attn_dim"):
        read("img_att_dim=2")


def test_rates_by_pattern_are_groups_of_their_own() -> None:
    args = ("network_reg_lrs=double_blocks_0=5e-4,img_mlp=0,txt=2e-4", "loraplus_lr_ratio=2")
    network = make(tiny(), *args)
    names = {layer.name for layer in network.layers}
    assert not any("img_mlp" in name for name in names if "blocks_0" not in name)
    groups = {group["name"]: group["lr"] for group in parameter_groups(network)}
    rates = {"unet": 1e-3, "unet_reg_lr_0": 5e-4, "unet_reg_lr_2": 2e-4}
    assert groups == pytest.approx({**rates, **{f"{name} plus": 2 * lr for name, lr in rates.items()}})


def test_each_encoder_has_its_group() -> None:
    network = attach(plan_layers(full_size(t5=True)[1:], read(network_dim=1)), Dropouts(), torch.Generator())
    rates = {group["name"]: group["lr"] for group in parameter_groups(network)}
    assert rates == {"textencoder 1": 1e-5, "textencoder 3": 2e-5}


@pytest.mark.parametrize("args", [[], ["split_qkv=True"], ["in_dims=2,2,2,2,2", "single_dim=3"]])
def test_a_reloaded_file_computes_the_trained_output(args: list[str]) -> None:
    model, again = tiny(), tiny()
    before = predict(model)
    network = make(model, *args)
    trained = predict(model)
    assert (trained - before).abs().max() > 1e-3
    other = make(again, *args, network_alpha=3.0)
    assert other.load_tensors(network.file_tensors(None)) == []
    other.refresh()
    close(predict(again), trained)


def test_a_lora_with_split_qkv_is_saved_in_the_common_layout(tmp_path: Path) -> None:
    model, plain, merged = tiny(), tiny(), tiny()
    network = make(model, "split_qkv=True", network_alpha=2.0)
    split = [layer for layer in network.layers if layer.split_dims]
    assert [layer.split_dims for layer in split[:1] + split[-1:]] == [(64, 64, 64), (64, 64, 64, 256)]
    assert all(isinstance(layer.layer, SplitLoraLinear) for layer in split)
    tensors = network.file_tensors(None)
    start = "lora_unet_single_blocks_0_linear1"
    assert tensors[f"{start}.lora_down.weight"].shape == (16, 64)
    assert tensors[f"{start}.lora_up.weight"][:64, 4:].count_nonzero() == 0
    assert tensors[f"{start}.alpha"] == 4 * 2.0

    without = plan_layers(adapted(plain), read(), tensors)
    other = attach(without, Dropouts(), torch.Generator())
    other.load_tensors(tensors)
    other.refresh()
    close(predict(plain), predict(model))
    safetensors.torch.save_file(tensors, tmp_path / "split.safetensors")
    file = read_lora("base_weights", tmp_path / "split.safetensors", adapted(merged))
    assert merge(adapted(merged), file, 1.0) == len(network.layers)
    close(predict(merged), predict(model))


def test_ranks_from_a_split_file_keep_its_pieces() -> None:
    model = tiny()
    tensors = make(model, "split_qkv=True").file_tensors(None)
    plans = {each.name: each for each in plan_layers(adapted(tiny()), read("split_qkv=True"), tensors)}
    linear1, linear2 = (plans[f"lora_unet_single_blocks_0_linear{i}"] for i in (1, 2))
    assert (linear1.rank, linear1.alpha, len(linear1.split_dims)) == (4, 1.0, 4)
    assert (linear2.rank, linear2.alpha, linear2.split_dims) == (4, 1.0, ())


def test_a_plain_file_does_not_fit_a_split_network() -> None:
    tensors = make(tiny(), "network_reg_dims=qkv=12").file_tensors(None)
    with pytest.raises(ValueError, match="double_blocks_0_img_attn_qkv is not split in the file; turn split_qkv"):
        make(tiny(), "split_qkv=True").load_tensors(tensors)
    with pytest.raises(ValueError, match="qkv has rank 12 in the file and 15 here; set network_dim"):
        make(tiny(), "split_qkv=True", "network_reg_dims=qkv=5").load_tensors(tensors)


def test_a_kind_that_cannot_split_layers_is_reported_with_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lora, "splits", False)
    with pytest.raises(ValueError, match=r"^split_qkv: adapter=lora cannot be split; turn it off"):
        plan(adapted(tiny()), "split_qkv=True")


def test_an_adapter_kind_reads_its_own_keys_into_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, "lora", lambda arguments: {"factor": arguments.whole_number("factor")})
    warnings: list[str] = []
    plans = plan_layers(adapted(tiny()), read("factor=8", warnings=warnings))
    assert warnings == []
    assert {each.options["factor"] for each in plans} == {8}


@pytest.mark.parametrize("args", [[], ["split_qkv=True"]])
def test_split_qkv_trains_and_its_norms_are_limited(args: list[str]) -> None:
    model = tiny()
    network = make(model, *args)
    trainable = LoraTrainable(network, parameter_groups(network), [model], norm_limit=0.05)
    optimizer = torch.optim.SGD(trainable.parameter_groups(), lr=0.1)
    target, losses = torch.zeros(2, 6, 8), []
    for _ in range(4):
        loss = (predict(model) - target).square().mean()
        loss.backward()
        trainable.gradients.collect()
        assert network.gradients.count_nonzero() > 0.9 * network.gradients.numel()
        for group in optimizer.param_groups:
            group["lr"] = 0.1
        optimizer.step()
        trainable.updated()
        losses.append(float(loss.detach()))
    assert losses == sorted(losses, reverse=True)
    trainable.limit_norms()
    for layer in network.layers:
        pair = layer.pair()
        assert (pair.up @ pair.down * pair.alpha / pair.rank).norm() < 0.0501


@pytest.mark.parametrize("args", [[], ["split_qkv=True"]])
def test_diffusers_computes_the_trained_output_from_our_file(args: list[str]) -> None:
    """Its converter knows the single blocks of the real width only."""
    model = tiny()
    theirs = FluxTransformer2DModel(
        patch_size=1,
        in_channels=8,
        num_layers=3,
        num_single_layers=3,
        attention_head_dim=32,
        num_attention_heads=2,
        joint_attention_dim=12,
        pooled_projection_dim=10,
        guidance_embeds=True,
        axes_dims_rope=rope_widths(SHAPE.head_width),
    )
    theirs.load_state_dict(to_diffusers(model.state_dict()))
    network = make(model, *args, "network_reg_dims=linear1=0")
    tensors = FluxPipeline.lora_state_dict(network.file_tensors(None))
    FluxPipeline.load_lora_into_transformer(tensors, None, theirs)
    with torch.no_grad():
        close(predict_with(theirs), predict(model), 1e-4)


def predict_with(theirs: Any) -> Tensor:
    """As `predict`, by diffusers' module."""
    generator = torch.Generator().manual_seed(2)
    img, txt, pooled = (torch.randn(2, *size, generator=generator) for size in ((6, 8), (5, 12), (10,)))
    positions = torch.tensor([[0.0, row, column] for row in range(2) for column in range(3)])
    return theirs(
        hidden_states=img,
        encoder_hidden_states=txt,
        pooled_projections=pooled,
        timestep=torch.tensor([0.3, 0.8]),
        guidance=torch.tensor([1.0, 3.5]),
        img_ids=positions,
        txt_ids=torch.zeros(5, 3),
        return_dict=False,
    )[0]


@pytest.mark.parametrize("prefix", ["transformer.", "diffusion_model.", ""])
def test_a_file_with_the_names_of_diffusers_is_read_as_ours(prefix: str, tmp_path: Path) -> None:
    """As diffusers and ai-toolkit write them: parts of one of our layers, of ranks of their own, some without."""
    model, merged = tiny(), tiny()
    made: dict[str, Tensor] = {}
    with torch.no_grad():
        for name, rank in {"attn.to_q": 2, "attn.to_v": 3, "attn.to_out.0": 4, "ff.net.2": 1}.items():
            _add_peft(made, model, f"transformer_blocks.1.{name}", rank)
        _add_peft(made, model, "transformer_blocks.0.attn.to_q", 2)  # its rows come first
        for name in ("attn.to_k", "proj_mlp", "proj_out"):
            _add_peft(made, model, f"single_transformer_blocks.2.{name}", 2)
    made["single_transformer_blocks.2.proj_out.alpha"] = torch.tensor(1.0)
    model.single_blocks[2].linear2.weight.copy_(  # half of what alpha = rank would do
        (model.single_blocks[2].linear2.weight + tiny().single_blocks[2].linear2.weight) / 2
    )
    safetensors.torch.save_file({prefix + key: tensor for key, tensor in made.items()}, tmp_path / "peft.safetensors")
    file = read_lora("base_weights", tmp_path / "peft.safetensors", adapted(merged))
    held = tiny()
    for layer in held.modules():
        if isinstance(layer, nn.Linear) and fits(layer):
            quantize_(layer, Nf4(), torch.float32)
    of_quantized = read_lora("network_weights", tmp_path / "peft.safetensors", adapted(held))
    assert of_quantized.tensors.keys() == file.tensors.keys()
    assert all(torch.equal(tensor, of_quantized.tensors[key]) for key, tensor in file.tensors.items())
    assert merge(adapted(merged), file, 1.0) == 6
    close(predict(merged), predict(model))
    assert (predict(merged) - predict(tiny())).abs().max() > 1e-3


ONETRAINER = {
    **{f"attn.to_{part}": f"lora_transformer_transformer_blocks_1_attn_to_{part}" for part in "qkv"},
    "attn.to_out.0": "lora_transformer_transformer_blocks_1_attn_to_out_0",
    "ff.net.2": "lora_transformer_transformer_blocks_1_ff_net_2",
}


def test_a_file_of_onetrainer_is_read_as_ours(tmp_path: Path) -> None:
    model, merged = tiny(), tiny()
    made: dict[str, Tensor] = {}
    with torch.no_grad():
        for name in ONETRAINER:
            _add_peft(made, model, f"transformer_blocks.1.{name}", 2)
    theirs = {}
    for name, its in ONETRAINER.items():
        for part, called in (("lora_A", "lora_down"), ("lora_B", "lora_up")):
            theirs[f"{its}.{called}.weight"] = made[f"transformer_blocks.1.{name}.{part}.weight"]
        theirs[f"{its}.alpha"] = torch.tensor(2.0)
    safetensors.torch.save_file(theirs, tmp_path / "onetrainer.safetensors")
    file = read_lora("base_weights", tmp_path / "onetrainer.safetensors", adapted(merged))
    assert merge(adapted(merged), file, 1.0) == 3
    close(predict(merged), predict(model))
    assert (predict(merged) - predict(tiny())).abs().max() > 1e-3


XLABS = {
    "qkv_lora1": "img_attn.qkv",
    "proj_lora1": "img_attn.proj",
    "qkv_lora2": "txt_attn.qkv",
    "proj_lora2": "txt_attn.proj",
}


def test_a_file_of_xlabs_is_read_as_ours_and_one_with_single_blocks_refused(tmp_path: Path) -> None:
    model, merged, file = tiny(), tiny(), tmp_path / "xlabs.safetensors"
    theirs: dict[str, Tensor] = {}
    with torch.no_grad():
        for its, path in XLABS.items():
            weight = model.double_blocks[1].get_parameter(f"{path}.weight")
            down, up = torch.randn(2, weight.shape[1]) * 0.1, torch.randn(weight.shape[0], 2) * 0.1
            theirs |= {f"double_blocks.1.processor.{its}.{part}.weight": t for part, t in (("down", down), ("up", up))}
            weight += up @ down
    safetensors.torch.save_file(theirs, file)
    assert describe(file).variant == "FLUX.1 LoRA"
    assert merge(adapted(merged), read_lora("base_weights", file, adapted(merged)), 1.0) == 4
    close(predict(merged), predict(model))
    assert (predict(merged) - predict(tiny())).abs().max() > 1e-3

    safetensors.torch.save_file({**theirs, "single_blocks.0.processor.qkv_lora.down.weight": torch.zeros(2, 4)}, file)
    with pytest.raises(ValueError, match=r"^base_weights: .* contains a LoRA of XLabs with single blocks"):
        read_lora("base_weights", file, adapted(merged))


def _add_peft(made: dict[str, Tensor], model: FluxTransformer, name: str, rank: int) -> None:
    """A pair for diffusers' layer `name`, and its change in the rows of our layer."""
    _, key = bfl_key(f"{name}.weight")
    weight = model.get_parameter(key)
    rows = to_diffusers({"img_in.weight": model.img_in.weight, key: weight})[f"{name}.weight"]
    down, up = torch.randn(rank, rows.shape[1]) * 0.1, torch.randn(rows.shape[0], rank) * 0.1
    made[f"{name}.lora_A.weight"], made[f"{name}.lora_B.weight"] = down, up
    rows += up @ down


def test_diffusers_reads_a_single_block_of_the_real_width() -> None:
    """Only the LoRA is made: what diffusers adds to each of its layers is what ours adds to its rows."""
    for args in ([], ["split_qkv=True"]):
        with torch.device("meta"):
            block = FluxTransformer(FluxParams(double_blocks=1, single_blocks=1))
        meta = attach(plan_layers(adapted(block), read("train_blocks=single", *args)), Dropouts(), torch.Generator())
        layer = next(layer for layer in meta.layers if layer.name.endswith("linear1"))
        down, up = (torch.randn(part.shape) for part in (layer.down, layer.up))
        layer.masters = [nn.Parameter(down), nn.Parameter(up)]
        pair = layer.pair()
        start = layer.name
        tensors = {f"{start}.lora_down.weight": pair.down, f"{start}.lora_up.weight": pair.up}
        tensors[f"{start}.alpha"] = torch.tensor(pair.alpha)
        converted = FluxPipeline.lora_state_dict(tensors)
        x = torch.randn(3072, 2)
        changes = [
            converted[f"transformer.{name}.lora_B.weight"] @ (converted[f"transformer.{name}.lora_A.weight"] @ x)
            for name in diffusers_modules("single_blocks.0.linear1")
        ]
        expected = [u @ (d @ x) * layer.scale for d, u in layer.pairs(down, up)]
        close(torch.cat(changes), torch.cat(expected), 1e-3)


@pytest.mark.deep
@pytest.mark.parametrize(("args", "graphs"), [(["split_qkv=True"], 2), (["network_reg_dims=single_blocks_1_=2"], 3)])
def test_equal_blocks_share_one_graph(args: list[str], graphs: int) -> None:
    torch._dynamo.reset()
    model = tiny()
    network = make(model, *args, "train_blocks=single", "rank_dropout=0.2", "ggpo_beta=0.1", "ggpo_sigma=0.1")
    counter = CompileCounterWithBackend("eager")
    model.eval()
    eager = predict(model).detach()
    model.train()
    for block in (*model.double_blocks, *model.single_blocks):
        block.compile(backend=counter, fullgraph=True)
    for _ in range(2):
        predict(model).square().mean().backward()
        network.collect_gradients()
        network.perturb()
        network.zero_grad()
    assert counter.frame_count == graphs
    model.eval()
    with torch.no_grad():
        close(predict(model), eager)


def test_noise_follows_the_rows_of_weight_and_gradient() -> None:
    model = tiny()
    network = make(model, "ggpo_beta=0.3", "ggpo_sigma=0.2", "split_qkv=True", network_alpha=2.0)
    assert network.row_noise is not None
    still = predict(model)
    assert torch.equal(predict(model), still), "no noise before the first update"
    (1000 * still.square().mean()).backward()  # so that the gradients count next to the weights
    network.collect_gradients()
    network.perturb()
    for layer in network.layers:
        rows = slice(layer.split_dims[0] if layer.split_dims else None)
        (down, up), *_ = layer.pairs(layer.down.detach(), layer.up.detach())
        (down_slope, up_slope), *_ = layer.pairs(layer.down.grad, layer.up.grad)  # type: ignore[arg-type]
        frozen, learned = layer.layer.weight[rows], layer.scale * up @ down
        weight = (frozen.square().sum(1) + learned.square().sum(1)).sqrt()
        gradient = layer.scale * (up @ down_slope + up_slope @ down)
        expected = (0.2 * weight + 0.3 * gradient.square().sum(1)) / layer.layer.out_features**0.5
        assert isinstance(layer.layer, LoraLinear)
        assert layer.layer.row_noise is not None
        close(layer.layer.row_noise[rows], expected, 1e-4)
    network.zero_grad()
    first, second = predict(model), predict(model)
    assert not torch.allclose(first, second)
    model.eval()
    close(predict(model), still)


def test_noise_has_the_requested_deviation_and_no_gradient() -> None:
    layer = LoraLinear(nn.Linear(4, 3), 2, Dropouts())
    for part in (layer.lora_down, layer.lora_up):  # they are not initialized yet
        part.data.zero_()
    layer.row_noise = torch.tensor([0.0, 1.0, 2.0])
    x = torch.ones(1, 4, requires_grad=True)
    with torch.no_grad():
        drawn = torch.cat([layer(x) for _ in range(4000)])
    assert drawn.std(dim=0).tolist() == pytest.approx([0, 2, 4], rel=0.05)
    (slope,) = torch.autograd.grad(layer(x).sum(), x)
    close(slope, layer.weight.sum(0, keepdim=True))


def test_a_run_with_noise_resumes_bit_for_bit() -> None:
    def trainable() -> LoraTrainable:
        model = tiny()
        network = make(model, "ggpo_beta=0.3", "ggpo_sigma=0.2")
        return LoraTrainable(network, parameter_groups(network), [model])

    first, again = trainable(), trainable()
    predict(first.modules[0]).square().mean().backward()  # type: ignore[arg-type]
    first.gradients.collect()
    first.updated()
    again.load_state_dict(first.state_dict())
    torch.manual_seed(3)
    expected = predict(first.modules[0])  # type: ignore[arg-type]
    torch.manual_seed(3)
    assert torch.equal(predict(again.modules[0]), expected)  # type: ignore[arg-type]


def placed(swap: int, quantized: str, *args: str) -> tuple[FluxTransformer, AdapterNetwork]:
    """A quantized transformer whose blocks may take turns on the device, with a LoRA."""
    torch.manual_seed(0)
    model = FluxTransformer(replace(SHAPE, double_blocks=5, single_blocks=8)).requires_grad_(False)
    components = Components(denoiser=model, vae=nn.Module(), text_encoders=[], tokenizers=[], source="random")
    settings = Settings(FLUX_LORA, {"quantize_base": quantized, "blocks_to_swap": swap})
    BLOCK_LISTS.place(components, placement_of(settings), torch.device("cpu"))
    return model, make(model, *args)


@pytest.mark.parametrize("quantized", ["fp8", "int8", "nf4"])
def test_swapped_quantized_weights_train_like_resident_ones(quantized: str) -> None:
    args = ("split_qkv=True", "ggpo_beta=0.3", "ggpo_sigma=0.2")
    (moving, network), (staying, wanted) = placed(6, quantized, *args), placed(0, quantized, *args)
    assert network.compute.dtype == torch.float32
    assert moving.double_blocks[0].img_mlp[0].weight.element_size() == 1
    for model, each in ((moving, network), (staying, wanted)):
        predict(model).square().mean().backward()
        each.collect_gradients()
        each.perturb()
    assert network.gradients.any()
    assert torch.equal(network.gradients, wanted.gradients)
    assert network.row_noise is not None
    assert wanted.row_noise is not None
    assert torch.equal(network.row_noise.deviations, wanted.row_noise.deviations)


def test_an_adapted_layer_keeps_its_own_weights() -> None:
    base = quantize_(nn.Linear(16, 32, bias=False).requires_grad_(False), Int8(compute=True), torch.bfloat16)
    layer = LoraLinear(base, 2, Dropouts())
    assert layer.weight is base.weight
    assert layer.bias is None
    assert layer.weight_scale is base.weight_scale
    assert layer.weight_format is base.weight_format
    assert layer.lora_down.dtype == torch.bfloat16


def test_a_file_names_every_layer_of_the_network() -> None:
    network = make(tiny(), "split_qkv=True", "in_dims=1,1,1,1,1")
    tensors = network.file_tensors(torch.bfloat16)
    assert len(tensors) == 3 * len(network.layers)
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}
    assert all(read_layer(tensors, layer.name) for layer in network.layers)


def test_modules_stay_importable_under_the_names_that_users_know():
    from sd_scripts.library import flux_train_utils
    from sd_scripts.networks import lora_flux

    assert flux_train_utils.bfl_key is bfl_key
    assert lora_flux.read_flux_rules is not None
