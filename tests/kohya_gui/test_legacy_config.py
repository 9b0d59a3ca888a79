"""Configurations of kohya_ss keep their meaning."""

import json
from pathlib import Path

import pytest

from kohya_gui.kohya.legacy_config import from_kohya, is_dropped, read, tab_of
from kohya_gui.kohya.legacy_keys import (
    COMBINED,
    COMBINED_METADATA,
    FAMILIES,
    KOHYA_TABS,
    LORA,
    OF_PAGE,
    PREPARATION,
    own_keys,
)
from kohya_gui.kohya.legacy_networks import FIELDS
from sd_scripts.families.flux.card.kohya import KOHYA as FLUX_KEYS
from sd_scripts.options.training import ALWAYS_SDPA
from sd_scripts.settings.catalog import SCRIPTS
from sd_scripts.settings.compat.legacy import LegacyOptions
from sd_scripts.settings.family_options import each_option
from sd_scripts.settings.reading import from_values
from tests.support.scripts import FLUX_FULL, FLUX_LORA, SDXL_FULL, SDXL_LORA

REFERENCE = Path(__file__).parents[1] / "reference"
KOHYA_DEFAULTS = json.loads((REFERENCE / "kohya_lora_defaults.json").read_text(encoding="utf-8"))
KOHYA_TOML = json.loads((REFERENCE / "kohya_lora_toml.json").read_text(encoding="utf-8"))
FILLED = {
    **KOHYA_DEFAULTS,
    "sdxl": True,
    "pretrained_model_name_or_path": "<model.safetensors>",
    "train_data_dir": "<train_data_dir>",
    "output_dir": "<output_dir>",
}
FLUX = {**FILLED, "sdxl": False, "flux1_checkbox": True, "LoRA_type": "Flux1"}
OF_TAB = {tab: json.loads((REFERENCE / f"kohya_{tab}_defaults.json").read_text("utf-8")) for tab in KOHYA_TABS}
FULL_TOML = {
    "dreambooth": json.loads((REFERENCE / "kohya_dreambooth_toml.json").read_text("utf-8"))["dreambooth/sd15"],
    "finetune": json.loads((REFERENCE / "kohya_finetune_toml.json").read_text("utf-8"))["finetune/RUN_sdxl"],
}
FULL_PATHS = {
    "dreambooth": {"train_data_dir": "<train_data_dir>"},
    "finetune": {"image_folder": "<train_data_dir>/10_subject", "train_dir": "<train_dir>"},
}
ATTENTION = f"xformers: {ALWAYS_SDPA}"
"""Reported for every file, since kohya_ss's default asks for xformers."""
NOT_COMPARED = ("xformers", "sample_prompts", "wandb_run_name")
"""Attention is always torch's own, the prompts were a file of kohya_ss's making, and no run was sent to wandb."""


def meaning(**legacy):
    """What differs from our defaults after reading these keys of kohya_ss."""
    return from_values(SDXL_LORA, from_kohya({"sdxl": True, **legacy}).values).changed()


def flux_meaning(**legacy):
    values = from_kohya({"flux1_checkbox": True, "LoRA_type": "Flux1", **legacy}).values
    return from_values(FLUX_LORA, values).changed()


def full(tab: str, family: str, **legacy):
    """A file of DreamBooth or Finetune as the page of kohya_ss writes it, with these keys otherwise."""
    flag = {"sdxl": "sdxl_checkbox" if tab == "finetune" else "sdxl", "flux": "flux1_checkbox"}[family]
    where = {"pretrained_model_name_or_path": "<model.safetensors>", "output_dir": "<output_dir>", **FULL_PATHS[tab]}
    return from_kohya({**OF_TAB[tab], **where, flag: True, **legacy}, tab)


def full_meaning(tab: str, family: str, **legacy):
    return from_values(SDXL_FULL if family == "sdxl" else FLUX_FULL, full(tab, family, **legacy).values).changed()


