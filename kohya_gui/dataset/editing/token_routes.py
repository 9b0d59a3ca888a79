"""The route under /studio that counts the tokens of captions, as the model family that was chosen reads them."""

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.routing import Route

from kohya_gui.access.allowed_paths import AllowedPaths
from kohya_gui.dataset.dataset_views import answered
from kohya_gui.runs.plan_card import settings_of
from kohya_gui.server.json_routes import post
from kohya_gui.server.resident_process import ResidentProcess

PROGRAM = "sd_scripts.dataset_view.serve"
LONGEST = 60.0
MOST_TEXTS, MOST_LETTERS = 500, 500_000
IDLE_SECONDS = 600.0
"""After which the process ends: with PyTorch it has 400 MB."""


class TokenCounter:
    """Asks a process of its own, which ends when it is not used: tokenizers of training need PyTorch."""

    def __init__(self, allowed_paths: AllowedPaths) -> None:
        self._allowed_paths = allowed_paths
        self._process = ResidentProcess(PROGRAM, LONGEST, IDLE_SECONDS)

    def count(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer of `sd_scripts.dataset_view.token_counts` for texts: how long they are, or with `spans`
        where each token is; `unmeasured` is why there is none."""
        texts = body.get("texts")
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise ValueError("texts: must be a list of captions")
        if len(texts) > MOST_TEXTS or sum(map(len, texts)) > MOST_LETTERS:
            raise ValueError(f"texts: more than {MOST_TEXTS} captions, or {MOST_LETTERS:,} characters")
        try:
            settings = settings_of(body)
            if problems := self._allowed_paths.problems_of(settings):
                raise ValueError(problems[0])
            if wrong := settings.wrong_values():
                raise ValueError(wrong[0])
            request = {"do": "tokens", "settings": settings.saved(), "texts": texts, "spans": bool(body.get("spans"))}
            return {**answered(self._process, request)}
        except ValueError as error:
            return {"unmeasured": str(error)}


def routes(allowed_paths: AllowedPaths) -> list[Route]:
    """Return the route, for `launch(app_kwargs={"routes": ...})`."""
    counter = TokenCounter(allowed_paths)

    def count(request: Request, body: Mapping[str, Any]) -> dict[str, Any]:
        return counter.count(body)

    return [post("dataset/tokens", count)]
