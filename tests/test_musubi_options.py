"""Commands of musubi-tuner run here: each of its options is known, and does what it did or is told to do nothing."""

import json
from pathlib import Path
from typing import Any

import pytest
from data_help import make_folder
from scripts_help import FLUX_LORA, QWEN_IMAGE_FULL, QWEN_IMAGE_LORA

from sd_scripts.data.blueprint import read_blueprint
from sd_scripts.options.command_line import given_flags
from sd_scripts.options.dataset_schema import problems
from sd_scripts.options.musubi import MUSUBI, MusubiOptions
from sd_scripts.options.reading import from_values
from sd_scripts.options.spec import each_option

NAMES = json.loads((Path(__file__).parent / "reference/qwen_image.json").read_text())["musubi_options"]


def read(**values: Any) -> tuple[dict[str, Any], list[str]]:
    settings = from_values(QWEN_IMAGE_LORA, {"timestep_sampling": "qwen_shift", "learning_rate": 1e-4, **values})
    changed = settings.changed()
    for name in ("timestep_sampling", "learning_rate"):
        del changed[name]
    return changed, [str(remark) for remark in settings.remarks]


def test_every_option_of_its_scripts_is_a_flag() -> None:
    def unknown(script: Any) -> set[str]:
        words = [word for name in NAMES for word in (f"--{name}", "1")]
        return {n for p in given_flags(script, words).problems if "unknown" in p.text for n in p.names}

    both = unknown(QWEN_IMAGE_LORA) & unknown(QWEN_IMAGE_FULL)
    assert both == set()
    assert {o.name for o in each_option(MusubiOptions)} == set(MUSUBI)


def test_its_names_stand_for_ours() -> None:
    values, remarks = read(dit="m.safetensors", disable_numpy_memmap=True, gradient_checkpointing=True, sdpa=True)
    assert values == {
        "pretrained_model_name_or_path": "m.safetensors",
        "disable_mmap_load_safetensors": True,
        "gradient_checkpointing": True,
    }
    assert remarks == [
        "dit: is called pretrained_model_name_or_path here",
        "disable_numpy_memmap: is called disable_mmap_load_safetensors here",
    ]


def test_what_is_always_so_here_is_told_or_needs_no_words() -> None:
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
        why = "is trained by the scripts of Qwen-Image-Edit; set original, or use those"
    assert f"model_version: {version} {why}" in told


def test_choices_of_another_family_are_refused() -> None:
    for script, choice in ((QWEN_IMAGE_LORA, "flux_shift"), (FLUX_LORA, "qwen_shift")):
        (problem,) = from_values(script, {"timestep_sampling": choice}).wrong_values()
        assert problem.startswith(f"timestep_sampling: '{choice}' is not one of sigma, uniform, sigmoid, shift, ")


def test_its_datasets_are_read(tmp_path: Path) -> None:
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
        "dataset_config: datasets[0].cache_directory (line 8) has no effect: caches lie beside the images"
    ]


def test_its_datasets_for_other_models_are_told() -> None:
    config = {"datasets": [{"video_directory": "a"}, {"subsets": [], "multiple_target": True}]}
    assert problems(config, masked_loss=False) == [
        "datasets[0].video_directory is not supported: no model here is trained on videos",
        "datasets[1].multiple_target is not supported: no model here is trained with several targets",
    ]
