"""Bulk edits of captions."""

import pytest

from sd_scripts.formats.editing.tag_edits import BulkEdit, edited, tag_counts

ROWS = (
    # caption, edit, result
    ("cat, sofa", {"kind": "replace", "find": "CAT", "text": "dog"}, "dog, sofa"),
    ("cat, sofa", {"kind": "replace", "find": "CAT", "text": "dog", "match_case": True}, "cat, sofa"),
    ("cat, cathedral", {"kind": "replace", "find": "cat", "text": "dog", "whole_words": True}, "dog, cathedral"),
    ("a (b)", {"kind": "replace", "find": "(b)", "text": r"\1"}, r"a \1"),
    ("cat 12, 3 dogs", {"kind": "replace", "find": r"(\d+)", "text": r"<\1>", "regex": True}, "cat <12>, <3> dogs"),
    ("cat, sofa", {"kind": "add", "text": "ohwx"}, "ohwx, cat, sofa"),
    ("cat, sofa", {"kind": "add", "text": "a, Cat", "at_end": True}, "cat, sofa, a"),
    ("", {"kind": "add", "text": "ohwx"}, "ohwx"),
    ("cat,sofa ,  red", {"kind": "remove", "find": "Sofa"}, "cat, red"),
    ("cat,sofa ,  red", {"kind": "remove", "find": "so"}, "cat,sofa ,  red"),
    ("cat, ohwx, sofa", {"kind": "trigger", "text": "ohwx"}, "ohwx, cat, sofa"),
    ("ohwx, b, C, a", {"kind": "sort", "keep": 1}, "ohwx, a, b, C"),
    ("a, B, b, A", {"kind": "dedupe"}, "a, B"),
    ("long_hair, ^_^, o_o, (o)_(o)", {"kind": "spaces"}, "long hair, ^_^, o_o, (o)_(o)"),
    ("cat; sofa", {"kind": "remove", "find": "sofa", "separator": ";"}, "cat"),
    ("a, cat\nb, cat", {"kind": "remove", "find": "cat"}, "a\nb"),
)


def test_each_kind_of_edit_changes_captions_as_described() -> None:
    wrong = {}
    for caption, values, expected in ROWS:
        (result,) = edited([caption], BulkEdit.of(values))
        if result != expected:
            wrong[str(values)] = result
    assert wrong == {}


@pytest.mark.parametrize(
    ("find", "text", "problem"),
    [
        ("(a+)+$", "b", "takes more than"),
        ("(", "b", r"find: missing \)"),
        ("a", r"\2", "invalid group reference"),
        ("", "x" * 1_999, "longer than a caption may be"),
    ],
)
def test_a_pattern_has_limits(find: str, text: str, problem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sd_scripts.formats.editing.bounded_regex.SECONDS", 1.0)
    pattern = find or "x"
    with pytest.raises(ValueError, match=problem):
        edited(["a" * 60 + "!", "x" * 60], BulkEdit(kind="replace", find=pattern, text=text, regex=True))


def test_an_edit_from_a_request_is_checked() -> None:
    for values, problem in (
        ({"kind": "erase"}, "kind: must be one of"),
        ({"kind": "replace"}, "find: is empty"),
        ({"kind": "add", "text": " "}, "text: is empty"),
        ({"kind": "add", "text": 3}, "text: must be str"),
        ({"kind": "sort", "keep": True}, "keep: must be a number"),
        ({"kind": "sort", "folder": "/"}, "folder: not a part of an edit"),
        ({"kind": "add", "text": "a", "separator": " "}, "separator: must have"),
        ({"kind": "add", "text": "a" * 3_000}, "text: has more than 2,000"),
    ):
        with pytest.raises(ValueError, match=problem):
            BulkEdit.of(values)


def test_a_tag_counts_once_for_each_caption() -> None:
    assert tag_counts(["cat, cat, sofa", "cat\ncat, red"]) == {"cat": 2, "sofa": 1, "red": 1}
