"""The datasets that pages have open: which images they show, their thumbnails and measurements.

A page names images by the keys of a view it was given, never by a path: what was not listed cannot be asked for.
"""

import base64
import binascii
import logging
import os
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from kohya_gui.access.allowed_paths import AllowedPaths
from kohya_gui.runs.plan_card import settings_of
from kohya_gui.server.json_routes import NotFound
from kohya_gui.server.resident_process import ResidentProcess
from sd_scripts.formats.images.mask_files import usual_root
from sd_scripts.machine.thumbnail_store import Measures, measures_of, thumbnail
from sd_scripts.options.generating.regularisation import MOST_IMAGES
from sd_scripts.options.images.known_models import IMAGE_MODELS, MODEL_FILES
from sd_scripts.settings.settings import Settings

logger = logging.getLogger("sd_scripts")

PROGRAM = "sd_scripts.dataset_view.serve"
LONGEST = 300.0
"""Seconds to read a large dataset the first time."""
REMEMBERED = 8
"""Datasets that are open at the same time."""
LOOKED_AT_ONCE = 64
"""Images sent to the process that makes thumbnails; it answers before it has done all if they are large."""
MOST_STEPS = 10**9
MOST_DATASETS, MOST_SIZES, MOST_PIXELS = 10_000, 64, 1_000_000
OTHERS = ("in_json", "dataset_config", "reg_data_dir", "conditioning_data_dir", "control_directory")
"""Options that do not concern a folder that is opened on its own."""
SOURCES = ("train_data_dir", "dataset_config", "in_json")
"""Options that name the training images."""
OUTSIDE = "it is a link that leads outside the allowed folders"
FACE_MODEL = next(model.repo for model in IMAGE_MODELS if model.method == "faces")
EMPTIED: Mapping[str, Any] = {
    **dict.fromkeys(("size", "resized", "crop")),
    **dict.fromkeys(("caption", "bucket"), ""),
    **dict.fromkeys(("mask_key", "mask_path", "mask_problem"), ""),
    "bytes": 0,
    "links": (),
}
"""What is shown of it."""
FAULT = "The dataset could not be read. See the console of the GUI."
GONE = "This dataset is no longer open here; open it again"


@dataclass(kw_only=True)
class View:
    """A dataset as a page shows it."""

    id: str
    paths: dict[str, str]
    """By key, in the order of the page."""
    masks: dict[str, str] = field(default_factory=dict)
    """Files of masks by their own keys."""
    waiting: dict[str, None] = field(default_factory=dict)
    """Keys of images that were not looked at yet, in order."""


