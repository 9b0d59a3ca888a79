"""The options of the image tools, and which of them a task reads."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from sd_scripts.formats.documents import read_toml
from sd_scripts.formats.images.chosen_images import common_folder
from sd_scripts.formats.images.folder_names import MASKS, numbered
from sd_scripts.formats.images.image_folders import IMAGE_SUFFIXES, UNREAD_IMAGES
from sd_scripts.options.images.known_models import IMAGE_MODELS
from sd_scripts.options.images.tools import (
    CopyOptions,
    CropOptions,
    ImageModelOptions,
    ImageToolOptions,
    MaskOptions,
    SizeOptions,
)
from sd_scripts.settings.family_options import each_option
from sd_scripts.settings.settings import Groups

IMAGE_TOOLS: Groups = (ImageToolOptions, CopyOptions, CropOptions, SizeOptions, MaskOptions, ImageModelOptions)
OPTIONS = {o.name: o for group in IMAGE_TOOLS for o in each_option(group)}
SOURCES = IMAGE_SUFFIXES | UNREAD_IMAGES
"""Extensions of the images that the tools read."""
ENDINGS = {
    "convert": "converted",
    "bars": "trimmed",
    "crop": "cropped",
    "resize": "resized",
    "upscale": "upscaled",
    "mask": "masked",
}
"""Task -> how the default name of the folder of copies ends."""


def read_settings(file: Path) -> dict[str, Any]:
    """Return the values of options from a TOML file. Raises ValueError, one sentence, for unknown names."""
    document = read_toml(file)
    if unknown := sorted(document.keys() - OPTIONS.keys()):
        raise ValueError(f"{unknown[0]}: unknown option of the image tools; correct or remove it")
    return document


MODEL_OF: Mapping[tuple[str, str], str] = MappingProxyType(
    {
        ("crop", "faces"): "faces",
        ("crop", "text_free"): "text",
        ("mask", "background"): "background",
        ("mask", "faces"): "faces",
    }
)
"""Task, and what it crops to or makes masks from -> what its model finds."""


def model_needed(values: Mapping[str, Any]) -> str:
    """Return the subject of a task's model, faces, text or background; empty if the task needs no model."""
    return MODEL_OF.get((values["task"], values["crop_to"] if values["task"] == "crop" else values["mask_from"]), "")


def default_model(finds: str) -> str:
    """Return the repository of the model that finds this, unless another is named."""
    return next(model.repo for model in IMAGE_MODELS if model.method == finds)


def root_of(train_data_dir: str | None, images: Sequence[Path]) -> Path:
    """Return the folder below which copies keep their places: of a folder like 10_cat the one above it."""
    folder = Path(train_data_dir).absolute() if train_data_dir else common_folder(images)
    if train_data_dir and any(folder not in image.parents for image in images):
        folder = common_folder(images)
    return folder.parent if numbered(folder.name) else folder


def default_output(root: Path, task: str, save_as: str) -> Path:
    """Return a folder that does not exist: next to `root`, and for masks the one in it where the page looks."""
    are_masks = task == "mask" and save_as == "folder"
    if are_masks and not os.path.lexists(root / MASKS):
        return root / MASKS
    if not root.name:
        raise ValueError("output_dir: not set; choose a folder for the copies")
    name = f"{root.name}-{MASKS if are_masks else ENDINGS[task]}"
    number, output = 1, root.with_name(name)
    while os.path.lexists(output):
        number += 1
        output = root.with_name(f"{name}-{number}")
    return output
