"""The image tools on the page: their form, hints and job. No Gradio, no torch."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from starlette.routing import Route

from kohya_gui.access.allowed_paths import AllowedPaths
from kohya_gui.form.recognise import Recognised, glance
from kohya_gui.tools.job_form import MOST_IMAGES, ImagesJob, JobForm, as_hint, hint_of_model, in_cache
from kohya_gui.tools.job_routes import job_routes
from sd_scripts.families.cards.model_file import is_hub_id
from sd_scripts.formats.images.folder_names import MASKS
from sd_scripts.formats.images.image_folders import UNREAD_IMAGES, each_image
from sd_scripts.formats.words import counted
from sd_scripts.options.images.known_models import IMAGE_MODELS, MODEL_FILES
from sd_scripts.options.images.tools import CropOptions, ImageModelOptions, MaskOptions, SizeOptions
from sd_scripts.runs.queue import RunQueue
from sd_scripts.settings.family_options import each_option
from sd_scripts.settings.tools.image_tools import (
    IMAGE_TOOLS,
    SOURCES,
    default_model,
    default_output,
    model_needed,
    root_of,
)

FORM = JobForm(
    name="images",
    prefix="images",
    module="sd_scripts.tools.images",
    groups=IMAGE_TOOLS,
    choice="task",
    of_choices={
        **dict.fromkeys((o.name for o in each_option(CropOptions)), ("crop",)),
        **dict.fromkeys(("margin", "min_face"), ("crop", "mask")),
        **dict.fromkeys((o.name for o in each_option(SizeOptions)), ("resize", "upscale")),
        "enlarge": ("resize",),
        **dict.fromkeys(("upscale_model", "tile"), ("upscale",)),
        **dict.fromkeys((o.name for o in each_option(MaskOptions)), ("mask",)),
        **dict.fromkeys((o.name for o in each_option(ImageModelOptions) if o.name != "device"), ("crop", "mask")),
        "frames": ("convert",),
    },
    hidden=("image_list", "try_images", "device"),
    first=(
        *("train_data_dir", "output_dir", "crop_to", "faces", "margin", "square", "min_kept", "resize_by", "size"),
        *("enlarge", "upscale_model", "mask_from", "colour", "tolerance", "invert", "grow", "feather", "save_as"),
        *("model", "download", "image_format", "frames"),
    ),
    paths=("train_data_dir", "output_dir", "conditioning_data_dir", "model_dir", "upscale_model"),
    unread=("image_list",),
    images=SOURCES,
    placeholders={"output_dir": "next to the image folder", "conditioning_data_dir": "masks in the image folder"},
)


def routes(queue: RunQueue, allowed_paths: AllowedPaths) -> list[Route]:
    """Return the routes, for `launch(app_kwargs={"routes": ...})`."""
    return job_routes(EditJob(FORM, queue), allowed_paths, described=described, hints=hints, problems=problems)


def described() -> dict[str, Any]:
    """Return the fields, and the models that are known."""
    return {"fields": FORM.fields(), "models": [vars(model) for model in IMAGE_MODELS]}


def problems(values: Mapping[str, Any], images: Sequence[str], allowed_paths: AllowedPaths) -> list[str]:
    """Return a sentence for each mistake; files outside the allowed folders are not looked at."""
    if found := FORM.problems(values, images, allowed_paths, _model_path(values)):
        return found
    if values["task"] == "upscale" and not values["upscale_model"]:
        return ["upscale_model: not set; choose the file of an upscaling model"]
    return _problems_of_places(values, images, allowed_paths) if allowed_paths.allowed is not None else []


def _problems_of_places(values: Mapping[str, Any], images: Sequence[str], allowed_paths: AllowedPaths) -> list[str]:
    """Return why the job would read or write outside the allowed folders, as the command chooses its places."""
    paths = [Path(image).absolute() for image in images]
    root = root_of(values["train_data_dir"], paths)
    if not values["output_dir"] and not allowed_paths.holds(default_output(root, values["task"], values["save_as"])):
        return ["output_dir: the folder next to the images is outside the allowed folders; choose a different one"]
    masks = Path(values["conditioning_data_dir"] or root / MASKS)
    folders = [path.parent for path in paths] or [Path(values["train_data_dir"]).absolute()]
    for place in dict.fromkeys((masks, *folders)):
        for link in (place, *_links(place)):
            if os.path.lexists(link) and not allowed_paths.holds(link):
                name = link.name[:100]
                return [f"train_data_dir: {name!r} is a link that leads outside the allowed folders; remove it"]
    return []


def _links(folder: Path) -> Iterator[Path]:
    """Yield the links below a folder: what they lead to would be copied."""
    for place, folders, files in os.walk(folder):
        yield from (path for name in (*folders, *files) if (path := Path(place, name)).is_symlink())


def _model_path(values: Mapping[str, Any]) -> str:
    """Return the path of the model; empty if it is named by its repository, or none is needed."""
    name = str(values["model"] or "")
    return "" if not name or not model_needed(values) or (is_hub_id(name) and not Path(name).exists()) else name


def hints(values: Mapping[str, Any], images: Sequence[str], allowed_paths: AllowedPaths) -> dict[str, Any]:
    """Return a hint for the folder and the model, whether the model has to be downloaded, and what it finds."""
    folder = str(values["train_data_dir"] or "")
    shown = Recognised("")
    if images:
        shown = Recognised(f"{counted(len(images), 'image')} chosen", good=True)
    elif folder and (problem := allowed_paths.problem("train_data_dir", folder)):
        shown = Recognised(problem, good=False)
    elif folder:
        shown = glance(folder, lambda path: _images(path, recursive=bool(values["recursive"])))
    model, missing = Recognised(""), False
    if finds := model_needed(values):
        name = str(values["model"] or default_model(finds))
        is_here = in_cache(name, MODEL_FILES[finds], values["model_dir"])
        model, missing = hint_of_model(name, _model_path(values), is_here, IMAGE_MODELS, allowed_paths)
    return {"train_data_dir": as_hint(shown), "model": as_hint(model), "missing": missing, "finds": finds}


def _images(folder: Path, *, recursive: bool) -> Recognised:
    """Count the images of a folder, and those that training does not read as they are."""
    if not folder.is_dir():
        return Recognised("Folder not found", good=False)
    total = odd = 0
    for image in each_image(folder, recursive=recursive, suffixes=SOURCES):
        total += 1
        odd += image.suffix.lower() in UNREAD_IMAGES
        if total == MOST_IMAGES:
            break
    if not total:
        return Recognised("No images here", good=False)
    more = f", {odd} in formats that training does not read" if odd else ""
    return Recognised(f"{counted(total, 'image')}{more}", good=True)


class EditJob(ImagesJob):
    """The single job of the image tools in this GUI."""

    busy_sentence = "Images are already being edited: stop that job or wait for it to finish"

    def needs_gpu(self, values: Mapping[str, Any]) -> bool:
        return bool(values["task"] == "upscale")
