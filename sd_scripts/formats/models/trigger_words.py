"""Read from an adapter's metadata the words that a prompt needs for it."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

MOST_LETTERS = 200
"""Longer entries are captions or damage, not trigger words."""


def trigger_words(metadata: Mapping[str, str]) -> str:
    """Return the trigger words of an adapter, separated by commas, "" if its metadata does not show any.

    The phrase that its author named comes first, then the prefix of its captions, then the tag that is the most
    frequent one of each training folder. The metadata may be anything: a file from the internet has it.
    """
    phrase = metadata.get("modelspec.trigger_phrase", "").strip()
    if phrase and len(phrase) <= MOST_LETTERS:
        return phrase
    for words in (_prefixes(metadata), _frequent_tags(metadata)):
        if unique := [*dict.fromkeys(word for word in words if word and len(word) <= MOST_LETTERS)]:
            return ", ".join(unique)
    return ""


def _prefixes(metadata: Mapping[str, str]) -> Iterator[str]:
    for subset in _subsets(metadata):
        prefix = subset.get("caption_prefix")
        if isinstance(prefix, str) and not subset.get("is_reg"):
            yield prefix.strip(" ,")


def _frequent_tags(metadata: Mapping[str, str]) -> Iterator[str]:
    regularisation = [subset.get("image_dir") for subset in _subsets(metadata) if subset.get("is_reg")]
    folders = _parsed(metadata.get("ss_tag_frequency"))
    for folder, counts in folders.items() if isinstance(folders, dict) else ():
        if folder in regularisation or not isinstance(counts, dict):
            continue
        numbers = {tag: count for tag, count in counts.items() if isinstance(count, int)}
        tag = max(numbers, key=lambda tag: numbers[tag], default="")
        if numbers.get(tag, 0) > 1:  # captions that are sentences all differ
            yield tag.strip()


def _subsets(metadata: Mapping[str, str]) -> list[dict[str, Any]]:
    datasets = _parsed(metadata.get("ss_datasets"))
    found = [each.get("subsets") for each in (datasets if isinstance(datasets, list) else ()) if isinstance(each, dict)]
    return [each for subsets in found if isinstance(subsets, list) for each in subsets if isinstance(each, dict)]


def _parsed(text: str | None) -> Any:
    try:
        return json.loads(text or "null")
    except (ValueError, RecursionError):
        return None
