"""Settings: their values, their files, their problems and options without effect."""

import os
from typing import Any

import pytest

from sd_scripts.families.flux.card.options import FluxModelOptions
from sd_scripts.formats.toml_files import read_toml, write_toml
from sd_scripts.options.compile import CompileOptions
from sd_scripts.options.launch import LaunchOptions
from sd_scripts.options.memory import MemoryOptions
from sd_scripts.options.networks.network import NetworkOptions
from sd_scripts.options.optimization.flow import FlowOptions
from sd_scripts.options.optimization.optimizer import OptimizerOptions
from sd_scripts.settings.catalog import FAMILY_TITLES, script_for
from sd_scripts.settings.reading import from_values
from sd_scripts.settings.settings import Settings
from tests.support.scripts import FLUX_FULL, FLUX_LORA, SDXL_LORA

START = {
    "pretrained_model_name_or_path": "sdxl.safetensors",
    "train_data_dir": "images",
    "output_dir": "results",
    "resolution": "1024",
    "learning_rate": 1e-4,
}


def settings(**values) -> Settings:
    return from_values(SDXL_LORA, {**START, **values})


def remarks(**values) -> list[str]:
    return [str(remark) for remark in settings(**values).remarks]


def test_a_start_needs_a_model_images_a_size_and_an_output_folder():
    assert settings().problems() == []
    missing = list(map(str, Settings(SDXL_LORA, {}).problems()))
    assert [line.split(":")[0] for line in missing] == [
        "pretrained_model_name_or_path",
        "train_data_dir",
        "output_dir",
        "resolution",
    ]
    assert missing[-1] == "resolution: not set; 1024 suits current models"
    described = from_values(
        SDXL_LORA, {**START, "train_data_dir": None, "resolution": None, "dataset_config": "d.toml"}
    )
    assert described.problems() == []


def test_only_values_that_differ_from_the_defaults_are_written():
    chosen = settings(compile=False, compile_dynamic="auto", compile_cache_size_limit=0, network_dim=16)
    assert chosen.changed() == {**START, "network_dim": 16}


def test_a_family_has_the_defaults_that_its_own_scripts_have_elsewhere():
    settings = from_values(script_for("anima", "lora"), {"discrete_flow_shift": 3.0})
    assert settings[FlowOptions].timestep_sampling == "sigmoid"  # sd-scripts' anima_train_network.py
    assert settings.changed() == {"discrete_flow_shift": 3.0}  # a default of other families
    musubi = from_values(script_for("hunyuan_video", "lora"), {"timestep_sampling": "shift"})
    assert (musubi[FlowOptions].discrete_flow_shift, musubi[FlowOptions].guidance_scale) == (1.0, 1.0)
    assert from_values(FLUX_LORA, {"guidance_scale": 1.0}).changed() == {"guidance_scale": 1.0}


def test_defaults_get_no_remark_that_they_have_no_effect():
    remarks = from_values(script_for("anima", "lora"), {}).remarks
    assert not [str(remark) for remark in remarks if remark.name in ("timestep_sampling", "discrete_flow_shift")]


def test_a_changed_compile_option_is_kept_while_compile_is_off():
    assert settings(compile_mode="reduce-overhead").changed()["compile_mode"] == "reduce-overhead"
    assert remarks(compile_mode="reduce-overhead") == ["compile_mode: has no effect while compile is off"]


def test_secrets_are_never_written():
    secret = settings(wandb_api_key="k", huggingface_token="t")
    assert not {"wandb_api_key", "huggingface_token"} & (secret.changed().keys() | secret.saved().keys())


def test_unknown_keys_survive_and_are_reported_with_the_nearest_name():
    opened = settings(netwrok_dim=8, something_else={"deep": [1, 2]})
    assert opened.saved() == {**SDXL_LORA.identity, **START, "netwrok_dim": 8, "something_else": {"deep": [1, 2]}}
    assert [str(r) for r in opened.remarks] == [
        "netwrok_dim: unknown option. Did you mean network_dim?",
        "something_else: unknown option",
    ]


def test_launch_options_in_a_file_are_accepted_silently():
    opened = settings(num_processes=2, gpu_ids="0,1")
    assert opened[LaunchOptions].num_processes == 2
    assert opened.remarks == []


