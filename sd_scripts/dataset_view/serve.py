"""A resident process that looks at datasets for the page: it decodes images, which the GUI's process does not.

A request (see `sd_scripts.machine.resident`) has `do`, the name of one of `ANSWERS`, and its arguments. Each answer is
described there; a request that fails is answered {"unanswered": sentence} or {"fault": traceback}.
"""

import base64
import functools
import os
import time
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from sd_scripts.data.plan.buckets import Size
from sd_scripts.data.sources.images import UnreadableImage, read_each, read_size
from sd_scripts.dataset_view import regularisation
from sd_scripts.dataset_view.crops import Box, cut, cut_along, fits_of
from sd_scripts.dataset_view.faces import Faces
from sd_scripts.dataset_view.looking import alike, look_at, preview
from sd_scripts.dataset_view.masks import mask_file, mask_to_edit, plain_mask, received, tint
from sd_scripts.dataset_view.view import View, plan_view, view_of
from sd_scripts.machine.resident import serve
from sd_scripts.machine.thumbnail_store import Measures, remember
from sd_scripts.options.dataset import CaptionOptions, DatasetOptions
from sd_scripts.settings.catalog import script_for
from sd_scripts.settings.reading import from_values
from sd_scripts.settings.settings import Settings

MOST_BYTES = 2**31
"""Memory after which the process ends."""
AT_ONCE = 0.4
"""Seconds for which one request looks at images: thumbnails appear while the next ones are made."""
SURE = 0.6
"""Confidence from which something is a face."""
Answer = dict[str, Any]


def answer(request: Mapping[str, Any]) -> Answer:
    """Return the answer to a request, whatever is wrong with it."""
    try:
        try:
            return ANSWERS[request["do"]](request)
        except (ValueError, OSError) as error:
            return {"unanswered": str(error)}
    except Exception:
        return {"fault": traceback.format_exc()}


def settings_of(request: Mapping[str, Any]) -> Settings:
    saved = request["settings"]
    return from_values(script_for(saved["family"], saved["method"]), saved)


def _view(request: Mapping[str, Any]) -> Answer:
    return view_of(settings_of(request))


def _look(request: Mapping[str, Any]) -> Answer:
    """Make thumbnails of `images`, [[key, path], ...], for a while; return `measures` by key, and `problems`. Faces are
    looked for with the model in the file `face_model`, if there is one."""
    find_faces = _faces(request.get("face_model") or "")
    until = time.monotonic() + AT_ONCE
    measures: dict[str, Measures] = {}
    problems: dict[str, str] = {}
    made: dict[str, tuple[bytes, Measures]] = {}

    def look(key: str, path: str) -> None:
        if time.monotonic() > until:
            return
        try:
            made[key] = look_at(Path(path), find_faces)
            measures[key] = made[key][1]
        except UnreadableImage as error:
            problems[key] = str(error).removeprefix(f"{path} ")

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        list(pool.map(lambda pair: look(*pair), request["images"]))
    stored = remember(made)
    seen = {key: vars(each) for key, each in measures.items()}
    return {"measures": seen, "problems": problems, "stored": stored, "finds_faces": find_faces is not None}


@functools.lru_cache(1)
def _faces(file: str) -> Faces | None:
    try:
        return Faces(Path(file), SURE) if file else None
    except ValueError:  # thumbnails do not depend on it
        return None


def _preview(request: Mapping[str, Any]) -> Answer:
    """Return `image`, the image at `path` as a JPEG in Base64."""
    return {"image": _encoded(preview(Path(request["path"])))}


def _encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _alike(request: Mapping[str, Any]) -> Answer:
    """Return `groups`, indices of those of the `likeness` texts that differ in few bits, at most `distance`."""
    return {"groups": alike(request["likeness"], request["distance"])}


def _regularisation(request: Mapping[str, Any]) -> Answer:
    """Return the regularisation images that a training needs, and those in `folder`: `classes`, as `rows_of` does."""
    settings = settings_of(request)
    classes = regularisation.classes_of(settings, request["prompts"], request["images"])
    return {
        "classes": regularisation.rows_of(classes, request["folder"]),
        "caption_extension": settings[CaptionOptions].caption_extension,
        "unused": regularisation.unused(settings[DatasetOptions]),
    }


def _step(request: Mapping[str, Any]) -> Answer:
    """Return the batches of the step with this number, as `answer_of` does."""
    from sd_scripts.dataset_view.step_view import answer_of  # brings torch, which no other answer needs

    return answer_of(plan_view(settings_of(request)), request["step"])


def _tokens(request: Mapping[str, Any]) -> Answer:
    """Return how many tokens the `texts` have, as `token_counts` does, or with `spans` where each is, as `tokens_read`
    does."""
    from sd_scripts.dataset_view.token_counts import limit_of, token_counts, tokens_read  # brings torch

    settings, texts = settings_of(request), request["texts"]
    if request.get("spans"):
        return tokens_read(settings, texts)
    return token_counts(limit_of(settings), settings[CaptionOptions], texts)


def _mask(request: Mapping[str, Any]) -> Answer:
    """Return the mask at `path` as `mask_to_edit` does."""
    return mask_to_edit(Path(request["path"]))


def _tint(request: Mapping[str, Any]) -> Answer:
    """Return `image`, the mask at `path` as `tint` does, in Base64."""
    return {"image": _encoded(tint(Path(request["path"])))}


def _mask_file(request: Mapping[str, Any]) -> Answer:
    """Return `file`, the PNG of the mask that a page sent for `image`, in Base64."""
    pixels = received(request["width"], request["height"], request["pixels"])
    return {"file": _encoded(mask_file(pixels, read_size(Path(request["image"]))))}


def _white_masks(request: Mapping[str, Any]) -> Answer:
    """Return `files`, the PNG of a mask for each of the `images` that can be read, in Base64, by path."""
    files: dict[str, str] = {}
    made: dict[Size, str] = {}
    for path, size in read_each(read_size, map(Path, request["images"])):
        if not isinstance(size, UnreadableImage):
            if size not in made:
                made[size] = _encoded(plain_mask(size))
            files[str(path)] = made[size]
    return {"files": files}


def _fits(request: Mapping[str, Any]) -> Answer:
    """Return `fits`, as `fits_of` does, for the `sizes` in a `dataset` of the run."""
    rules = View(settings=settings_of(request)).rules()
    return {"fits": fits_of(rules[min(request["dataset"], len(rules) - 1)], [*map(tuple, request["sizes"])])}


def _cut(request: Mapping[str, Any]) -> Answer:
    """Write the part of `image` in a `box` to `target`, and the same part of the files `along`,
    [[source, target, is_mask], ...]; return the sources that were `left`, since they have a different shape."""
    box: Box = tuple(request["box"])
    size = cut(Path(request["image"]), box, Path(request["target"]))
    left = [
        source
        for source, target, is_mask in request["along"]
        if not cut_along(Path(source), box, size, Path(target), is_mask=is_mask)
    ]
    return {"left": left}


ANSWERS: Mapping[str, Callable[[Mapping[str, Any]], Answer]] = {
    "view": _view,
    "look": _look,
    "preview": _preview,
    "alike": _alike,
    "regularisation": _regularisation,
    "mask": _mask,
    "tint": _tint,
    "mask_file": _mask_file,
    "white_masks": _white_masks,
    "fits": _fits,
    "cut": _cut,
    "step": _step,
    "tokens": _tokens,
}


if __name__ == "__main__":
    serve(answer, most_bytes=MOST_BYTES)
