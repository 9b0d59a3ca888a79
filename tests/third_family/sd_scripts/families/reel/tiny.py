"""The miniature, which is as large as the family gets."""

from pathlib import Path

import torch
from sd_scripts.families.reel.family import CARD, LAYOUTS

from sd_scripts.families.common.layouts import whole_file
from sd_scripts.library.files.safetensors_io import save_model
from sd_scripts.testing import demo_images
from sd_scripts.testing.miniature import Miniature


def write_miniature(folder: Path) -> Miniature:
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    states = {name: layout.make({}).state_dict() for name, layout in LAYOUTS.items()}
    file = folder / "miniature_reel.safetensors"
    save_model(file, whole_file(CARD, LAYOUTS, states), {})
    return Miniature(
        family="reel",
        files={"pretrained_model_name_or_path": file},
        data_dir=demo_images.write_images(folder / "images"),
    )