def remarks(**legacy) -> list[str]:
    return [str(remark) for remark in from_kohya({"sdxl": True, **legacy}).remarks]


@pytest.mark.parametrize("case", [case for case in KOHYA_TOML if "Flux1" not in case])
def test_our_settings_equal_kohyas_own_toml(case):
    kind = case.removeprefix("lora/type:") if "type:" in case else "Standard"
    theirs = from_values(SDXL_LORA, KOHYA_TOML[case]).changed()
    ours = from_values(SDXL_LORA, from_kohya({**FILLED, "LoRA_type": kind}).values).changed()
    if kind == "LoRA-FA":  # cannot be trained here, which is reported
        theirs["network_module"] = "networks.lora"
    for settings in (ours, theirs):
        settings["network_args"] = sorted(settings.get("network_args", []))
    assert ours == {name: value for name, value in theirs.items() if name not in NOT_COMPARED}


@pytest.mark.parametrize("kind", ["Flux1", "Flux1 OFT"])
def test_our_settings_for_flux_equal_kohyas_own_toml(kind):
    theirs = from_values(FLUX_LORA, KOHYA_TOML[f"lora/type:{kind}"]).changed()
    ours = from_values(FLUX_LORA, from_kohya({**FLUX, "LoRA_type": kind}).values).changed()
    assert theirs.pop("max_timestep") == 1000  # all of them, and FLUX.1 does not read it
    assert theirs.pop("network_args", []) in ([], ["train_double_block_indices=all", "train_single_block_indices=all"])
    assert ours == {name: value for name, value in theirs.items() if name not in NOT_COMPARED}


FULL_CASES = [(tab, family) for tab in FULL_TOML for family in ("sdxl", "flux")]


@pytest.mark.parametrize(("tab", "family"), FULL_CASES)
def test_our_settings_for_whole_models_equal_kohyas_own_toml(tab, family):
    """The reference of DreamBooth is for SD 1.5, which differs from SDXL and FLUX.1 as said here."""
    toml = {name: value for name, value in FULL_TOML[tab].items() if name not in NOT_COMPARED}
    rates = ("train_text_encoder", "learning_rate_te1", "learning_rate_te2")
    for name in ("learning_rate_te", *rates):
        toml.pop(name, None)
    if family == "sdxl":
        toml |= dict(zip(rates, (True, 1e-5, 1e-5), strict=True))
    else:
        toml |= {"max_timestep": None, "t5xxl_max_token_length": 512}
    theirs = from_values(SDXL_FULL if family == "sdxl" else FLUX_FULL, toml).changed()
    assert full_meaning(tab, family) == theirs


@pytest.mark.parametrize(("tab", "family"), FULL_CASES)
def test_an_ordinary_configuration_for_a_whole_model_loses_nothing(tab, family):
    config = full(tab, family)
    settings = from_values(SDXL_FULL if family == "sdxl" else FLUX_FULL, config.values)
    assert config.family == family
    assert settings.unknown == {}
    assert {name for problem in settings.problems() for name in problem.names} <= {"clip_l", "t5xxl", "ae"}
    made = ["in_json: not created at the start of a run; create it once under Dataset preparation"]
    assert [str(remark) for remark in config.remarks] == [ATTENTION, *(made if tab == "finetune" else [])]


