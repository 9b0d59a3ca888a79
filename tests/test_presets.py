"""Presets load, say nothing needless and leave only the user's own paths to fill in."""

from pathlib import Path

import pytest

from sd_scripts.options.catalog import Script, script_for
from sd_scripts.options.compile import CompileOptions
from sd_scripts.options.flux import RECOMMENDED
from sd_scripts.options.reading import from_file
from sd_scripts.options.toml_files import read_toml

PRESETS = sorted((Path(__file__).parent.parent / "presets" / "lora").glob("*.toml"))
FLUX = [preset for preset in PRESETS if preset.stem.startswith("flux_")]
PATHS = {"pretrained_model_name_or_path", "train_data_dir", "output_dir"}
PARTS = {"clip_l", "t5xxl", "ae"}


def script_of(preset: Path) -> Script:
    return script_for(preset.stem.partition("_")[0], "lora")


@pytest.mark.parametrize("preset", PRESETS, ids=lambda preset: preset.stem)
def test_a_preset_lacks_only_the_paths(preset):
    settings = from_file(script_of(preset), preset)
    assert {problem.split(":")[0] for problem in settings.problems()} - PARTS == PATHS
    assert settings.remarks == []


@pytest.mark.parametrize("preset", PRESETS, ids=lambda preset: preset.stem)
def test_a_preset_says_only_what_differs_from_the_defaults(preset):
    said = read_toml(preset)
    assert said == from_file(script_of(preset), preset).changed()
    assert list(said) == sorted(said)
    assert preset.read_text(encoding="utf-8").startswith("# "), "it tells for whom it is"


def test_a_compiled_preset_compiles():
    compiled = [preset for preset in PRESETS if "compiled" in preset.stem]
    assert len(compiled) == 3
    assert all(from_file(script_of(preset), preset)[CompileOptions].compile for preset in compiled)


@pytest.mark.parametrize("preset", FLUX, ids=lambda preset: preset.stem)
def test_flux_trains_at_the_recommended_timesteps(preset):
    assert read_toml(preset).items() >= RECOMMENDED.items()


def test_presets_for_little_memory_hold_less_on_the_gpu_the_smaller_the_card():
    swapped = [read_toml(preset).get("blocks_to_swap", 0) for preset in FLUX if "low_memory" in preset.stem]
    assert swapped == sorted(swapped, reverse=True)
    assert all(read_toml(preset)["fp8_base"] for preset in FLUX if "low_memory" in preset.stem)
