"""The network trained under the names in users' files, and the layers of a LyCORIS preset."""

import re
from typing import Any

import pytest
import torch

from sd_scripts.families.cards.registry import is_built_in_network
from sd_scripts.families.common.family import family_of
from sd_scripts.networks.adapter import adapter_kinds
from sd_scripts.networks.adapters.dora import Dora
from sd_scripts.networks.adapters.lora import Lora as PlainLora
from sd_scripts.networks.plan import AdaptedModule, NetworkArgs, plan_layers
from sd_scripts.options.networks.network import NetworkOptions
from sd_scripts.options.networks.network_types import needs_package, read_items
from sd_scripts.settings import network_choice, preflight
from sd_scripts.settings.catalog import script_for
from sd_scripts.settings.checks.between import problems_between
from sd_scripts.settings.network_choice import KINDS
from sd_scripts.settings.reading import from_values
from tests.support.networks.lora_sdxl import prepare
from tests.support.scripts import FLUX_LORA, SDXL_LORA

LYCORIS = "lycoris.kohya"
NAMES: list[tuple[dict[str, Any], str, dict[str, str]]] = [
    ({}, "lora", {}),
    ({"network_type": "lokr"}, "lokr", {}),
    ({"network_type": "dora"}, "lora", {"dora_wd": "True"}),
    ({"network_type": "lora", "network_module": "networks.lora"}, "lora", {}),
    ({"network_args": ["adapter=dora"]}, "lora", {"adapter": "dora", "dora_wd": "True"}),
    ({"network_module": "networks.loha", "network_args": ["use_tucker=True"]}, "loha", {"use_tucker": "True"}),
    ({"network_module": "sd_scripts.networks.lokr", "network_args": ["factor=8"]}, "lokr", {"factor": "8"}),
    ({"network_module": LYCORIS, "network_args": ["algo=lokr", "factor=8"]}, "lokr", {"factor": "8"}),
    ({"network_module": LYCORIS}, "lora", {}),
    ({"network_module": LYCORIS, "network_args": ["algo=LoCon", "use_cp=True"]}, "lora", {"use_tucker": "True"}),
    ({"network_module": LYCORIS, "network_args": ["algo=boft", "use_tucker=False", "train_norm=False"]}, "boft", {}),
    ({"network_module": LYCORIS, "network_args": ["algo=diag-oft", "constrain=0.1"]}, "oft", {"constraint": "0.1"}),
    ({"network_module": LYCORIS, "network_args": ["algo=lokr", "conv_dim=100000"]}, "lokr", {"conv_dim": "4096"}),
    ({"network_module": "networks.oft", "network_dim": 8}, "oft", {"block_count": "8", "constraint": "1.0"}),
]


def problems_of(options: NetworkOptions) -> list[tuple[str, str]]:
    return [*options.check(), *problems_between({NetworkOptions: options}, "sdxl")]


def test_names_of_other_programs_mean_built_in_adapters() -> None:
    wrong = []
    for values, adapter, arguments in NAMES:
        options = NetworkOptions(**values)
        found = options.built_in
        as_expected = is_built_in_network(options) and (found.adapter, dict(found.arguments)) == (adapter, arguments)
        if not as_expected or problems_of(options):
            wrong.append((values, found, problems_of(options)))
    assert wrong == []


@pytest.mark.parametrize("needed", ["algo=dylora", "preset=my.toml", "train_norm=True", "use_scalar=1"])
def test_networks_only_the_package_trains_are_left_to_it(needed: str) -> None:
    options = NetworkOptions(network_module=LYCORIS, network_args=["algo=lokr", needed][needed.startswith("algo") :])
    assert not is_built_in_network(options)
    assert needs_package(read_items(options.network_args)) == needed


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"network_type": "lokr", "network_module": "networks.loha"}, "network_module = networks.loha chooses the"),
        ({"network_type": "lokr", "network_module": "somebody.network"}, "chooses the trained network; leave one"),
        (
            {"network_type": "lokr", "network_args": ["adapter=loha"]},
            "adapter in network_args chooses the trained network",
        ),
        ({"lora_init": "pissa", "network_type": "loha"}, "pissa is for plain LoRA; leave it unset"),
        (
            {"lora_init": "pissa", "network_weights": "a.safetensors"},
            "network_weights says what|pissa and network_weights",
        ),
        ({"lora_init": "olora", "scale_weight_norms": 1.0}, "olora does not start from 0"),
        ({"network_type": "loha", "network_dim": 5000}, "5000 is above 4096"),
    ],
)
def test_conflicting_options_are_reported(values: dict[str, Any], problem: str) -> None:
    (found,) = problems_of(NetworkOptions(**values))
    assert found[0] in ("network_type", "lora_init", "network_dim")
    assert re.search(problem, found[1])


def test_an_adapter_that_reads_base_weights_refuses_a_quantized_base() -> None:
    for values, told in (
        ({"network_type": "lokr", "dora_wd": True, "fp8_base": True}, "fp8_base: dora_wd with LoKr needs the base"),
        (
            {"network_type": "dora", "wd_on_output": False, "fp8_base_unet": True},
            "fp8_base_unet: wd_on_output = false ",
        ),
        ({"network_type": "dora", "fp8_base": True}, ""),
        ({"network_type": "lokr", "fp8_base": True}, ""),
    ):
        problems = [*network_choice.problems(from_values(FLUX_LORA, values))]
        assert len(problems) == bool(told)
        assert all(problem.startswith(told) for problem in problems)