def test_an_option_without_effect_yet_is_reported():
    (said,) = remarks(xformers=True)
    assert said.startswith("xformers: has no effect: attention always uses PyTorch's")
    assert remarks(xformers=False) == []
    assert remarks(sdpa=True) == [], "it is always on"


def test_the_low_default_learning_rate_is_pointed_out():
    assert "1e-4" in remarks(learning_rate=2e-6)[0]
    assert remarks(learning_rate=2e-6, unet_lr=1e-4) == []
    assert "use 1 here" in remarks(optimizer_type="Prodigy")[0]


@pytest.mark.parametrize(
    ("values", "named", "remedy"),
    [
        ({"full_bf16": True}, "full_bf16", "mixed_precision = bf16"),
        ({"full_fp16": True, "mixed_precision": "bf16"}, "full_fp16", "mixed_precision = fp16"),
        ({"adaptive_noise_scale": 0.1}, "adaptive_noise_scale", "noise_offset"),
        ({"scale_v_pred_loss_like_noise_pred": True}, "scale_v_pred_loss_like_noise_pred", "v_parameterization"),
        ({"v_pred_like_loss": 0.5, "v_parameterization": True}, "v_pred_like_loss", "turn it"),
        ({"cache_latents": True, "color_aug": True}, "color_aug", "turn off"),
        ({"cache_latents_to_disk": True, "random_crop": True}, "random_crop", "turn off"),
        ({"cache_latents": True, "face_crop_aug_range": "2.0,4.0"}, "face_crop_aug_range", "turn off"),
        ({"face_crop_aug_range": "2"}, "face_crop_aug_range", "2.0,4.0"),
        ({"cache_text_encoder_outputs": True}, "cache_text_encoder_outputs", "network_train_unet_only"),
        (
            {"cache_text_encoder_outputs": True, "network_train_unet_only": True, "shuffle_caption": True},
            "shuffle_caption",
            "turn it off",
        ),
        ({"network_train_unet_only": True, "network_train_text_encoder_only": True}, "network_train_unet_only", "turn"),
        ({"dim_from_weights": True}, "dim_from_weights", "network_weights"),
        ({"base_weights": ["a"], "base_weights_multiplier": [1, 2]}, "base_weights_multiplier", "one for each"),
        ({"text_encoder_lr": [1, 2, 3]}, "text_encoder_lr", "one"),
        ({"network_args": ["conv_dim"]}, "network_args", "key=value"),
        ({"optimizer_args": ["=1"]}, "optimizer_args", "key=value"),
        ({"lr_scheduler": "constant", "lr_warmup_steps": 10}, "lr_warmup_steps", "constant_with_warmup"),
        ({"optimizer_type": "Adafactor", "lr_warmup_steps": 9}, "lr_warmup_steps", "relative_step=False"),
        ({"lr_scheduler_type": "torch.StepLR", "lr_warmup_steps": 9}, "lr_warmup_steps", "lr_warmup_steps = 0"),
        ({"lr_scheduler": "adafactor"}, "lr_scheduler", "constant"),
        ({"validation_split": 1.0}, "validation_split", "dataset_config"),
        ({"lr_scheduler": "cosin"}, "lr_scheduler", "cosine"),
        ({"enable_bucket": True, "resolution": "1536"}, "max_bucket_reso", "raise"),
        ({"enable_bucket": True, "min_bucket_reso": 1100, "max_bucket_reso": 2048}, "min_bucket_reso", "lower"),
        ({"resolution": "big"}, "resolution", "1024"),
        ({"resolution": "32"}, "resolution", "64..8192"),
        ({"min_timestep": 800, "max_timestep": 200}, "min_timestep", "lower"),
        ({"compile": True, "compile_backend": "eager", "compile_mode": "max-autotune"}, "compile_mode", "inductor"),
        ({"compile": True, "compile_backend": "eager", "compile_options": ["a=1"]}, "compile_options", "= inductor"),
        ({"compile_options": ["shape_padding"]}, "compile_options", "key=value"),
        ({"compile_options": ["cpu_backend=triton"]}, "compile_options", "cpu_backend='text'"),
        ({"output_name": "a/b"}, "output_name", "output_dir"),
        ({"output_name": "a\0b"}, "output_name", "NUL"),
        ({"output_name": "a\nb"}, "output_name", "line break"),
        ({"output_name": "Nul.v2"}, "output_name", "Windows"),
        ({"output_name": "cat."}, "output_name", "dot"),
        ({"output_dir": "out\x07"}, "output_dir", "control character"),
        ({"log_with": "tensorboard"}, "logging_dir", "folder"),
        ({"skip_until_initial_step": True}, "skip_until_initial_step", "initial_step"),
        ({"debug_dataset": True}, "debug_dataset", "turn it off"),
        ({"dataset_class": "my.Data"}, "dataset_class", "dataset_config"),
        ({"gpu_ids": "first"}, "gpu_ids", "0,1"),
        ({"train_batch_size": 0}, "train_batch_size", "1..1024"),
        ({"learning_rate": "fast"}, "learning_rate", "a number"),
        ({"mixed_precision": "banana"}, "mixed_precision", "bf16"),
    ],
)
def test_impossible_settings_are_reported_by_name_with_the_remedy(values, named, remedy):
    (told,) = map(str, settings(**values).problems())
    assert told.startswith(f"{named}: ")
    assert remedy in told