@pytest.mark.parametrize(
    ("tab", "family", "legacy", "ours"),
    [
        ("dreambooth", "sdxl", {"learning_rate_te1": 2e-6, "learning_rate_te2": 0},
         {"train_text_encoder": True, "learning_rate_te1": 2e-6, "learning_rate_te2": 0.0}),
        ("dreambooth", "sdxl", {"learning_rate_te1": 0, "learning_rate_te2": 0},
         {"train_text_encoder": None, "learning_rate_te1": None, "learning_rate_te2": None}),
        ("finetune", "sdxl", {"train_text_encoder": False}, {"train_text_encoder": None, "learning_rate_te1": None}),
        ("finetune", "sdxl", {"block_lr": ",".join(["1e-6"] * 23)}, {"block_lr": ",".join(["1e-6"] * 23)}),
        ("finetune", "sdxl", {"use_latent_files": "No"}, {"in_json": "<train_dir>/meta_cap.json"}),
        ("finetune", "sdxl", {"latent_metadata_filename": "m.json"}, {"in_json": "<train_dir>/m.json"}),
        ("finetune", "sdxl", {"train_dir": ""}, {"in_json": None}),
        ("finetune", "sdxl", {"dataset_config": "d.toml"}, {"in_json": None, "dataset_config": "d.toml"}),
        ("finetune", "sdxl", {"dataset_repeats": "3", "max_bucket_reso": "2048"},
         {"dataset_repeats": 3, "max_bucket_reso": 2048}),
        ("dreambooth", "sdxl", {"fused_backward_pass": True, "flux_fused_backward_pass": False},
         {"fused_backward_pass": True}),
        ("dreambooth", "sdxl", {"flux_fused_backward_pass": True}, {"fused_backward_pass": None}),
        ("dreambooth", "flux", {"flux_fused_backward_pass": True}, {"fused_backward_pass": True}),
        ("dreambooth", "flux", {"fused_backward_pass": True}, {"fused_backward_pass": None}),
        ("dreambooth", "sdxl", {"fused_optimizer_groups": 10}, {"fused_optimizer_groups": 10}),
        ("finetune", "flux", {"blockwise_fused_optimizers": True, "mem_eff_save": True},
         {"blockwise_fused_optimizers": True, "mem_eff_save": True}),
        ("dreambooth", "flux", {"flux1_clip_l": "c", "flux1_t5xxl": "t", "ae": "a", "clip_l": "of sd3", "t5xxl": "sd3"},
         {"clip_l": "c", "t5xxl": "t", "ae": "a"}),
        ("dreambooth", "flux", {"blocks_to_swap": 18, "cpu_offload_checkpointing": True},
         {"blocks_to_swap": 18, "cpu_offload_checkpointing": True}),
        ("dreambooth", "flux", {"double_blocks_to_swap": 6, "single_blocks_to_swap": 4}, {"blocks_to_swap": 8}),
        ("dreambooth", "sdxl", {"save_model_as": "same as source model"}, {"save_model_as": None}),
        ("dreambooth", "sdxl", {"save_model_as": "diffusers_safetensors"}, {"save_model_as": "diffusers_safetensors"}),
        ("dreambooth", "sdxl", {"noise_offset": 0.05, "multires_noise_iterations": 6},
         {"noise_offset": 0.05, "multires_noise_iterations": 6}),
        ("dreambooth", "sdxl", {"additional_parameters": "--block_lr 1 --use_ema"}, {"block_lr": "1", "use_ema": True}),
        ("dreambooth", "flux", {"full_bf16": True, "guidance_scale": 1}, {"full_bf16": True, "guidance_scale": 1.0}),
        ("dreambooth", "sdxl", {"prior_loss_weight": 0}, {"prior_loss_weight": 0.0}),
    ],
)  # fmt: skip
def test_the_fields_of_whole_models_become_options(tab, family, legacy, ours):
    said = full_meaning(tab, family, **legacy)
    assert {name: said.get(name) for name in ours} == ours


@pytest.mark.parametrize(
    ("tab", "legacy", "told"),
    [
        (
            "dreambooth",
            {"stop_text_encoder_training": 30},
            "stop_text_encoder_training: text encoders train to the end",
        ),
        ("finetune", {"flip_aug": True}, "max_train_steps: used as given; kohya_ss halved it with flip_aug"),
        ("finetune", {"train_inpainting": True}, "train_inpainting: inpainting models"),
    ],
)
def test_lost_keys_of_a_whole_models_file_are_reported(tab, legacy, told):
    lines = [str(remark) for remark in full(tab, "sdxl", **legacy).remarks]
    assert any(line.startswith(told) for line in lines), lines


