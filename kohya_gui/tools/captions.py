"""Captioning on the page: its fields, hints and job. No Gradio, no torch."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kohya_gui.access.allowed_paths import AllowedPaths
from kohya_gui.form.field_links import FieldLinks
from kohya_gui.form.recognise import Recognised, glance
from kohya_gui.runs.launch_command import setting_flags
from kohya_gui.tools.tool_job import ToolJob
from sd_scripts.families.cards.model_file import is_hub_id
from sd_scripts.families.cards.registry import cards
from sd_scripts.formats.atomic_files import write_whole
from sd_scripts.formats.images.caption_files import find_captions
from sd_scripts.formats.images.folder_names import dotted, is_ending
from sd_scripts.formats.images.image_folders import IMAGE_SUFFIXES, each_image, has_suffix
from sd_scripts.formats.words import counted
from sd_scripts.options.captioning.known_models import KNOWN_MODELS, default_model, known_model
from sd_scripts.options.captioning.text import CaptionTextOptions, EndpointOptions, TaggerOptions
from sd_scripts.options.spec import Option
from sd_scripts.runs.watched import WatchedRun
from sd_scripts.settings.compat.captioning import CAPTIONING, OPTIONS
from sd_scripts.settings.family_options import each_option
from sd_scripts.settings.lora_tools import defaults, option_problems

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
    **dict.fromkeys(("min_length", "num_beams", "top_p", "dtype", "load_in_8bit"), ("captioner",)),
    **dict.fromkeys(("prefix", "postfix"), ("tagger", "captioner", "endpoint")),
    **dict.fromkeys(("model_dir", "batch_size", "download"), ("tagger", "captioner")),
}
"""Option -> the methods for which it has an effect; all, if it is not listed."""
PATHS = ("train_data_dir", "model_dir")
LINKS = FieldLinks("caption", {name: o for name, o in OPTIONS.items() if name not in HIDDEN})
MOST_IMAGES = 100_000
"""Images of a folder that a hint counts, and of a request."""
CLIP_READS = "clip_captions"


def described() -> dict[str, Any]:
    """Return the fields, the models that are known, and the families with the forms that they are trained with."""
    models = [vars(model) for model in KNOWN_MODELS]
    families = [[card.name, card.title, CLIP_READS in card.capabilities] for card in cards()]
    return {
        "fields": [_field(o) for o in OPTIONS.values() if o.name not in HIDDEN],
        "models": models,
        "families": families,
    }


def _field(o: Option) -> dict[str, Any]:
    return {
        "name": o.name,
        "label": o.label,
        "help": o.help,
        "kind": _kind(o),
        "default": o.default,
        "choices": list(o.choices),
        "nullable": o.nullable,
        "whole": o.type is int,
        "within": list(o.within) if o.within else None,
        "placeholder": o.placeholder,
        "methods": list(OF_METHODS.get(o.name, ())),
        "first": o.name in FIRST,
    }


def _kind(o: Option) -> str:
    if o.path:
        return "folder"
    if o.type is bool:
        return "switch"
    if o.type in (int, float):
        return "number"
    return "choice" if o.choices else "text"


def read_values(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of all options from the page's values; those of other methods are the defaults."""
    values = defaults(CAPTIONING)
    method = given.get("method", values["method"])
    for name, o in OPTIONS.items():
        if name in given and name not in ("image_list", "ask_api_key") and method in OF_METHODS.get(name, (method,)):
            value = o.located(o.read(given[name]))
            values[name] = o.default if value in ("", None) and not o.nullable else value
    return values


def problems(values: Mapping[str, Any], images: Sequence[str], allowed_paths: AllowedPaths) -> list[str]:
    """Return a sentence for each mistake; files outside the allowed folders are not looked at."""
    if images:
        values = {**values, "image_list": "chosen images"}
    if invalid := option_problems(CAPTIONING, values):
        return invalid
    outside = [allowed_paths.problem(name, str(values[name])) for name in PATHS if values[name]]
    outside += [allowed_paths.problem("train_data_dir", path) for path in images]
    if model := _model_path(values):
        outside.append(allowed_paths.problem("model", model))
    if found := [problem for problem in outside if problem]:
        return found[:1]
    if values["method"] == "endpoint":
        missing = {"endpoint": "enter the address of the server", "model": "enter the server's name for the model"}
        return [f"{name}: not set; {what}" for name, what in missing.items() if not values[name]]
    if not images and not Path(values["train_data_dir"]).is_dir():
        return [f"train_data_dir: folder not found: '{values['train_data_dir']}'"]
    return []


def _model_path(values: Mapping[str, Any]) -> str:
    """Return the folder of the model; empty if it is named by its repository or on a server."""
    model = str(values["model"] or "")
    return (
        "" if values["method"] == "endpoint" or not model or (is_hub_id(model) and not Path(model).exists()) else model
    )


def chosen_images(given: object) -> list[str]:
    """Return the images that a request names. Raises ValueError for anything else than names of image files."""
    images = given if isinstance(given, list) else []
    if len(images) > MOST_IMAGES or not all(isinstance(each, str) and "\n" not in each for each in images):
        raise ValueError("The chosen images are not a list of paths")
    if wrong := [each for each in images if not has_suffix(each, IMAGE_SUFFIXES)]:
        raise ValueError(f"train_data_dir: {wrong[0][:200]!r} is not an image")
    return images


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
    return {"train_data_dir": _hint(shown), "model": _hint(model), "missing": missing}


def _hint(hint: Recognised) -> dict[str, Any]:
    return {"text": hint.text, "good": hint.good}


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
    if path := _model_path(values):
        if problem := allowed_paths.problem("model", path):
            return Recognised(problem, good=False), False
        is_here = Path(path).is_dir()
        return Recognised("A folder of this machine" if is_here else "Folder not found", good=is_here), False
    known = known_model(name)
    about = f"{known.about}. " if known else ""
    if _is_cached(name, method, values["model_dir"]):
        return Recognised(f"{name}: {about}On this machine", good=True), False
    size = f"{known.size}, licence {known.licence}" if known else "size and licence are on its page of the Hub"
    return Recognised(f"{name}: {about}Not on this machine: a download of {size}"), True


def _is_cached(name: str, method: str, model_dir: str | None) -> bool:
    from huggingface_hub import try_to_load_from_cache

    file = "selected_tags.csv" if method == "tagger" else "config.json"
    try:
        return isinstance(try_to_load_from_cache(name, file, cache_dir=model_dir), str)
    except (OSError, ValueError):
        return False


class CaptionJob(ToolJob):
    """The single captioning job of this GUI."""

    name = "captions"
    busy_sentence = "Images are already being captioned: stop that job or wait for it to finish"

    def start(self, values: Mapping[str, Any], images: Sequence[str], secrets: Mapping[str, str]) -> None:
        """Start now or, if it computes on the GPU, when the run there ends. Raises ValueError, one sentence."""
        self.check_idle()
        self.uses_gpu = values["method"] == "captioner"

        def prepare(job: WatchedRun) -> Sequence[str]:
            if not images:
                return ()
            file = job.folder.path / "images.txt"
            write_whole(file, "\n".join(images) + "\n")
            return "--image_list", str(file)

        record = {"values": dict(values), "images": list(images)}
        self.begin(command(values), prepare, record=record, secrets=secrets)


def command(values: Mapping[str, Any]) -> list[str]:
    """Return the command line with these values; defaults are left out."""
    changed = {name: values[name] for name, o in OPTIONS.items() if values[name] not in (None, o.default)}
    return [sys.executable, "-m", "sd_scripts.tools.captioning", *setting_flags(changed)]