def downloaded_face_model() -> str:
    """Return the file of the face detector that the image tools download; empty if it is not on this machine."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(FACE_MODEL, MODEL_FILES["faces"])
    return found if isinstance(found, str) else ""


class DatasetViews:
    """Opens datasets and looks at their images."""

    def __init__(
        self, allowed_paths: AllowedPaths, program: str = PROGRAM, face_model: Callable[[], str] = downloaded_face_model
    ) -> None:
        self._allowed_paths = allowed_paths
        self._find_face_model = face_model
        self._broken_face_model = ""
        """A file that turned out to be no detector: images are not looked at again and again for it."""
        # one for datasets, one for thumbnails, which are made in the meantime, and one that loads torch
        self._reading, self._looking, self._training = (ResidentProcess(program, LONGEST) for _ in range(3))
        self._views: OrderedDict[str, View] = OrderedDict()
        self._lock = threading.Lock()

    def open(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the dataset of a form's draft, or of the `folder` or dataset file that is named instead."""
        settings = self._settings(body)
        answer = answered(self._reading, {"do": "view", "settings": settings.saved()})
        images = [self._within(image) for image in answer["images"]]
        paths = {image["key"]: image["path"] for image in images if image["why"] != OUTSIDE}
        masks = {image["mask_key"]: image["mask_path"] for image in images if image["mask_key"]}
        measures = measures_of(paths)
        readable = (image["key"] for image in images if image["size"])
        model = self._face_model()
        waiting = dict.fromkeys(
            key for key in readable if key not in measures or (model and measures[key].faces is None)
        )
        view = View(id=secrets.token_hex(8), paths=paths, masks=masks, waiting=waiting)
        self.add(view)
        found = {key: shown(each) for key, each in measures.items()}
        more = {
            "measures": found,
            "waiting": len(view.waiting),
            "train": to_train(body, settings.values(), answer),
            "finds_faces": bool(model),
        }
        return {**answer, "images": images, "view": view.id, **more}

    def add(self, view: View) -> None:
        """Remember an open dataset; forget the oldest of too many."""
        with self._lock:
            self._views[view.id] = view
            while len(self._views) > REMEMBERED:
                self._views.popitem(last=False)

    def look(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Look at more images of a view for a moment, at those that the page shows `first`."""
        view = self._view(body.get("view"))
        first = body.get("first")
        named = first if isinstance(first, list) else []
        shown = (key for key in named if isinstance(key, str) and key in view.waiting)
        wanted = list(dict.fromkeys((*shown, *view.waiting)))[:LOOKED_AT_ONCE]
        images = [[key, path] for key in wanted if self._allowed_paths.holds(Path(path := view.paths[key]))]
        for key in {*wanted} - {key for key, _ in images}:  # a link that leads elsewhere now
            view.waiting.pop(key, None)
        answer = self._looked(images)
        for key in (*answer["measures"], *answer["problems"]):
            view.waiting.pop(key, None)
        return {**answer, "waiting": len(view.waiting)}

    def _face_model(self) -> str:
        """Return the file of the face detector; empty without one that works."""
        found = self._find_face_model()
        return "" if found == self._broken_face_model else found

    def _looked(self, images: list[list[str]]) -> Mapping[str, Any]:
        """Return the measurements of these images, or of the first of them: one at which the process dies is named."""
        if not images:
            return {"measures": {}, "problems": {}}
        try:
            model = self._face_model()
            answer = answered(self._looking, {"do": "look", "images": images, "face_model": model})
            if model and not answer["finds_faces"]:
                self._broken_face_model = model
            return answer
        except ValueError:
            if len(images) > 1:
                return self._looked(images[: len(images) // 2])
            return {"measures": {}, "problems": {images[0][0]: "cannot be read: decoding it ends the process"}}

    def alike(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return groups of keys of images that look alike, among those that were looked at."""
        view, distance = self._view(body.get("view")), body.get("distance")
        if not isinstance(distance, int | float) or isinstance(distance, bool) or not 0 <= distance <= 128:
            raise ValueError("distance: must be a number of bits from 0 to 128")
        measures = measures_of(view.paths)
        likeness = [each.likeness for each in measures.values()]
        answer = answered(self._looking, {"do": "alike", "likeness": likeness, "distance": distance})
        keys = list(measures)
        return {"groups": [[keys[index] for index in group] for group in answer["groups"]]}

    def step(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the batches of a step of the run; `seed` replaces the form's."""
        number, seed = body.get("step"), body.get("seed")
        if type(number) is not int or not 1 <= number <= MOST_STEPS:
            raise ValueError("step: must be a whole number from 1 on")
        settings = self._settings(body)
        if seed is not None:
            if type(seed) is not int or not 0 <= seed < 2**32:
                raise ValueError("seed: must be a whole number from 0 to 4294967295")
            settings = settings.replaced({"seed": seed})
        answer = answered(self._training, {"do": "step", "settings": settings.saved(), "step": number})
        return {**answer, "samples": [self._sample_within(sample) for sample in answer["samples"]]}

    def regularisation(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the regularisation images that the training of a form needs, and how many are in their folder: the one
        that is named, the form's, or one next to the training images."""
        settings = self._settings(body)
        prompts, images = body.get("prompts") or [], body.get("images")
        if not isinstance(prompts, list) or not all(isinstance(line, str) and line.strip() for line in prompts):
            raise ValueError("prompt: must be a list of texts")
        if images is not None and (type(images) is not int or not 1 <= images <= MOST_IMAGES):
            raise ValueError(f"images: must be a whole number from 1 to {MOST_IMAGES:,}")
        place = str(body.get("place") or settings.values().get("reg_data_dir") or "").strip()
        place = place or folder_beside(str(settings.values().get("train_data_dir") or ""))
        if place:
            place = str(self._allowed_paths.check("reg_data_dir", place))
        request = {"prompts": prompts, "images": images, "folder": place, "settings": settings.saved()}
        return {**answered(self._reading, {"do": "regularisation", **request}), "place": place}

    def fits(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return how images of these `sizes` would be trained in a `dataset` of the run."""
        number, sizes = body.get("dataset"), body.get("sizes")
        if type(number) is not int or not 0 <= number < MOST_DATASETS:
            raise ValueError("dataset: must be the number of a dataset")
        if not isinstance(sizes, list) or len(sizes) > MOST_SIZES or not all(map(_is_size, sizes)):
            raise ValueError(f"sizes: must be at most {MOST_SIZES} pairs of width and height")
        request = {"do": "fits", "settings": self._settings(body).saved(), "dataset": number, "sizes": sizes}
        return {**answered(self._reading, request)}

    def path(self, key: str) -> Path:
        """Return the image with this key, of any open dataset. Raises NotFound."""
        return self._file(key, "paths")

    def _file(self, key: str, kind: Literal["paths", "masks"]) -> Path:
        with self._lock:
            known = [getattr(view, kind) for view in self._views.values()]
        path = next((paths[key] for paths in known if key in paths), None)
        if path is None or not self._allowed_paths.holds(Path(path)):
            raise NotFound(GONE)
        return Path(path)

    def tint(self, key: str) -> bytes:
        """Return the areas that the mask with this key leaves out, as the opaque ones of a PNG. Raises NotFound."""
        return self._looked_at({"do": "tint", "path": str(self._file(key, "masks"))})

    def thumbnail(self, key: str) -> bytes:
        """Return an image's thumbnail as a JPEG; its preview, if thumbnails cannot be kept. Raises NotFound."""
        self.path(key)
        return thumbnail(key) or self.preview(key)

    def preview(self, key: str) -> bytes:
        """Return an image as training decodes it, not larger than a screen, as a JPEG. Raises NotFound."""
        return self._looked_at({"do": "preview", "path": str(self.path(key))})

    def _looked_at(self, request: Mapping[str, Any]) -> bytes:
        answer = answered(self._looking, request)
        try:
            return base64.b64decode(answer["image"])
        except (KeyError, binascii.Error) as error:
            raise NotFound(FAULT) from error

    def _view(self, id: object) -> View:
        view = self._views.get(id) if isinstance(id, str) else None
        if view is None:
            raise NotFound(GONE)
        return view

    def _settings(self, body: Mapping[str, Any]) -> Settings:
        settings = settings_of(body)
        place = body.get("folder") or ""
        if not isinstance(place, str):
            raise ValueError("folder: not a path; type it again")
        settings = settings.replaced(changes_for(place.strip().strip('"'), settings.values()))
        if problems := self._allowed_paths.problems_of(settings):
            raise ValueError(problems[0])
        if wrong := settings.wrong_values():
            raise ValueError(wrong[0])
        return settings

    def _within(self, image: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return an image without its contents if it, or its caption, is a link that leads out of the allowed
        folders."""
        links: Iterable[str] = image["links"]
        if all(self._allowed_paths.holds(Path(link)) for link in links):
            return image
        return {**image, **EMPTIED, "role": "left out", "why": OUTSIDE}

    def _sample_within(self, sample: Mapping[str, Any]) -> Mapping[str, Any]:
        if all(self._allowed_paths.holds(Path(link)) for link in (sample["path"], *sample["links"])):
            return sample
        return {**sample, "image": None, "mask": None, "caption": OUTSIDE, "written": ""}


def shown(measures: Measures) -> dict[str, Any]:
    """Return the measurements of an image that the page uses."""
    return {"digest": measures.digest, "sharpness": measures.sharpness, "bars": measures.bars, "faces": measures.faces}


def folder_beside(train_data_dir: str) -> str:
    """Return the folder for regularisation images next to a folder of training images."""
    folder = Path(train_data_dir).expanduser()
    return str(folder.with_name(f"regularisation_{folder.name}")) if folder.name else ""


def to_train(body: Mapping[str, Any], opened: Mapping[str, Any], answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values with which the form trains on the dataset that is shown, as far as it has others; on its masks
    too, if each image has one. `opened`: values of the settings of the dataset."""
    shown = {**opened, "num_repeats": answer["num_repeats"], **_masked(opened, answer)}
    form = settings_of(body).values()
    names = (*SOURCES, "num_repeats", "conditioning_data_dir", "masked_loss")
    return {name: shown[name] for name in names if shown[name] != form[name]}


def _masked(values: Mapping[str, Any], answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that train on the masks of a folder, if each of its images has one in the usual place; without
    any masks, that masked_loss is off: it may be left over from other images."""
    trained = [image for image in answer["images"] if image["role"] in ("trained", "validation")]
    folders = {os.path.dirname(image["path"]) for image in trained}  # much faster than the parents of 10,000 paths
    roots = {usual_root(Path(folder)) for folder in folders}
    in_folder = values["train_data_dir"] and not (values["dataset_config"] or values.get("in_json"))
    if not in_folder or values["conditioning_data_dir"] or values["alpha_mask"]:
        return {}
    if len(roots) != 1 or not all(image["mask_key"] and not image["mask_problem"] for image in trained):
        return {"masked_loss": False}
    return {"conditioning_data_dir": str(roots.pop()), "masked_loss": True}


def _is_size(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 2
        and all(type(side) is int and 0 < side <= MOST_PIXELS for side in value)
    )


def changes_for(place: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options to change for this folder, dataset file or metadata file; none if the values name it."""
    if not place or place in [values.get(name) for name in SOURCES]:
        return {}
    alone = {name: None for name in OTHERS if name in values}
    match Path(place).suffix.lower():
        case ".toml" | ".json":
            return {**alone, "dataset_config": place}
        case ".jsonl":
            return {**alone, "in_json": place}
    return {**alone, "train_data_dir": place}


def answered(process: ResidentProcess, request: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the process's answer to a request. Raises ValueError, one sentence, if it has none."""
    try:
        answer = process.ask(request)
    except TimeoutError:
        raise ValueError("Reading the images takes too long; choose a smaller folder") from None
    except (EOFError, OSError):
        raise ValueError(FAULT) from None
    if details := answer.get("fault"):
        logger.error("The dataset could not be read:\n%s", details)
        raise ValueError(FAULT)
    if refused := answer.get("unanswered"):
        raise ValueError(refused)
    return answer
