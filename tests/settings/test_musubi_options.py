"""Commands of musubi-tuner run here: each of its options is known, and has its effect or is reported as without
effect."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import sd_scripts
from sd_scripts.data.plan.blueprint import read_blueprint
from sd_scripts.settings.catalog import script_for
from sd_scripts.settings.command_line import given_flags
from sd_scripts.settings.compat.musubi import MUSUBI, MusubiOptions
from sd_scripts.settings.compat.musubi_dataset import with_subsets
from sd_scripts.settings.dataset_schema import problems
from sd_scripts.settings.family_options import each_option
from sd_scripts.settings.generate_settings import read_command_line as read_generate_flags
from sd_scripts.settings.reading import from_values
from tests.support.data import make_folder
from tests.support.scripts import FLUX_LORA, QWEN_IMAGE_FULL, QWEN_IMAGE_LORA

GENERATE = json.loads((Path(__file__).parents[1] / "reference/musubi_generate.json").read_text())
NAMES = json.loads((Path(__file__).parents[1] / "reference/qwen_image.json").read_text())["musubi_options"]


def read(**values: Any) -> tuple[dict[str, Any], list[str]]:
    settings = from_values(QWEN_IMAGE_LORA, {"timestep_sampling": "qwen_shift", "learning_rate": 1e-4, **values})
    changed = settings.changed()
    for name in ("timestep_sampling", "learning_rate"):
        del changed[name]
    return changed, [str(remark) for remark in settings.remarks]


def test_every_option_of_musubi_scripts_is_a_flag() -> None:
    def unknown(script: Any) -> set[str]:
        words = [word for name in NAMES for word in (f"--{name}", "1")]
        return {n for p in given_flags(script, words).problems if "unknown" in p.text for n in p.names}

    both = unknown(QWEN_IMAGE_LORA) & unknown(QWEN_IMAGE_FULL)
    assert both == set()
    assert {o.name for o in each_option(MusubiOptions)} == set(MUSUBI)


def test_musubi_names_map_to_ours() -> None:
    values, remarks = read(dit="m.safetensors", disable_numpy_memmap=True, gradient_checkpointing=True, sdpa=True)
    assert values == {
        "pretrained_model_name_or_path": "m.safetensors",
        "disable_mmap_load_safetensors": True,
        "gradient_checkpointing": True,
        "cache_latents_to_disk": True,
        "cache_text_encoder_outputs_to_disk": True,
        "network_train_unet_only": True,
    }
    assert remarks == [
        "dit: is called pretrained_model_name_or_path here",
        "disable_numpy_memmap: is called disable_mmap_load_safetensors here",
        "dit: turns on what musubi-tuner always does: cache_latents_to_disk, cache_text_encoder_outputs_to_disk "
        "and network_train_unet_only",
    ]


def test_musubi_commands_train_only_the_transformer_from_caches_by_default() -> None:
    for name in ("cache_latents", "cache_latents_to_disk"):
        values, _ = read(dit="m.safetensors", **{name: False})
        assert "cache_latents_to_disk" not in values
        assert values["cache_text_encoder_outputs_to_disk"]
    values = from_values(QWEN_IMAGE_LORA, {"network_train_unet_only": False}, {"dit": "m"}).changed()
    assert "network_train_unet_only" not in values
    kontext = script_for("flux_kontext", "lora")
    assert from_values(kontext, {"dit": "m"}).changed()["model_prediction_type"] == "raw"
    assert "network_train_unet_only" not in from_values(QWEN_IMAGE_FULL, {"dit": "m"}).changed()
    assert from_values(QWEN_IMAGE_FULL, {"dit": "m"}).unknown == {}
    assert read(pretrained_model_name_or_path="m") == ({"pretrained_model_name_or_path": "m"}, [])


@pytest.mark.parametrize("family", ["qwen_image", "flux_kontext"])
@pytest.mark.parametrize("what", ["latents", "text_encoder_outputs"])
def test_musubi_caching_scripts_report_that_nothing_needs_to_be_done(family: str, what: str) -> None:
    script = Path(sd_scripts.__file__).parent / "aliases" / f"{family}_cache_{what}.py"
    command = [sys.executable, str(script), "--vae", "v.safetensors", "--dataset_config", "d.toml"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"{script.name}: nothing to do here. {family}_train_network.py caches latents and")


def test_flags_that_are_always_on_are_reported_or_ignored() -> None:
    assert read(fp8_base=True, fp8_scaled=True, fp8_vl=True, edit=False) == ({"fp8_base": True}, [])
    assert read(split_attn=True, fp8_scaled=True)[1] == [
        "fp8_scaled: has no effect without fp8_base",
        "split_attn: has no effect: attention is always PyTorch's scaled dot-product attention",
    ]


@pytest.mark.parametrize(
    ("given", "version"),
    [({"edit": True}, "edit"), ({"edit_plus": True}, "edit-2509"), ({"model_version": "layered"}, "layered")],
)
def test_other_models_are_refused(given: dict[str, Any], version: str) -> None:
    told = [str(problem) for problem in from_values(QWEN_IMAGE_LORA, given).problems()]
    why = "is not supported; choose a Qwen-Image file and set original"
    if version.startswith("edit"):
        why = "needs the scripts of Qwen-Image-Edit; set original, or use those"
    assert f"model_version: {version} {why}" in told


def test_choices_of_a_different_family_are_refused() -> None:
    for script, choice in ((QWEN_IMAGE_LORA, "flux_shift"), (FLUX_LORA, "qwen_shift")):
        (problem,) = from_values(script, {"timestep_sampling": choice}).wrong_values()
        assert problem.startswith(f"timestep_sampling: '{choice}' is not one of sigma, uniform, sigmoid, shift, ")


def test_musubi_datasets_are_read(tmp_path: Path) -> None:
    make_folder(tmp_path / "cats", [(64, 64)] * 2)
    file = tmp_path / "data.toml"
    file.write_text(
        "[general]\nresolution = [960, 544]\ncaption_extension = '.txt'\nbatch_size = 2\nenable_bucket = true\n"
        f"[[datasets]]\nimage_directory = '{(tmp_path / 'cats').as_posix()}'\ncache_directory = 'x'\nnum_repeats = 3\n"
    )
    warnings: list[str] = []
    blueprint = read_blueprint(from_values(QWEN_IMAGE_LORA, {"dataset_config": str(file)}), warnings.append)
    (dataset,) = blueprint.datasets
    (subset,) = dataset.subsets
    assert (dataset.batch_size, dataset.buckets.resolution, subset.num_repeats) == (2, (960, 544), 3)
    assert (subset.image_dir, subset.caption_extension) == ((tmp_path / "cats").as_posix(), ".txt")
    assert warnings == [
        "dataset_config: datasets[0].cache_directory (line 8) has no effect: caches are stored next to the images"
    ]


def test_musubi_datasets_for_other_models_are_reported() -> None:
    config = {"datasets": [{"subsets": [], "multiple_target": True}]}
    assert problems(config, masked_loss=False) == [
        "datasets[0].multiple_target is not supported: no model here is trained with several targets",
    ]


def test_musubi_datasets_of_clips_become_subsets() -> None:
    """Without target_frames musubi-tuner trains single frames, and from folders it takes clips alone."""
    clips = {"video_directory": "a", "source_fps": 30.0, "control_directory": "c", "cache_directory": "d"}
    listed = {"video_jsonl_file": "a.jsonl", "frame_extraction": "full"}
    config = with_subsets({"general": {"resolution": [960, 544]}, "datasets": [clips, listed]})
    assert config["datasets"] == [
        {
            **{"source_fps": 30.0, "cache_directory": "d", "target_frames": [1]},
            "subsets": [{"image_dir": "a", "control_directory": "c", "media": "clips"}],
        },
        {"frame_extraction": "full", "subsets": [{"metadata_file": "a.jsonl"}]},
    ]
    assert not problems(config, masked_loss=False)


def read_generate(family: str, *flags: str) -> tuple[dict[str, Any], list[str], list[str]]:
    """Values, remarks and problems of a command line that generates."""
    settings, problems = read_generate_flags(family, ["--prompt", "a", *flags])
    changed = {name: value for name, value in settings.changed().items() if name != "prompt"}
    return changed, [str(remark) for remark in settings.remarks], [str(problem) for problem in problems]


@pytest.mark.parametrize("family", GENERATE)
def test_every_flag_of_musubi_generating_scripts_is_known(family: str) -> None:
    for name, kind in GENERATE[family].items():
        words = {"bool": [], "str": ["1"], "int": ["1"], "float": ["1"]}[kind]
        _, problems = read_generate_flags(family, [f"--{name}", *words])
        assert not [problem for problem in problems if "unknown" in problem.text], name


def test_musubi_generating_commands_work_here() -> None:
    flags = "--dit d --vae v --text_encoder1 t --text_encoder2 c --image_size 512 768 --infer_steps 25 --save_path out"
    flags += " --seed 3 --embedded_cfg_scale 2 --fp8_scaled --fp8_t5 --lora_weight l --attn_mode flash"
    flags += " --control_image_path a.png --no_resize_control --output_type images --from_file p.txt"
    assert read_generate("flux_kontext", *flags.split()) == (
        {
            **{"pretrained_model_name_or_path": "d", "ae": "v", "t5xxl": "t", "clip_l": "c"},
            **{"height": 512, "width": 768, "steps": 25, "image_dir": "out", "image_seed": 3, "guidance": 2.0},
            **{"quantize_base": "fp8", "quantize_text_encoders": "fp8", "lora_weights": ["l"]},
            **{"control_image_path": ["a.png"], "no_resize_control": True, "prompt_file": "p.txt"},
        },
        ["attn_mode: has no effect: attention is always PyTorch's scaled dot-product attention"],
        [],
    )
    assert read_generate("qwen_image", "--guidance_scale", "4.5")[0] == {"scale": 4.5}
    turbo = "--mu 1.15 --num-images 2 --steps 8 --guidance_scale 1"
    assert read_generate("krea2", *turbo.split()) == (
        {"shift": 3.15819, "images_per_prompt": 2, "steps": 8, "scale": 1.0},
        [],
        [],
    )
    assert read_generate("krea2", "--mu", "a")[2] == ["mu: needs one number"]
    assert read_generate("flux", "--guidance_scale", "4.5")[0] == {"guidance": 4.5}
    assert read_generate("flux_kontext", "--resize_control_to_official_size")[0] == {"control_resolution": "1024"}


def test_precisions_and_strengths_are_read_as_in_sd_scripts() -> None:
    flags = ("--dtype", "bfloat16", "--lora_weights", "a.safetensors;0.5", "b;c", "--merge_lora_weights")
    assert read_generate("flux", *flags, "--cfg_scale", "2")[0] == {
        **{"lora_weights": ["a.safetensors", "b;c"], "lora_multiplier": [0.5, 1.0], "scale": 2.0},
    }
    assert read_generate("sdxl", "--dtype", "float16")[0] == {"dtype": "fp16"}


def test_musubi_flags_that_would_change_images_are_refused() -> None:
    assert read_generate("flux_kontext", "--flow_shift", "3", "--output_type", "latent", "--image_size", "64")[2] == [
        "flow_shift: is not supported, since the shift follows from the size of the image; leave it out",
        "output_type: only images and clips are written; leave it out",
        "image_size: needs two numbers, height and width",
    ]