@pytest.mark.parametrize("tab", KOHYA_TABS)
def test_the_keys_of_a_file_identify_the_tab_of_kohya_that_wrote_it(tab):
    assert tab_of(OF_TAB[tab]).name == tab
    assert tab_of({"sdxl": True, "output_name": "cat"}) is None


@pytest.mark.parametrize("family", ["sdxl", "flux"])
@pytest.mark.parametrize("tab", KOHYA_TABS)
def test_every_key_of_kohyas_tab_has_a_place(tab, family):
    keys = KOHYA_TABS[tab] | own_keys(tab, family)
    groups = {LegacyOptions, *(group for script in SCRIPTS for group in script.groups)}
    options = {o.name for group in groups for o in each_option(group)}
    assert [key for key in OF_TAB[tab] if not (key in options | {*keys.renamed} or is_dropped(key, family, tab))] == []


@pytest.mark.parametrize("tab", FULL_TOML)
def test_a_key_left_out_of_a_whole_models_file_keeps_its_kohya_default(tab):
    whole, paths = full_meaning(tab, "sdxl"), {"output_dir": "<output_dir>", **FULL_PATHS[tab]}
    flag = {"sdxl_checkbox" if tab == "finetune" else "sdxl": True}
    few = from_kohya({"pretrained_model_name_or_path": "<model.safetensors>", **paths, **flag}, tab)
    assert from_values(SDXL_FULL, few.values).changed() == whole
    left = {"enable_bucket": True} if tab == "finetune" else {}  # it is not a field there, and always on
    meant = {key: type(value)(OF_TAB[tab].get(key, left.get(key))) for key, value in KOHYA_TABS[tab].defaults.items()}
    assert meant == KOHYA_TABS[tab].defaults


def test_a_key_left_out_keeps_its_kohya_default():
    whole = from_values(SDXL_LORA, from_kohya(FILLED).values).changed()
    kept = ("sdxl", "pretrained_model_name_or_path", "train_data_dir", "output_dir")
    assert from_values(SDXL_LORA, from_kohya({key: FILLED[key] for key in kept}).values).changed() == whole
    assert {key: KOHYA_DEFAULTS[key] for key in LORA.defaults} == LORA.defaults
    assert {key: KOHYA_DEFAULTS[key] for key in FIELDS} == FIELDS
    assert {key: KOHYA_DEFAULTS[key] for key in FLUX_KEYS.tabs["lora"].defaults} == FLUX_KEYS.tabs["lora"].defaults
    assert {key: KOHYA_DEFAULTS[key] for key in FLUX_KEYS.lora_fields} == FLUX_KEYS.lora_fields


