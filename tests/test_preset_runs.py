"""Every preset trains: a step or two on the miniature, with all that it says about how to train."""

from pathlib import Path
from typing import Any

import pytest
from training_help import images, run

from kohya_gui.tabs import TABS
from sd_scripts.formats.toml_files import read_toml, write_toml

FOLDER = Path(__file__).parent.parent / "presets"
PRESETS = sorted(FOLDER.glob("*/*.toml"))
SMALL: dict[str, Any] = {
    "max_train_steps": 2,
    "max_train_epochs": 0,
    "resolution": "64,64",
    "min_bucket_reso": 64,
    "max_bucket_reso": 128,
    "max_data_loader_n_workers": 0,
    "output_name": "tried",
}
"""What a miniature on a CPU asks for in place of what the preset says."""


pytestmark = pytest.mark.usefixtures("no_graphs")


@pytest.mark.parametrize("preset", PRESETS, ids=lambda preset: f"{preset.parent.name}/{preset.stem}")
def test_a_preset_trains(preset: Path, miniature: Any, flux_miniature: Any, tmp_path: Path) -> None:
    model = flux_miniature if preset.stem.startswith("flux_") else miniature
    said = read_toml(preset)
    values = {**said, **SMALL, **{option: str(path) for option, path in model.files.items()}}
    values |= {
        "train_data_dir": str(images(tmp_path / "images")),
        "output_dir": str(tmp_path),
        "run_dir": str(tmp_path / "run"),
    }
    if said.get("compile"):
        values |= {"compile_backend": "aot_eager", "compile_mode": "default"}
    if "blocks_to_swap" in said:
        values["blocks_to_swap"] = min(said["blocks_to_swap"], 2)
    if values.get("mixed_precision") == "fp16":
        values["mixed_precision"] = "bf16"
    write_toml(tmp_path / "preset.toml", values)
    tried = run(
        ["--config_file", str(tmp_path / "preset.toml")], tmp_path, model.family, TABS[preset.parent.name].method
    )
    assert tried.status == 0, tried.told("failed")
    assert tried.steps == [1, 2]
    assert (tmp_path / "tried.safetensors").stat().st_size > 0
