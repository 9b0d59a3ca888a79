"""The training options of presets work: two steps on miniatures, with each option that any of them sets."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from kohya_gui.tabs import TABS
from sd_scripts.families.cards.registry import card_of, preset_family
from sd_scripts.formats.toml_files import read_toml, write_toml
from tests.support.miniatures import MINIATURES
from tests.support.training import images, run

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
"""Settings of a miniature on a CPU that replace the preset's."""


pytestmark = [
    pytest.mark.deep,
    pytest.mark.usefixtures("no_graphs"),
]


def name(preset: Path) -> str:
    return f"{preset.parent.name}/{preset.stem}"


@cache
def ways(preset: Path) -> set[tuple[str, object]]:
    """Return (option, value) of all that a preset sets; numbers count as one value. And which code trains it."""
    family = preset_family(preset.stem)
    script = f"{card_of(family).derived_from or family} {TABS[preset.parent.name].method}"
    return {("script", script)} | {
        (option, value if isinstance(value, bool | str) else str(value) if isinstance(value, list) else "a number")
        for option, value in read_toml(preset).items()
        if option not in SMALL
    }


SECONDS = {
    **{"sdxl": 3, "flux": 1, "flux_kontext": 1, "chroma": 1, "flux2": 2, "anima": 1, "krea2": 2, "z_image": 1},
    **{"qwen_image": 2, "qwen_image_edit": 2, "wan": 2, "wan_5b": 2, "hunyuan_video": 2, "framepack": 2},
}
"""Duration of a run of each family, relative to FLUX.1's."""


def cover() -> list[Path]:
    """Return presets that together set all that any sets, and train each family in each method: a sixth of them. The
    values of each preset are checked in test_presets.py; here, that all of them can be trained with."""
    left, chosen = set[tuple[str, object]]().union(*map(ways, PRESETS)), []
    while left:
        chosen.append(max(PRESETS, key=lambda preset: len(ways(preset) & left) / SECONDS[preset_family(preset.stem)]))
        left -= ways(chosen[-1])
    return chosen


@pytest.mark.parametrize("preset", cover(), ids=name)
def test_a_preset_trains(preset: Path, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    model = request.getfixturevalue(MINIATURES[preset_family(preset.stem)])
    said = read_toml(preset)
    values = {**said, **SMALL, **{option: str(path) for option, path in model.files.items()}}
    values |= {
        "train_data_dir": str(images(tmp_path / "images")),
        "output_dir": str(tmp_path),
        "run_dir": str(tmp_path / "run"),
    }
    if "control_directory" in values:
        values["control_directory"] = values["train_data_dir"]
    if said.get("compile"):
        # what compiled code computes, others test, and that the blocks of each family can be compiled
        values |= {"compile": model.family == "flux", "compile_backend": "eager", "compile_mode": "default"}
    if preset.parent.name == "textual_inversion":
        values |= {"token_string": "zwx", "caption_prefix": "zwx"}
    if "blocks_to_swap" in said:
        values["blocks_to_swap"] = min(said["blocks_to_swap"], 2)
    if values.get("mixed_precision") == "fp16":
        values["mixed_precision"] = "bf16"
    write_toml(tmp_path / "preset.toml", values)
    tried = run(
        ["--config_file", str(tmp_path / "preset.toml")], tmp_path, model.family, TABS[preset.parent.name].method
    )
    assert tried.status == 0, tried.events_of("failed")
    assert tried.steps == [1, 2]
    assert (tmp_path / "tried.safetensors").stat().st_size > 0