@pytest.mark.parametrize(
    ("legacy", "ours"),
    [
        ({"text_encoder_lr": 0}, {"network_train_unet_only": True, "unet_lr": 1e-4}),
        ({"unet_lr": "0.0"}, {"network_train_text_encoder_only": True, "text_encoder_lr": [1e-4, 1e-4]}),
        ({"text_encoder_lr": None}, {"text_encoder_lr": [1e-4, 1e-4]}),
        ({"lr_warmup": "5"}, {"lr_warmup_steps": 0.05}),
        ({"lr_warmup_steps": 100}, {"lr_warmup_steps": 100}),
        ({"max_train_steps": 0, "epoch": "3"}, {"max_train_epochs": 3}),
        ({"max_train_steps": 500, "epoch": 3}, {"max_train_steps": 500}),
        ({"max_grad_norm": 0}, {"max_grad_norm": 0.0}),
        ({"seed": "1234"}, {"seed": 1234}),
        ({"max_resolution": "1024,1024"}, {"resolution": "1024,1024"}),
        ({"max_token_length": "225"}, {"max_token_length": 225}),
        (
            {"noise_offset_type": "Original", "noise_offset": 0.05, "multires_noise_iterations": 6},
            {"noise_offset": 0.05},
        ),
        (
            {"noise_offset_type": "Multires", "noise_offset": 0.05, "multires_noise_iterations": 6},
            {"multires_noise_iterations": 6},
        ),
        (
            {"sdxl_no_half_vae": True, "sdxl_cache_text_encoder_outputs": 1},
            {"no_half_vae": True, "cache_text_encoder_outputs": True},
        ),
        (
            {"optimizer": "Adafactor", "optimizer_args": 'relative_step=False "warmup_init=False" betas=(0.9, 0.99)'},
            {
                "optimizer_type": "Adafactor",
                "optimizer_args": ["relative_step=False", "warmup_init=False", "betas=(0.9,0.99)"],
            },
        ),
        ({"use_8bit_adam": False}, {"optimizer_type": "AdamW"}),
        ({"lora_network_weights": "old.safetensors"}, {"network_weights": "old.safetensors"}),
        (
            {
                "LoRA_type": "Kohya LoCon",
                "conv_dim": 8,
                "conv_alpha": 4,
                "module_dropout": 0.1,
                "loraplus_lr_ratio": 16,
            },
            {"network_args": ["conv_dim=8", "conv_alpha=4", "module_dropout=0.1", "loraplus_lr_ratio=16"]},
        ),
        ({"down_lr_weight": "1, 0.5"}, {"network_args": ["down_lr_weight=1,0.5"]}),
        (
            {"additional_parameters": '--validation_split 0.1 --caption_prefix "a photo of"'},
            {"validation_split": 0.1, "caption_prefix": "a photo of"},
        ),
        ({"log_with": "wandb", "output_name": "cat"}, {"log_with": "wandb", "wandb_run_name": "cat"}),
        ({"save_every_n_epochs": "2", "persistent_data_loader_workers": 1}, {"save_every_n_epochs": 2}),
        ({"num_processes": 2, "gpu_ids": "0,1"}, {"num_processes": 2, "gpu_ids": "0,1"}),
        ({"caption_extension": ""}, {"caption_extension": None}),
    ],
)
def test_many_keys_become_one_option_and_one_key_several(legacy, ours):
    said = meaning(**legacy)
    assert {name: said.get(name) for name in ours} == ours


