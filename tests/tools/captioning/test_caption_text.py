"""Captions as text: what joins a new one to the one that is there, prompts, and the trigger word."""

import pytest

from sd_scripts.options.captioning.text import CaptionTextOptions, EndpointOptions, replacements
from sd_scripts.tools.captioning.caption_text import filled_prompt, framed, joined, one_line, with_trigger


@pytest.mark.parametrize(
    ("before", "existing", "expected"),
    [
        ("", "append", "cat, sitting"),
        ("a, Cat", "replace", "cat, sitting"),
        ("a, Cat", "append", "a, Cat, sitting"),
        ("a, Cat", "prepend", "sitting, a, Cat"),
        ("a\nsitting, b\n", "append", "a, cat, sitting\nsitting, b, cat"),  # each line is an alternative
    ],
)
def test_tags_join_those_that_are_there_without_repeats(before: str, existing: str, expected: str) -> None:
    assert joined(before, "cat, sitting", existing, separator=", ") == expected  # type: ignore[arg-type]
    assert joined(expected, "cat, sitting", existing, separator=", ") == expected  # type: ignore[arg-type]


def test_prose_that_is_there_is_not_added_again() -> None:
    once = joined("A photo.", "A cat sits.", "append")
    assert once == "A photo. A cat sits."
    assert joined(once, "A cat sits.", "append") == once
    assert joined("A photo.", "A cat sits.", "prepend") == "A cat sits. A photo."


def test_the_trigger_word_comes_first_once() -> None:
    assert with_trigger("1girl, SKS, hat", "sks", separator=", ") == "sks, 1girl, hat"
    assert with_trigger("a cat\nsks cat", "sks") == "sks, a cat\nsks cat"
    assert with_trigger("a cat", "") == "a cat"


def test_prefix_and_postfix_do_not_run_into_words() -> None:
    assert framed("a cat", "photo of", "outside") == "photo of a cat outside"
    assert framed("a cat", "photo, ", ", outside") == "photo, a cat, outside"


def test_a_prompt_is_filled_once() -> None:
    values = {"trigger": "{tags}", "folder": "cat", "tags": "secret"}
    assert filled_prompt("{trigger} a {folder}: {tags} {other}", values) == "{tags} a cat: secret {other}"


def test_an_answer_becomes_one_line_without_control_characters() -> None:
    assert one_line(" A cat.\n\nIt\tsits.\x1b[2J\0 ") == "A cat. It sits. [2J"
    assert len(one_line("x" * 100_000)) == 20_000


def test_replacements_may_contain_their_signs() -> None:
    assert replacements(r"a,b; c\,d,e\;f") == {"a": "b", "c,d": "e;f"}
    with pytest.raises(ValueError, match="'a' is not of the form from,to"):
        replacements("a")


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("file:///etc/passwd", "is not a web address"),
        ("http://[::1", "is not a web address"),
        ("http://host:99999999", "is not a web address"),
        ("http://me:secret@host/v1", "contains a password"),
        ("http://host/v1?key=secret", "leave out what follows"),
    ],
)
def test_an_address_is_a_servers(address: str, why: str) -> None:
    ((name, problem),) = EndpointOptions(endpoint=address).check()
    assert (name, why in problem) == ("endpoint", True)


def test_unknown_names_in_a_prompt_are_reported() -> None:
    assert list(CaptionTextOptions(prompt="{trigger} {folder} {tags} {}").check()) == []
    assert list(CaptionTextOptions(prompt="a {subject}").check()) == [
        ("prompt", "{subject} is not known; use {trigger}, {folder}, {tags}")
    ]