def test_an_option_and_the_same_key_of_network_args_may_not_differ() -> None:
    settings = from_values(SDXL_LORA, {"network_type": "lokr", "factor": 8, "network_args": ["factor=4"]})
    with pytest.raises(ValueError, match=r"^factor: set to 8 here but to 4 in network_args; remove one of them$"):
        NetworkArgs.read(settings, pytest.fail)


def test_an_option_of_a_different_network_type_is_reported() -> None:
    told: list[str] = []
    settings = from_values(SDXL_LORA, {"network_type": "lokr", "constraint": 0.1, "network_args": ["rescaled=True"]})
    NetworkArgs.read(settings, told.append)
    assert told == [
        "constraint: has no effect on adapters of the kind lokr; leave it unset",
        "network_args: rescaled is unknown and has no effect",
    ]


@pytest.mark.parametrize(
    ("family", "values", "problem", "remark"),
    [
        ("sdxl", {"network_args": ["train_blocks=double"]}, "", "network_args: train_blocks is unknown and has no ef"),
        ("sdxl", {"network_type": "boft", "factor": 4}, "", "factor: has no effect on adapters of the kind boft"),
        ("sdxl", {"network_args": ["mid_lr_weight=1,2"]}, "", "network_args: mid_lr_weight has 2 values for 3 blocks"),
        ("flux_kontext", {"conv_dim": 4}, "", "network_args: conv_dim and conv_alpha have no effect because FLUX.1"),
        ("qwen_image", {"network_args": ["wd_on_output=1"]}, "", "network_args: wd_on_output is unknown"),
        ("flux", {"network_args": ["img_mpl_dim=4"]}, "network_args: img_mpl_dim is unknown. Did you mean img_mlp", ""),
        ("sdxl", {"network_args": ["Conv_Dim=4"]}, "network_args: Conv_Dim is unknown. Did you mean conv_dim?", ""),
        ("flux", {"network_args": ["train_double_block_indices=x"]}, "train_double_block_indices: 'x' is not a nu", ""),
        ("qwen_image_edit", {"network_args": ["exclude_patterns=[("]}, "network_args: exclude_patterns=[( is not", ""),
        ("sdxl", {"network_args": ["ggpo_sigma=0.1"]}, "network_args: ggpo_beta and ggpo_sigma must be set toget", ""),
        ("flux", {"network_type": "loha", "save_as_format": "both"}, "save_as_format: both is for plain LoRA", ""),
        ("sdxl", {"network_module": "foreign", "save_as_format": "both"}, "", "save_as_format: has no effect on an"),
        ("sdxl", {"network_args": ["conv_dim=2", "block_dims=" + ",".join("4" * 23)]}, "", ""),
    ],
)
def test_how_the_network_reads_its_arguments_is_known_before_torch_is_imported(
    family: str, values: dict[str, Any], problem: str, remark: str
) -> None:
    settings = from_values(script_for(family, "lora"), values)
    told = [str(each) for each in preflight.found_by([network_choice.problems], settings)]
    remarks = [each for each in preflight.remarks(settings) if each in [*network_choice.remarks(settings)]]
    assert [len(told), len(remarks)] == [bool(problem), bool(remark)], (told, remarks)
    assert "".join(told).startswith(problem)
    assert "".join(remarks).startswith(remark)
    assert {*told} <= {*map(str, preflight.problems(settings))}


def test_every_adapter_kind_has_its_reader() -> None:
    assert [*KINDS] == [*adapter_kinds()]


def planned(preset: str) -> list[str]:
    """Paths of the adapted layers of SDXL's U-Net."""
    from diffusers import UNet2DConditionModel

    from sd_scripts.families.sdxl.tiny import UNET

    values = {"network_module": LYCORIS, "network_dim": 4, "network_args": ["algo=lokr", f"preset={preset}"]}
    with torch.device("meta"):
        unet = UNet2DConditionModel(**UNET, norm_num_groups=8)
    target = family_of("sdxl").lora
    args = NetworkArgs.read(from_values(SDXL_LORA, values), pytest.fail)
    return [plan.path for plan in plan_layers([AdaptedModule(module=unet, target=target, lr=1.0)], args)]


def test_presets_choose_the_same_layers_as_lycoris() -> None:
    attention, transformer = planned("attn-only"), planned("attn-mlp")
    assert all(".attn1." in path or ".attn2." in path for path in attention)
    assert {path.rpartition(".")[2] for path in set(transformer) - set(attention)} == {
        "proj",
        "2",
        "proj_in",
        "proj_out",
    }
    full, linear, convolutions = planned("full"), planned("full-lin"), planned("unet-convblock-only")
    assert set(transformer) < set(linear) < set(full)
    assert any(path.endswith("conv1") for path in full)
    assert not any(path.endswith(("conv1", "conv2")) for path in linear)
    assert set(convolutions) == set(full) - set(transformer)


def test_layers_without_a_kernel_need_no_tucker_form(miniature: Any, tmp_path: Any) -> None:
    prepared = prepare(miniature.checkpoint, tmp_path, network_type="locon", use_tucker=True, conv_dim=2)
    kinds = {type(layer): layer.layer.weight.ndim for layer in prepared.network.layers}
    assert kinds == {PlainLora: 2, Dora: 4}