@pytest.mark.parametrize(
    "values", [{"fused_backward_pass": True}, {"blocks_to_swap": 4, "full_bf16": True, "mixed_precision": "bf16"}]
)
def test_an_optimizer_that_finds_one_rate_needs_all_weights_together(values):
    start = {**START, "clip_l": "c", "t5xxl": "t", "ae": "a"}

    def found(optimizer):
        problems = from_values(FLUX_FULL, {**start, **values, "optimizer_type": optimizer}).problems()
        return [str(problem) for problem in problems if problem.names == ("optimizer_type",)]

    (told,) = found("Prodigy")
    assert f"or turn {next(iter(values))} off" in told
    assert not found("AdamW")
    assert not found("ProdigyPlusScheduleFree")  # a rate for each group


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"dataset_config": "d.toml"}, "train_data_dir"),
        ({"conditioning_data_dir": "masks"}, "conditioning_data_dir"),
        ({"masked_loss": True}, "masked_loss"),
        ({"persistent_data_loader_workers": True, "max_data_loader_n_workers": 0}, "persistent_data_loader_workers"),
        ({"validate_every_n_steps": 10}, "validate_every_n_steps"),
        ({"zero_terminal_snr": True}, "zero_terminal_snr"),
        ({"noise_offset_random_strength": True}, "noise_offset_random_strength"),
        ({"lr_decay_steps": 10}, "lr_decay_steps"),
        ({"optimizer_type": "AdamWScheduleFree", "lr_scheduler": "cosine"}, "lr_scheduler"),
        ({"optimizer_type": "AdamWScheduleFree", "lr_warmup_steps": 9}, "lr_warmup_steps"),
        ({"optimizer_type": "Adafactor", "lr_scheduler": "cosine"}, "lr_scheduler"),
        ({"sample_every_n_steps": 10}, "sample_every_n_steps"),
        ({"save_last_n_steps": 10}, "save_last_n_steps"),
        ({"network_train_unet_only": True, "text_encoder_lr": [1e-4]}, "text_encoder_lr"),
        ({"network_train_text_encoder_only": True, "unet_lr": 1e-4}, "unet_lr"),
        ({"deepspeed": True}, "deepspeed"),
        ({"min_bucket_reso": 512}, "min_bucket_reso"),
        ({"max_token_length": 255}, "max_token_length"),
        ({"lr_scheduler": "piecewise_constant", "lr_warmup_steps": 10}, "lr_warmup_steps"),
        ({"dynamo_backend": "inductor"}, "dynamo_backend"),
    ],
)
def test_settings_without_effect_are_reported(values, named):
    assert settings(**values).problems() == []
    assert [line.split(":")[0] for line in remarks(**values)] == [named]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"max_token_length": 75}, {}),
        ({"max_token_length": "150"}, {"max_token_length": 150}),
        ({"max_token_length": 255}, {"max_token_length": 225}),
        ({"max_token_length": 77}, {}),
        ({"huber_c": 0, "huber_scale": 0.0}, {}),
        ({"clip_skip": 1, "dynamo_backend": "no", "noise_offset_type": "Original"}, {}),
        ({"epoch": 4}, {"max_train_epochs": 4}),
        ({"epoch": 4, "max_train_steps": 900}, {"max_train_steps": 900}),
        ({"use_8bit_adam": 1}, {"optimizer_type": "AdamW8bit"}),
        ({"use_lion_optimizer": True}, {"optimizer_type": "Lion"}),
        ({"caption_extention": ".txt"}, {"caption_extension": ".txt"}),
        ({"mixed_precision": "fp8"}, {"mixed_precision": "bf16"}),
        ({"lr_scheduler": "cosine", "lr_warmup_steps": "10%"}, {"lr_scheduler": "cosine", "lr_warmup_steps": 0.1}),
        ({"lr_scheduler": "cosine", "lr_warmup_steps": 100.0}, {"lr_scheduler": "cosine", "lr_warmup_steps": 100}),
        ({"learning_rate": "3e-4"}, {"learning_rate": 3e-4}),
        ({"resolution": 768}, {"resolution": "768"}),
        ({"resolution": [1024, 768]}, {"resolution": "1024,768"}),
        ({"text_encoder_lr": 1e-5}, {"text_encoder_lr": [1e-5]}),
        ({"network_args": 'conv_dim=4 "x=a b"'}, {"network_args": ["conv_dim=4", "x=a b"]}),
        ({"cache_latents": 1, "flip_aug": 0}, {"cache_latents": True}),
        ({"compile_dynamic": True, "compile": True}, {"compile_dynamic": "true", "compile": True}),
        ({"sample_every_n_steps": 0, "min_snr_gamma": 0, "vae": ""}, {}),
    ],
)
def test_old_spellings_keep_their_meaning(old, new):
    opened = settings(**old)
    assert opened.problems() == []
    assert opened.changed() == {**START, **new}


