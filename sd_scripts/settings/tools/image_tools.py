"""The options of the image tools, and which of them a task reads."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from sd_scripts.formats.documents import read_toml
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