@pytest.mark.parametrize(
    ("legacy", "ours"),
    [
        (
            {"clip_l": "c.safetensors", "t5xxl": "t.safetensors", "ae": "ae.safetensors"},
            {"clip_l": "c.safetensors", "t5xxl": "t.safetensors", "ae": "ae.safetensors"},
        ),
        (
            {"timestep_sampling": "shift", "discrete_flow_shift": 3.1582, "model_prediction_type": "raw"},
            {"timestep_sampling": "shift", "discrete_flow_shift": 3.1582, "model_prediction_type": "raw"},
        ),
        ({"guidance_scale": 1, "apply_t5_attn_mask": True}, {"guidance_scale": 1.0, "apply_t5_attn_mask": True}),
        ({"t5xxl_max_token_length": 256}, {"t5xxl_max_token_length": 256}),
        ({}, {"t5xxl_max_token_length": 512, "network_module": "networks.lora_flux"}),
        (
            {"flux1_cache_text_encoder_outputs": True, "flux1_cache_text_encoder_outputs_to_disk": True},
            {"cache_text_encoder_outputs": True, "cache_text_encoder_outputs_to_disk": True},
        ),
        ({"sdxl_cache_text_encoder_outputs": True}, {"cache_text_encoder_outputs": None}),
        (
            {"blocks_to_swap": 18, "fp8_base": True, "fp8_base_unet": True, "cpu_offload_checkpointing": True},
            {"blocks_to_swap": 18, "fp8_base": True, "fp8_base_unet": True, "cpu_offload_checkpointing": True},
        ),
        ({"blocks_to_swap": 0}, {"blocks_to_swap": None}),
        (
            {"img_attn_dim": "8", "txt_mod_dim": "0", "single_dim": "", "in_dims": "[4, 0, 0, 0, 4]"},
            {"img_attn_dim": 8, "txt_mod_dim": 0, "single_dim": None, "in_dims": "4,0,0,0,4"},
        ),
        (
            {"train_double_block_indices": "0-3,7", "train_single_block_indices": "all"},
            {"train_double_block_indices": "0-3,7", "train_single_block_indices": None},
        ),
        ({"train_blocks": "single", "split_qkv": True}, {"train_blocks": "single", "split_qkv": True}),
        ({"train_t5xxl": True, "t5xxl_lr": 1e-5}, {"train_t5xxl": True, "text_encoder_lr": [1e-4, 1e-5]}),
        ({"text_encoder_lr": 0}, {"network_train_unet_only": True, "text_encoder_lr": None}),
        ({"split_mode": True}, {"train_blocks": "single", "blocks_to_swap": 18}),
        ({"train_lora_ggpo": True, "ggpo_beta": 0.02}, {"network_args": ["ggpo_sigma=0.03", "ggpo_beta=0.02"]}),
        (
            {"LoRA_type": "Standard", "img_attn_dim": "8"},
            {"network_module": "networks.lora_flux", "img_attn_dim": None},
        ),
        ({"rank_dropout": 0.1, "loraplus_lr_ratio": 4}, {"network_args": ["rank_dropout=0.1", "loraplus_lr_ratio=4"]}),
        ({"additional_parameters": "--sigmoid_scale 2"}, {"sigmoid_scale": 2.0}),
    ],
)
def test_the_fields_of_flux_become_its_options(legacy, ours):
    said = flux_meaning(**legacy)
    assert {name: said.get(name) for name in ours} == ours


def test_leftover_flux_keys_in_a_file_for_sdxl_are_ignored_and_reported():
    left = {"clip_l": "c.safetensors", "blocks_to_swap": 18, "img_attn_dim": "8", "fp8_base_unet": True}
    config = from_kohya({**FILLED, **left})
    assert (
        from_values(SDXL_LORA, config.values).changed() == from_values(SDXL_LORA, from_kohya(FILLED).values).changed()
    )
    told = [str(remark) for remark in config.remarks]
    assert sorted(told) == sorted([ATTENTION, *(f"{name}: has no effect for SDXL" for name in left)])


@pytest.mark.parametrize(
    ("legacy", "told"),
    [
        ({"train_blocks": "double"}, "train_blocks: takes effect here"),
        ({"split_mode": True}, "split_mode: is now train_blocks = single and blocks_to_swap"),
        ({"single_blocks_to_swap": 4}, "single_blocks_to_swap: no effect, as in sd-scripts"),
        ({"LoRA_type": "Lumina"}, "LoRA_type: Lumina cannot be trained here"),
    ],
)
def test_changes_for_flux_are_reported(legacy, told):
    lines = [str(remark) for remark in from_kohya({**FLUX, **legacy}).remarks]
    assert any(line.startswith(told) for line in lines), lines


def test_an_ordinary_configuration_for_flux_loses_nothing():
    config = from_kohya(FLUX)
    settings = from_values(FLUX_LORA, config.values)
    assert config.family == "flux"
    assert list(map(str, config.remarks)) == [ATTENTION]
    assert settings.unknown == {}
    assert {name for problem in settings.problems() for name in problem.names} <= {"clip_l", "t5xxl", "ae"}