def test_compiler_keys_that_sd_scripts_writes_get_no_remark():
    assert remarks(torch_compile=False, dynamo_backend="inductor") == []


@pytest.mark.parametrize(
    "values",
    [
        {"network_module": "lycoris.kohya", "network_args": ["algo=lokr", "conv_dim=100000"]},
        {"network_module": "lycoris.kohya", "network_args": ["algo=dylora"]},
        {"network_type": "lokr"},
    ],
)
def test_lokr_and_other_packages_accept_a_rank_that_others_refuse(values: dict[str, Any]) -> None:
    assert settings(network_dim=100_000, network_alpha=100_000, **values).problems() == []
    (problem,) = map(str, settings(network_dim=10_000).problems())
    assert problem.startswith("network_dim: 10000 is above 4096")


def test_flux_loras_are_not_made_for_sdxl():
    (problem,) = map(str, settings(network_module="networks.lora_flux").problems())
    assert problem.startswith("network_module: networks.lora_flux makes LoRAs for FLUX.1, but this run trains SDXL")


def test_torch_compile_points_to_compile():
    (said,) = remarks(torch_compile=True)
    assert said.startswith("torch_compile: ")
    assert "set compile" in said


def test_an_old_switch_does_not_beat_the_optimizer_that_is_named():
    opened = settings(use_8bit_adam=True, optimizer_type="Lion")
    assert opened[OptimizerOptions].optimizer_type == "Lion"
    assert str(opened.remarks[0]) == "use_8bit_adam: has no effect with optimizer_type = Lion"


def test_a_file_round_trips_its_settings(tmp_path):
    path = tmp_path / "Ordner mit Leerzeichen" / "ünïcode.toml"
    values = {
        "output_dir": "C:\\Users\\new\\träume",
        "metadata_title": 'say "hi" — 猫\n\ttwo lines',
        "network_args": ["a=1", "b='x y'"],
        "learning_rate": 1e-05,
        "compile": True,
        "unknown_table": {"deep": [1, 2]},
        "unset": None,
    }
    write_toml(path, values)
    assert read_toml(path) == {name: value for name, value in values.items() if value is not None}
    assert [p.name for p in path.parent.iterdir()] == [path.name], "nothing is left next to it"


def test_a_file_lists_options_under_group_titles_and_round_trips(tmp_path):
    path = tmp_path / "a.toml"
    unknown = {"my_key": 3, "my_table": {"deep": [1, 2]}, "my_rows": [{"a": 1}, {"a": 2}]}
    opened = settings(network_dim=8, compile=True, seed=4, network_args=["conv_dim=2"], **unknown)
    write_toml(path, opened.saved(), opened.headings())
    assert read_toml(path) == opened.saved()
    first, *sections = path.read_text(encoding="utf-8").partition("\n[")[0].split("\n# ")
    assert first == 'family = "sdxl"\nmethod = "lora"\nmy_key = 3\n'
    by_title = dict(section.split("\n", 1) for section in sections)
    names = {title: [line.partition(" = ")[0] for line in lines.splitlines()] for title, lines in by_title.items()}
    assert names[OptimizerOptions.title] == ["learning_rate"]
    assert names[NetworkOptions.title] == ["network_dim", "network_args"]
    assert names[CompileOptions.title] == ["compile"]


