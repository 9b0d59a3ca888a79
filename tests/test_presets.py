"""Presets load, say nothing needless and leave only the user's own paths to fill in."""

from pathlib import Path

import pytest

from sd_scripts.options.catalog import SDXL_LORA
from sd_scripts.options.compile import CompileOptions
from sd_scripts.options.reading import from_file
from sd_scripts.options.toml_files import read_toml

PRESETS = sorted((Path(__file__).parent.parent / "presets" / "lora").glob("*.toml"))
PATHS = {"pretrained_model_name_or_path", "train_data_dir", "output_dir"}


@pytest.mark.parametrize("preset", PRESETS, ids=lambda preset: preset.stem)
def test_a_preset_lacks_only_the_paths(preset):
    settings = from_file(SDXL_LORA, preset)
    assert {problem.split(":")[0] for problem in settings.problems()} == PATHS
    assert settings.remarks == []


@pytest.mark.parametrize("preset", PRESETS, ids=lambda preset: preset.stem)
def test_a_preset_says_only_what_differs_from_the_defaults(preset):
    said = read_toml(preset)
    assert said == from_file(SDXL_LORA, preset).changed()
    assert list(said) == sorted(said)
    assert preset.read_text(encoding="utf-8").startswith("# "), "it tells for whom it is"


def test_a_compiled_preset_compiles():
    compiled = [preset for preset in PRESETS if "compiled" in preset.stem]
    assert len(compiled) == 2
    assert all(from_file(SDXL_LORA, preset)[CompileOptions].compile for preset in compiled)