@pytest.mark.parametrize(
    ("legacy", "told"),
    [
        (
            {"LoRA_type": "LyCORIS/GLoRA"},
            "LoRA_type: LyCORIS/GLoRA with algo=glora needs the lycoris package, which is not included: pip install",
        ),
        (
            {"LoRA_type": "LyCORIS/LoKr", "train_norm": True},
            "LoRA_type: LyCORIS/LoKr with train_norm=True needs the lycoris package",
        ),
        ({"LoRA_type": "Kohya DyLoRA"}, "LoRA_type: Kohya DyLoRA cannot be trained here; a standard LoRA"),
        ({"sdxl": False, "sd3_checkbox": True}, "sdxl: off: these settings are for SD 3, which is not supported"),
        ({"sdxl": False}, "sdxl: off: these settings are for Stable Diffusion 1.5"),
        ({"show_timesteps": "image"}, "show_timesteps: not supported"),
        ({"lr_scheduler": "piecewise_constant"}, "lr_warmup: left out: the scheduler piecewise_constant has no"),
        ({"train_inpainting": True}, "train_inpainting: inpainting models are not supported"),
        ({"stop_text_encoder_training": 50}, "stop_text_encoder_training: text encoders train to the end"),
        ({"lr_scheduler": "constant"}, "lr_warmup: left out: the scheduler constant has no warmup"),
        ({"additional_parameters": "--split_qkv"}, "additional_parameters: left out: --split_qkv: unknown option"),
        ({"sample_prompts": "a cat --w 512"}, "sample_prompts: the prompts were in the configuration"),
    ],
)
def test_lost_keys_are_reported(legacy, told):
    assert any(line.startswith(told) for line in remarks(**legacy)), remarks(**legacy)


def test_an_unknown_flag_among_more_parameters_leaves_the_others():
    config = from_kohya({"sdxl": True, "additional_parameters": "--no_such 3 --ip_noise_gamma 0.1 --zero_terminal_snr"})
    assert {"ip_noise_gamma": "0.1", "zero_terminal_snr": True}.items() <= config.values.items()
    assert [str(said).split(": ")[0] for said in config.remarks] == ["additional_parameters"]


@pytest.mark.parametrize(
    ("tab", "model"), [("lora", {"sdxl": True}), ("dreambooth", {"flux1_checkbox": True}), ("finetune", {})]
)
def test_every_changed_key_without_effect_is_reported(tab, model):
    """A key either reaches an option, is combined with others, or is reported."""
    family = from_kohya(model, tab).family
    silent = {*COMBINED, *OF_PAGE, *COMBINED_METADATA, *PREPARATION, *FAMILIES, *FIELDS}
    keys = [key for key in OF_TAB[tab] if is_dropped(key, family, tab) and key not in silent]
    assert len(keys) > 20
    changed = {key: 0.25 if isinstance(OF_TAB[tab][key], (int, float)) else "/changed" for key in keys}
    told = {remark.name for remark in from_kohya({**OF_TAB[tab], **model, **changed}, tab).remarks}
    assert [key for key in keys if key not in told] == []


def test_fields_without_effect_at_their_default_get_no_remark():
    assert remarks(show_timesteps="", train_inpainting=False, stop_text_encoder_training="0") == []


def test_an_ordinary_configuration_loses_nothing():
    assert list(map(str, from_kohya(FILLED).remarks)) == [ATTENTION]
    assert from_kohya({**FILLED, "xformers": "sdpa"}).remarks == ()
    assert from_values(SDXL_LORA, from_kohya(FILLED).values).problems() == []


def test_prompts_and_unknown_keys_are_kept():
    config = from_kohya({"sdxl": True, "sample_prompts": "a cat\na dog\n", "brand_new": 3})
    assert config.prompts == "a cat\na dog"
    assert from_values(SDXL_LORA, config.values).unknown == {"brand_new": 3}


@pytest.mark.parametrize(
    ("text", "why"), [("{", "is not JSON"), ("[1]", "not a kohya_ss configuration"), (None, "file not found")]
)
def test_a_file_that_is_not_a_configuration_is_refused_in_one_sentence(tmp_path, text, why):
    file = tmp_path / "c.json"
    if text is not None:
        file.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=why):
        read(file)
