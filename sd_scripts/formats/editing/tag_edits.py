"""Change many captions in the same way: find and replace, add and remove tags, put the trigger word first, tidy up.

Each line of a caption is one of its alternatives (enable_wildcard), so tags are changed in each line. A line whose tags
stay the same keeps its spaces.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from sd_scripts.formats.editing.bounded_regex import substituted
from sd_scripts.formats.editing.tag_lists import apart_from, split_tags, with_spaces, without_repeats

Kind = Literal["replace", "add", "remove", "trigger", "sort", "dedupe", "spaces"]
MOST_LETTERS = 2_000
"""Letters of a text to find or to put in."""


@dataclass(frozen=True, kw_only=True)
class BulkEdit:
    """A change of captions, as people ask for it."""

    kind: Kind
    find: str = ""
    """The text, pattern or tags to look for."""
    text: str = ""
    """The replacement, or the tags to add."""
    regex: bool = False
    match_case: bool = False
    whole_words: bool = False
    at_end: bool = False
    """Whether tags are added after the others."""
    separator: str = ","
    keep: int = 0
    """Tags at the start that sorting leaves in place, as keep_tokens does in training."""

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "BulkEdit":
        """Read an edit from a request. Raises ValueError, one sentence that names the field."""
        known = {field.name: field for field in fields(cls)}
        chosen: dict[str, Any] = {}
        for name, value in values.items():
            if name not in known:
                raise ValueError(f"{name}: not a part of an edit")
            wanted = str if name == "kind" else type(known[name].default)
            if type(value) is not wanted:
                raise ValueError(f"{name}: must be {'a number' if wanted is int else wanted.__name__}")
            chosen[name] = value
        if chosen.get("kind") not in get_args(Kind):
            raise ValueError(f"kind: must be one of {', '.join(get_args(Kind))}")
        edit = cls(**chosen)
        edit.check()
        return edit

    def check(self) -> None:
        """Raise ValueError, one sentence that names the field, for an edit that cannot be made."""
        if self.kind in ("replace", "remove") and not self.find:
            raise ValueError("find: is empty; type the text to look for")
        if self.kind in ("add", "trigger") and not self.text.strip():
            raise ValueError("text: is empty; type the tag to add")
        if not self.separator.strip() or len(self.separator) > 10:
            raise ValueError("separator: must have 1 to 10 characters, one of them not a blank")
        if long := [name for name in ("find", "text") if len(getattr(self, name)) > MOST_LETTERS]:
            raise ValueError(f"{long[0]}: has more than {MOST_LETTERS:,} characters; shorten it")

    @property
    def label(self) -> str:
        """Return a few words about the edit, for the list of what can be undone."""
        find, text = _short(self.find), _short(self.text)
        return {
            "replace": f"Replace '{find}' with '{text}'",
            "add": f"Add '{text}'",
            "remove": f"Remove '{find}'",
            "trigger": f"Put '{text}' first",
            "sort": "Sort tags",
            "dedupe": "Remove repeated tags",
            "spaces": "Replace underscores with spaces",
        }[self.kind]


def edited(captions: Sequence[str], edit: BulkEdit) -> list[str]:
    """Return the captions after an edit, in their order. Raises ValueError, one sentence that names the field."""
    edit.check()
    if edit.kind == "replace":
        return _replaced(captions, edit)
    change = _CHANGES[edit.kind]
    return ["\n".join(_line(line, change, edit) for line in caption.split("\n")) for caption in captions]


def tag_counts(captions: Iterable[str], separator: str = ",") -> Counter[str]:
    """Return in how many captions each tag occurs."""
    counts: Counter[str] = Counter()
    for caption in captions:
        counts.update({tag for line in caption.split("\n") for tag in split_tags(line, separator)})
    return counts


def _replaced(captions: Sequence[str], edit: BulkEdit) -> list[str]:
    pattern = edit.find if edit.regex else re.escape(edit.find)
    if edit.whole_words:
        pattern = rf"(?<!\w)(?:{pattern})(?!\w)"
    if edit.regex:
        return substituted(pattern, edit.text, captions, ignore_case=not edit.match_case)
    known = re.compile(pattern, 0 if edit.match_case else re.IGNORECASE)
    return [known.sub(lambda _: edit.text, caption) for caption in captions]


def _line(line: str, change: Callable[[list[str], BulkEdit], list[str]], edit: BulkEdit) -> str:
    tags = split_tags(line, edit.separator)
    changed = change(tags, edit)
    return line if changed == tags else f"{edit.separator.strip()} ".join(changed)


def _added(tags: list[str], edit: BulkEdit) -> list[str]:
    new = apart_from(split_tags(edit.text, edit.separator), tags)
    return [*tags, *new] if edit.at_end else [*new, *tags]


def _removed(tags: list[str], edit: BulkEdit) -> list[str]:
    return apart_from(tags, split_tags(edit.find, edit.separator))


def _trigger_first(tags: list[str], edit: BulkEdit) -> list[str]:
    trigger = split_tags(edit.text, edit.separator)
    return [*trigger, *apart_from(tags, trigger)]


def _sorted(tags: list[str], edit: BulkEdit) -> list[str]:
    return [*tags[: edit.keep], *sorted(tags[edit.keep :], key=str.casefold)]


_CHANGES: dict[str, Callable[[list[str], BulkEdit], list[str]]] = {
    "add": _added,
    "remove": _removed,
    "trigger": _trigger_first,
    "sort": _sorted,
    "dedupe": lambda tags, edit: without_repeats(tags),
    "spaces": lambda tags, edit: [with_spaces(tag) for tag in tags],
}


def _short(text: str) -> str:
    return text if len(text) <= 30 else f"{text[:29]}…"