def test_tables_are_headings_only_and_the_later_key_wins(tmp_path):
    file = tmp_path / "a.toml"
    file.write_text('network_dim = 4\n[any]\nnetwork_dim = 8\n[other]\noutput_name = "x"\n', encoding="utf-8")
    assert read_toml(file) == {"network_dim": 8, "output_name": "x"}


@pytest.mark.parametrize(
    ("text", "why"), [(b"a = \nb = 2", "line 1"), (b"\xff\xfe\x00", "UTF-8"), (None, "file not found")]
)
def test_a_broken_file_is_reported_in_one_sentence(tmp_path, text, why):
    file = tmp_path / "broken.toml"
    if text is not None:
        file.write_bytes(text)
    with pytest.raises(ValueError, match=why) as told:
        from_values(SDXL_LORA, read_toml(file))
    assert "\n" not in str(told.value)


def test_a_failed_write_leaves_the_old_file(tmp_path):
    file = tmp_path / "a.toml"
    file.write_text("old = 1\n", encoding="utf-8")
    with pytest.raises(ValueError, match="object"):
        write_toml(file, {"new": object()})
    assert file.read_text(encoding="utf-8") == "old = 1\n"
    assert list(tmp_path.iterdir()) == [file]


def test_groups_are_typed_and_a_typo_is_an_error():
    opened = settings(network_dim=8)
    assert opened[NetworkOptions].network_dim == 8
    assert opened[CompileOptions].compile_mode == "default"
    with pytest.raises(ValueError, match="unknown option: nework_dim"):
        Settings(SDXL_LORA, {"nework_dim": 8})


def test_an_unavailable_method_is_named():
    assert script_for("sdxl", "lora") is SDXL_LORA
    assert script_for("flux", "lora") is FLUX_LORA
    with pytest.raises(ValueError, match=r"there is no textual inversion for FLUX\.1 yet"):
        script_for("flux", "textual_inversion")


PATHS = """
pretrained_model_name_or_path vae tokenizer_cache_dir train_data_dir reg_data_dir dataset_config in_json
conditioning_data_dir resume output_dir sample_prompts sample_model metadata_thumbnail logging_dir log_tracker_config
console_log_file run_dir slurm_template network_weights base_weights training_adapter weights clip_l t5xxl ae
controlnet_model_name_or_path
"""


def test_every_path_may_start_with_the_home_folder_and_is_written_as_given(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("USERPROFILE", "/home/me")  # of Windows
    read = from_values(FLUX_LORA, {**dict.fromkeys(PATHS.split(), "~/x"), "base_weights": ["~/a", "b~/c"]})
    assert {o.name for o in read.options.values() if o.path} == set(PATHS.split())
    assert read[FluxModelOptions].ae == os.path.expanduser("~/x") != "~/x"
    assert read[NetworkOptions].base_weights == [os.path.expanduser("~/a"), "b~/c"]
    assert read.saved() == {
        **FLUX_LORA.identity,
        **dict.fromkeys(PATHS.split(), "~/x"),
        "base_weights": ["~/a", "b~/c"],
    }
    assert from_values(FLUX_LORA, {"base_weights": [True], "vae": True}).wrong_values()


def test_split_mode_of_flux_becomes_swapped_blocks() -> None:
    for given, swapped in (({}, 18), ({"blocks_to_swap": 4}, 4)):
        read = from_values(FLUX_LORA, {"pretrained_model_name_or_path": "x", "split_mode": True, **given})
        assert read[MemoryOptions].blocks_to_swap == swapped
        assert any(str(remark).startswith("split_mode: ") for remark in read.remarks)


def test_a_saved_file_names_its_family_and_method():
    saved = from_values(FLUX_LORA, START).saved()
    assert (saved["family"], saved["method"]) == ("flux", "lora")
    assert from_values(FLUX_LORA, saved).saved() == saved


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("family", "flux", "family: these settings are for FLUX.1; run flux_train_network.py, or remove the line"),
        ("method", "full", "method: these settings are for full training; run sdxl_train.py, or remove the line"),
        ("family", "sd9", f"family: 'sd9' is not one of {', '.join(FAMILY_TITLES)}"),
    ],
)
def test_a_file_of_a_different_script_is_refused(key, value, told):
    opened = from_values(SDXL_LORA, {**START, key: value})
    assert told in map(str, opened.problems())
    assert key not in opened.unknown


