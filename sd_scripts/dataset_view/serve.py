"""A resident process that looks at datasets for the page: it decodes images, which the GUI's process does not.

A request (see `sd_scripts.machine.resident`) has `do`, the name of one of `ANSWERS`, and its arguments. Each answer is
described there; a request that fails is answered {"unanswered": sentence} or {"fault": traceback}.
"""

import base64
import os
import time
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from sd_scripts.data.sources.images import UnreadableImage
from sd_scripts.dataset_view import regularisation
from sd_scripts.dataset_view.looking import alike, look_at, preview
from sd_scripts.dataset_view.view import view_of
from sd_scripts.machine.resident import serve
from sd_scripts.machine.thumbnail_store import Measures, remember
from sd_scripts.settings.catalog import script_for
from sd_scripts.settings.reading import from_values
from sd_scripts.settings.settings import Settings

MOST_BYTES = 2**31
"""Memory after which the process ends."""
AT_ONCE = 0.4
"""Seconds for which one request looks at images: thumbnails appear while the next ones are made."""
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
    """Make thumbnails of `images`, [[key, path], ...], for a while; return `measures` by key, and `problems`."""
    until = time.monotonic() + AT_ONCE
    measures: dict[str, Measures] = {}
    problems: dict[str, str] = {}
    made: dict[str, tuple[bytes, Measures]] = {}

    def look(key: str, path: str) -> None:
        if time.monotonic() > until:
            return
        try:
            made[key] = look_at(Path(path))
            measures[key] = made[key][1]
        except UnreadableImage as error:
            problems[key] = str(error).removeprefix(f"{path} ")

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        list(pool.map(lambda pair: look(*pair), request["images"]))
    stored = remember(made)
    return {"measures": {key: vars(each) for key, each in measures.items()}, "problems": problems, "stored": stored}


def _preview(request: Mapping[str, Any]) -> Answer:
    """Return `image`, the image at `path` as a JPEG in Base64."""
    return {"image": base64.b64encode(preview(Path(request["path"]))).decode()}


def _alike(request: Mapping[str, Any]) -> Answer:
    """Return `groups`, indices of those of the `likeness` texts that differ in few bits, at most `distance`."""
    return {"groups": alike(request["likeness"], request["distance"])}


def _regularisation(request: Mapping[str, Any]) -> Answer:
    """Return the regularisation images that a training needs, and those in `folder`, as `answer_of` does."""
    return regularisation.answer_of(settings_of(request), request["prompts"], request["images"], request["folder"])


def _step(request: Mapping[str, Any]) -> Answer:
    """Return the batches of the step with this number, as `answer_of` does."""
    from sd_scripts.dataset_view.step_view import answer_of  # brings torch, which no other answer needs

    return answer_of(settings_of(request), request["step"])


def _tokens(request: Mapping[str, Any]) -> Answer:
    """Return how many tokens the `texts` have, as `token_counts` does, or with `spans` where each is, as `tokens_read`
    does."""
    from sd_scripts.dataset_view.token_counts import token_counts, tokens_read  # brings torch

    return (tokens_read if request.get("spans") else token_counts)(settings_of(request), request["texts"])


ANSWERS: Mapping[str, Callable[[Mapping[str, Any]], Answer]] = {
    "view": _view,
    "look": _look,
    "preview": _preview,
    "alike": _alike,
    "regularisation": _regularisation,
    "step": _step,
    "tokens": _tokens,
}


if __name__ == "__main__":
    serve(answer, most_bytes=MOST_BYTES)
