"""Captioning on the page: its fields, hints and job. No Gradio, no torch."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kohya_gui.access.allowed_paths import AllowedPaths
from kohya_gui.form.recognise import Recognised, glance
from kohya_gui.tools.job_form import MOST_IMAGES, ImagesJob, JobForm, as_hint, hint_of_model, in_cache
from sd_scripts.families.cards.model_file import is_hub_id
from sd_scripts.families.cards.registry import cards
from sd_scripts.formats.images.caption_files import find_captions
from sd_scripts.formats.images.folder_names import dotted, is_ending
from sd_scripts.formats.images.image_folders import IMAGE_SUFFIXES, each_image
from sd_scripts.formats.words import counted
from sd_scripts.options.captioning.known_models import KNOWN_MODELS, default_model
from sd_scripts.options.captioning.text import CaptionTextOptions, EndpointOptions, TaggerOptions
from sd_scripts.settings.compat.captioning import CAPTIONING
from sd_scripts.settings.family_options import each_option

HIDDEN = ("image_list", "try_images", "ask_api_key", "device")
"""Options without a control: the page sends lists of images itself, and tries by a button of its own."""
FIRST = (
    *("train_data_dir", "existing", "trigger", "family", "model", "download", "endpoint", "prompt", "form"),
    *("thresh", "character_threshold", "undesired_tags", "tag_order", "recursive", "overwrite_hand"),
)
"""Options that are shown before the others are unfolded."""
OF_METHODS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys((o.name for o in each_option(TaggerOptions)), ("tagger",)),
    **dict.fromkeys((o.name for o in each_option(EndpointOptions)), ("endpoint",)),
    **dict.fromkeys((o.name for o in each_option(CaptionTextOptions)), ("captioner", "endpoint")),
    **dict.fromkeys(("min_length", "num_beams", "top_p", "dtype", "load_in_8bit", "compile"), ("captioner",)),
    **dict.fromkeys(("prefix", "postfix"), ("tagger", "captioner", "endpoint")),
    **dict.fromkeys(("model_dir", "batch_size", "download"), ("tagger", "captioner")),
}
"""Option -> the methods for which it has an effect; all, if it is not listed."""
PATHS = ("train_data_dir", "model_dir")
FORM = JobForm(
    name="captions",
    prefix="caption",
    module="sd_scripts.tools.captioning",
    groups=CAPTIONING,
    choice="method",
    of_choices=OF_METHODS,
    hidden=HIDDEN,
    first=FIRST,
    paths=PATHS,
    unread=("image_list", "ask_api_key"),
    images=IMAGE_SUFFIXES,
    placeholders=dict.fromkeys(
        (o.name for o in each_option(TaggerOptions) if o.name.endswith("_threshold")), "as Threshold"
    ),
)
CLIP_READS = "clip_captions"


def described() -> dict[str, Any]:
    """Return the fields, the models that are known, and the families with the forms that they are trained with."""
    models = [vars(model) for model in KNOWN_MODELS]
    families = [[card.name, card.title, CLIP_READS in card.capabilities] for card in cards()]
    return {
        "fields": FORM.fields(),
        "models": models,
        "families": families,
    }


def problems(values: Mapping[str, Any], images: Sequence[str], allowed_paths: AllowedPaths) -> list[str]:
    """Return a sentence for each mistake; files outside the allowed folders are not looked at."""
    if found := FORM.problems(values, images, allowed_paths, _model_path(values)):
        return found
    if values["method"] == "endpoint":
        missing = {"endpoint": "enter the address of the server", "model": "enter the server's name for the model"}
        return [f"{name}: not set; {what}" for name, what in missing.items() if not values[name]]
    return []


def _model_path(values: Mapping[str, Any]) -> str:
    """Return the folder of the model; empty if it is named by its repository or on a server."""
    model = str(values["model"] or "")
    return (
        "" if values["method"] == "endpoint" or not model or (is_hub_id(model) and not Path(model).exists()) else model
    )


def hints(values: Mapping[str, Any], images: Sequence[str], allowed_paths: AllowedPaths) -> dict[str, Any]:
    """Return a hint for the folder and the model, and whether the model has to be downloaded."""
    folder = str(values["train_data_dir"] or "")
    shown = Recognised("")
    if images:
        shown = Recognised(f"{counted(len(images), 'image')} chosen", good=True)
    elif folder and not (problem := allowed_paths.problem("train_data_dir", folder)):
        shown = glance(folder, lambda path: _images(path, values))
    elif folder:
        shown = Recognised(str(problem), good=False)
    model, missing = _model(values, allowed_paths)
    return {"train_data_dir": as_hint(shown), "model": as_hint(model), "missing": missing}


def _images(folder: Path, values: Mapping[str, Any]) -> Recognised:
    """Count the images of a folder, and those that have a caption."""
    if not folder.is_dir():
        return Recognised("Folder not found", good=False)
    by_folder: dict[Path, list[Path]] = {}
    total = 0
    for image in each_image(folder, recursive=bool(values["recursive"])):
        by_folder.setdefault(image.parent, []).append(image)
        total += 1
        if total == MOST_IMAGES:
            break
    if not total:
        return Recognised("No images in the folder itself; turn on Recursive to include its subfolders", good=False)
    extension = str(values["caption_extension"])
    ending = dotted(extension) if is_ending(extension) else ".txt"
    captioned = sum(len(find_captions(path, within, ending).found) for path, within in by_folder.items())
    return Recognised(f"{counted(total, 'image')}, {captioned or 'none'} with a {ending} file", good=True)


def _model(values: Mapping[str, Any], allowed_paths: AllowedPaths) -> tuple[Recognised, bool]:
    """Describe the model, and return whether it has to be downloaded."""
    method = values["method"]
    name = str(values["model"] or default_model(method))
    if method == "endpoint":
        return Recognised("The server's name for the model" if not values["model"] else ""), False
    file = "selected_tags.csv" if method == "tagger" else "config.json"
    is_cached = in_cache(name, file, values["model_dir"])
    return hint_of_model(name, _model_path(values), is_cached, KNOWN_MODELS, allowed_paths)


class CaptionJob(ImagesJob):
    """The single captioning job of this GUI."""

    busy_sentence = "Images are already being captioned: stop that job or wait for it to finish"

    def needs_gpu(self, values: Mapping[str, Any]) -> bool:
        return bool(values["method"] == "captioner")
