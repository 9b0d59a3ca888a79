"""Tags from the confidences of a tagger: its list of tags, thresholds by category, order and spelling."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sd_scripts.formats.documents import read_text
from sd_scripts.formats.editing.tag_lists import with_spaces, without_repeats
from sd_scripts.options.captioning.text import TaggerOptions, listed_tags, replacements

CATEGORIES = {0: "general", 1: "artist", 3: "copyright", 4: "character", 5: "meta", 9: "rating"}
"""Danbooru's numbers of categories, which the column `category` has."""


@dataclass(frozen=True, kw_only=True)
class Tag:
    """A tag that a model knows, at its place in the model's output."""

    name: str
    category: str


def read_tags(path: Path) -> list[Tag]:
    """Read selected_tags.csv. Raises ValueError, one sentence, for any other file."""
    try:
        rows = list(csv.DictReader(io.StringIO(read_text(path)), strict=True))
    except csv.Error as error:
        raise ValueError(f"model: '{path}' is not a list of tags: {error}") from None
    except ValueError as error:
        raise ValueError(f"model: {error}") from None
    if not rows or not {"name", "category"} <= rows[0].keys():
        raise ValueError(f"model: '{path}' is not a list of tags: it must have the columns name and category")
    tags = []
    for number, row in enumerate(rows, 2):
        name, category = row["name"], str(row["category"])
        if not name or not category.isdecimal():
            raise ValueError(f"model: '{path}' is not a list of tags: line {number} has no name or no category")
        tags.append(Tag(name=name, category=CATEGORIES.get(int(category), "general")))
    return tags


class TagRules:
    """Which tags are written, and how."""

    def __init__(self, tags: Sequence[Tag], options: TaggerOptions):
        self._tags = tags
        self._options = options
        self._spelling = replacements(options.tag_replacement or "")
        self._undesired = {_key(tag) for tag in listed_tags(options.undesired_tags)}
        self._first = {_key(tag): place for place, tag in enumerate(listed_tags(options.always_first_tags))}
        threshold = {
            "general": options.general_threshold,
            "character": options.character_threshold,
            "copyright": options.copyright_threshold,
            "artist": options.artist_threshold,
            "meta": options.meta_threshold,
        }
        limits = {name: options.thresh if value is None else value for name, value in threshold.items()}
        self._limits = np.array([limits.get(tag.category, np.inf) for tag in tags], np.float32)
        self._ratings = [place for place, tag in enumerate(tags) if tag.category == "rating"]

    def choose(self, confidences: NDArray[np.float32]) -> list[str]:
        """Return the tags of an image, in order, from the confidence of each tag (N)."""
        found = np.flatnonzero(confidences >= self._limits)
        places = sorted(found.tolist(), key=lambda place: self._place(place, float(confidences[place])))
        spelled = [name for place in places for name in self._spelled(self._tags[place])]
        rating = self._rating(confidences)
        if self._options.use_rating_tags:
            spelled = [*rating, *spelled]
        elif self._options.use_rating_tags_as_last_tag:
            spelled = [*spelled, *rating]
        kept = [tag for tag in spelled if _key(tag) not in self._undesired]
        return without_repeats([self._spelling.get(tag, tag) for tag in kept])

    def _place(self, place: int, confidence: float) -> tuple[int, bool, float | str]:
        """Return the sort key of a tag: those that come first, characters, then the order."""
        tag = self._tags[place]
        first = self._first.get(_key(tag.name), len(self._first))
        late = self._options.character_tags_first and tag.category != "character"
        orders: dict[str, float | str] = {"model": place, "confidence": -confidence, "alphabetical": _key(tag.name)}
        return first, late, orders[self._options.tag_order]

    def _rating(self, confidences: NDArray[np.float32]) -> list[str]:
        if not self._ratings:
            return []
        best = max(self._ratings, key=lambda place: float(confidences[place]))
        return self._spelled(self._tags[best]) if confidences[best] >= self._options.rating_threshold else []

    def _spelled(self, tag: Tag) -> list[str]:
        names = [tag.name]
        if tag.category == "character" and self._options.character_tag_expand and tag.name.endswith(")"):
            names = [part.strip("_ ") for part in tag.name.removesuffix(")").rsplit("(", 1)]
        return [with_spaces(name) if self._options.remove_underscore else name for name in names if name]


def _key(tag: str) -> str:
    """Return the same text for two spellings of a tag."""
    return tag.replace("_", " ").casefold()