@pytest.mark.parametrize("optimizer", ["Prodigy", "dadaptlion"])
@pytest.mark.parametrize(
    ("args", "named"),
    [
        (["loraplus_unet_lr_ratio=4"], ["loraplus_unet_lr_ratio"]),
        (["mid_lr_weight=1,0.25,1", "up_lr_weight=cosine"], ["mid_lr_weight", "up_lr_weight"]),
        (["loraplus_lr_ratio=1", "down_lr_weight=0,0,1,1,1,1,1,1,1"], []),
        (["loraplus_text_encoder_lr_ratio=8"], []),
    ],
)
def test_an_optimizer_of_one_rate_names_the_network_args_that_make_several(optimizer, args, named):
    values = {"optimizer_type": optimizer, "learning_rate": 1, "network_args": args, "network_train_unet_only": True}
    told = [str(problem) for problem in settings(**values).problems()]
    assert [line.split(" gives ")[0] for line in told] == [f"network_args: {key}" for key in named]
    assert settings(**{**values, "optimizer_type": "Lion"}).problems() == []


@pytest.mark.parametrize(
    ("script", "values", "named"),
    [
        (SDXL_LORA, {"unet_lr": 0.5, "text_encoder_lr": [0.25]}, "text_encoder_lr"),
        (SDXL_LORA, {"unet_lr": 2}, "unet_lr"),
        (SDXL_LORA, {"text_encoder_lr": [1, 0.5]}, "text_encoder_lr"),
        (SDXL_LORA, {"unet_lr": 2, "network_train_unet_only": True}, ""),
        (SDXL_LORA, {"unet_lr": 0.5, "text_encoder_lr": [0.5, 0]}, ""),
        (SDXL_LORA, {"text_encoder_lr": [0.5], "network_train_text_encoder_only": True}, ""),
        (FLUX_LORA, {"text_encoder_lr": [0.5]}, "text_encoder_lr"),
        (FLUX_LORA, {"text_encoder_lr": [1, 0.5]}, ""),  # T5 is not trained
        (FLUX_LORA, {"network_args": ["loraplus_text_encoder_lr_ratio=4"]}, "network_args"),
        (script_for("sdxl", "full"), {"learning_rate_te2": 0.1, "train_text_encoder": True}, "learning_rate_te2"),
        (script_for("sdxl", "full"), {"learning_rate_te2": 0.1}, ""),
    ],
)
def test_an_optimizer_of_one_rate_names_the_option_that_sets_another(script, values, named):
    start = {**START, "optimizer_type": "Prodigy", "learning_rate": 1, **values}
    problems = [each for each in from_values(script, start).problems() if "Prodigy uses a single one" in each.text]
    assert [each.names for each in problems] == [(named,)] * bool(named)
    adaptive = from_values(script, {**start, "optimizer_type": "AdamW"}).problems()
    assert not [each for each in adaptive if "learning rates" in each.text]


def test_an_optimizer_of_one_rate_names_block_lr_and_reg_lrs_too():
    full = {**START, "optimizer_type": "Prodigy", "block_lr": ",".join(["1"] * 22 + ["0.5"])}
    (problem,) = from_values(script_for("sdxl", "full"), full).problems()
    assert str(problem).startswith("block_lr: gives blocks different learning rates, but Prodigy uses a single one")
    flux = {**START, "optimizer_type": "Prodigy", "network_args": ["network_reg_lrs=double_blocks=0.5"]}
    (problem,) = (each for each in from_values(FLUX_LORA, flux).problems() if each.names == ("network_args",))
    assert problem.text.startswith("network_reg_lrs gives")


def test_steps_next_to_epochs_are_reported_as_without_effect():
    assert remarks(max_train_steps=40, max_train_epochs=3) == [
        "max_train_steps: has no effect with max_train_epochs = 3; remove one of them"
    ]
    assert remarks(max_train_steps=40) == remarks(max_train_epochs=3) == []
