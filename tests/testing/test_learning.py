"""A training that runs also learns: images of a miniature, before and after, show it."""

from pathlib import Path
from random import Random

import pytest

from benchmarks.learning import QUIET, success
from sd_scripts import demo
from sd_scripts.formats.toml_files import read_toml, write_toml
from sd_scripts.testing import trained
from sd_scripts.testing.shapes import zorb_scene
from tests.support.training import run

pytestmark = [pytest.mark.deep, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


def test_a_lora_teaches_a_base_model_a_word_for_a_new_shape(tmp_path: Path) -> None:
    """Before under 10 % of the images show it, after over 80 %."""
    config = demo.make(tmp_path / "demo", "flux")
    short = {**QUIET, "reg_data_dir": "", "max_train_steps": 300}
    values = {**read_toml(config), **short, "output_name": "zorb"}
    write_toml(config, {name: value for name, value in values.items() if value != ""})
    files = {option: config.with_name(trained.file_name("flux", option)) for option in trained.options_of("flux")}
    random = Random(9)
    scenes = [zorb_scene(random) for _ in range(10)]
    fast = ("--steps=8",)
    assert success("flux", files, scenes, tmp_path / "before", fast)["all"] < 0.1
    output = tmp_path / "demo" / "output"
    assert run(["--config_file", str(config)], output, "flux").status == 0
    after = success("flux", files, scenes, tmp_path / "after", (*fast, f"--lora_weights={output / 'zorb.safetensors'}"))
    assert after["all"] > 0.8
