"""Captions as text: the prompt of an image, the trigger word, and what joins a new caption to the one that is there."""

from collections.abc import Mapping
from typing import Literal

from sd_scripts.formats.editing.tag_lists import apart_from, split_tags

Existing = Literal["skip", "append", "prepend", "replace"]
LONGEST = 20_000
"""Letters of a caption; the longest text encoder reads a tenth of that."""
PROMPTS = {
    "paragraph": "Describe this image for training an image generator, in one paragraph of at most 120 words: what is "
    "shown, its composition, light, colours and style. Begin with the main subject. Write nothing else.",
    "sentence": "Describe this image for training an image generator, in one sentence of at most 40 words: what is "
    "shown, then its style. Write nothing else.",
    "tags": "List what this image shows as booru tags in lower case, separated by commas, the most important first, at "
    "most 30. Write nothing else.",
}
NAMED = " Call the main subject {trigger}."
"""Follows a prompt of ours if there is a trigger word."""


def default_prompt(form: str, *, reads_tags: bool, trigger: str) -> str:
    """Return the prompt for a form. `reads_tags`: the family's captions are read by CLIP, which cuts off paragraphs."""
    if form == "tags":
        return PROMPTS["tags"]
    return PROMPTS["sentence" if reads_tags else "paragraph"] + (NAMED if trigger else "")


def filled_prompt(prompt: str, values: Mapping[str, str]) -> str:
    """Return a prompt with the values for the names in braces; what they contain is not read again."""
    parts = prompt.split("{")
    filled = parts[0]
    for part in parts[1:]:
        name, closed, rest = part.partition("}")
        filled += values[name] + rest if closed and name in values else "{" + part
    return filled


def one_line(text: str) -> str:
    """Return a model's answer as a caption: in one line, since each line of a caption file is an alternative, and
    without control characters."""
    plain = "".join(letter if letter.isprintable() else " " for letter in text)
    return " ".join(plain.split())[:LONGEST]


def tags_in(line: str, separator: str) -> list[str]:
    """Return the tags of a line; `separator` is as it is written, such as a comma and a blank."""
    return split_tags(line, separator.strip() or separator)


def joined(before: str, new: str, existing: Existing, *, separator: str = "") -> str:
    """Return the caption once a new text is appended to, put before, or written in place of `before`.

    `separator`: of tags, which are not repeated; empty for prose. Each line of `before` is an alternative and gets the
    new text. A text that is there already is not added again, so that a repeated job changes nothing.
    """
    lines = [line for line in before.splitlines() if line.strip()]
    if existing in ("skip", "replace") or not lines:
        return new
    return "\n".join(_joined_line(line.strip(), new, existing == "append", separator) for line in lines)


def _joined_line(line: str, new: str, append: bool, separator: str) -> str:
    if separator:
        old = tags_in(line, separator)
        more = apart_from(tags_in(new, separator), old)
        return separator.join([*old, *more] if append else [*more, *old])
    if new in line:
        return line
    return f"{line} {new}" if append else f"{new} {line}"


def with_trigger(caption: str, trigger: str, *, separator: str = "") -> str:
    """Return a caption whose lines begin with the trigger word; among tags it is not repeated."""
    if not trigger:
        return caption
    return "\n".join(_with_trigger(line, trigger, separator) for line in caption.split("\n"))


def _with_trigger(line: str, trigger: str, separator: str) -> str:
    if separator:
        first = tags_in(trigger, separator)
        return separator.join([*first, *apart_from(tags_in(line, separator), first)])
    return line if line.casefold().startswith(trigger.casefold()) else f"{trigger}, {line}" if line else trigger


def framed(caption: str, prefix: str, postfix: str) -> str:
    """Return a caption between a prefix and a postfix, with a blank where two words would meet."""
    before = f"{prefix} " if prefix[-1:].isalnum() or prefix[-1:] in (",", ".") else prefix
    after = f" {postfix}" if postfix[:1].isalnum() else postfix
    return f"{before}{caption}{after}".strip()
