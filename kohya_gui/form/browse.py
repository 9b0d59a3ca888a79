"""Listings for the page's file dialog: only allowed folders, and only files that fit the field."""

import os
import string
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.routing import Route

from kohya_gui.access.allowed_paths import AllowedPaths
from kohya_gui.server.json_routes import get
from kohya_gui.tools.lora_tool_list import LORA_TOOLS
from sd_scripts.families.cards.registry import component_options
from sd_scripts.formats.clips.media_types import CLIP_SUFFIXES
from sd_scripts.formats.images.image_folders import IMAGE_SUFFIXES, each_image, is_readable

MODELS = (".safetensors", ".sft", ".ckpt", ".pt", ".pth", ".bin")
SETTINGS = (".toml", ".json")
LORA_TOOL_INPUTS = {name for tool in LORA_TOOLS for name in tool.inputs}
ALSO_FOLDERS = tuple(dict.fromkeys(("pretrained_model_name_or_path", "vae", "sample_model", *component_options())))
"""Fields that also take the folder of a diffusers model."""
ENDINGS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys((*ALSO_FOLDERS, "network_weights", "base_weights", "training_adapter", "lora_weights"), MODELS),
    **dict.fromkeys(LORA_TOOL_INPUTS, MODELS),
    **dict.fromkeys(("file", "new-name", "dataset_config", "log_tracker_config"), SETTINGS),
    "in_json": (".json", ".jsonl"),
    **dict.fromkeys(("sample_prompts", "prompt_file"), (".txt", ".toml", ".json")),
    **dict.fromkeys(
        ("metadata_thumbnail", "control_image_path", "image_path", "end_image_path"), tuple(IMAGE_SUFFIXES)
    ),
    "control_path": tuple(CLIP_SUFFIXES),
    "console_log_file": (".log", ".txt"),
    "compile_cache": (".zip",),
}
"""File extensions a field accepts; the other fields take a folder."""
MOST = 2000
"""Most names in a listing."""


def routes(allowed_paths: AllowedPaths) -> list[Route]:
    """Return the routes, for `launch(app_kwargs={"routes": ...})`."""

    def list_folder(request: Request) -> dict[str, Any]:
        return listing(request.query_params.get("path", ""), request.query_params.get("field", ""), allowed_paths)

    return [get("files", list_folder)]


def listing(path: str, field: str, allowed_paths: AllowedPaths) -> dict[str, Any]:
    """List the folder at or around a path: subfolders and files that fit the field. Raises ValueError, one sentence."""
    start = path.strip().strip('"') or first_folder(allowed_paths)
    folder = _nearest(allowed_paths.check("folder", start), allowed_paths)
    endings = ENDINGS.get(field, ())
    folders = []
    files = []
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name.lower())
    except OSError as error:
        raise ValueError(f"'{folder}' cannot be listed: {error.strerror}") from error
    for entry in entries:
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            folders.append(entry.name)
        elif entry.name.lower().endswith(endings or ("\0",)):
            files.append(entry.name)
    return {
        "folder": str(folder),
        "parent": str(folder.parent) if folder.parent != folder and allowed_paths.holds(folder.parent) else None,
        "separator": os.sep,
        "folders": folders[:MOST],
        "files": files[:MOST],
        "takes_folder": not endings or field in ALSO_FOLDERS,
        "images": 0 if endings else sum(map(is_readable, each_image(folder))),
        "starts": [str(start) for start in starts(allowed_paths)],
    }


def starts(allowed_paths: AllowedPaths) -> list[Path]:
    """Return the folders offered as starting points."""
    if allowed_paths.allowed is not None:
        return [folder for folder in allowed_paths.allowed if folder.is_dir()]
    drives = [Path(f"{letter}:\\") for letter in string.ascii_uppercase] if os.name == "nt" else [Path("/")]
    return list(dict.fromkeys([Path.home(), Path.cwd(), *(drive for drive in drives if drive.exists())]))


def first_folder(allowed_paths: AllowedPaths) -> Path:
    folders = starts(allowed_paths)
    if not folders:
        raise ValueError("path: none of the allowed folders exists; create one, or start the GUI with --allowed_path")
    return folders[0]


def _nearest(start: Path, allowed_paths: AllowedPaths) -> Path:
    """Return the folder itself, or the first existing one above it."""
    for folder in (start, *start.parents):
        if folder.is_dir() and allowed_paths.holds(folder):
            return folder
    return first_folder(allowed_paths)
