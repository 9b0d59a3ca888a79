"""The syntax of weighted captions."""

import pytest

from sd_scripts.library.weighted_prompt import parse_weights


@pytest.mark.parametrize(
    ("prompt", "pieces"),
    [
        ("a cat", [("a cat", 1.0)]),
        ("", []),
        ("a (red:1.3) cat", [("a ", 1.0), ("red", 1.3), (" cat", 1.0)]),
        ("(a)", [("a", 1.1)]),
        ("((a))", [("a", 1.21)]),
        ("[a]", [("a", 1 / 1.1)]),
        ("(a [b])", [("a ", 1.1), ("b", 1.0)]),
        ("(a (b:2) c:0.5)", [("a ", 0.5), ("b", 1.0), (" c", 0.5)]),
        (r"a \(b\) \[c\]", [("a (b) [c]", 1.0)]),
        ("a: b, 16:9", [("a: b, 16:9", 1.0)]),
        ("(a", [("a", 1.1)]),
        ("a) b]", [("a) b]", 1.0)]),
        ("(a:.5)(b: 1.5 )", [("a", 0.5), ("b", 1.5)]),
    ],
)
def test_brackets_weigh_what_they_enclose(prompt: str, pieces: list[tuple[str, float]]) -> None:
    found = parse_weights(prompt)
    assert [text for text, _ in found] == [text for text, _ in pieces]
    assert [weight for _, weight in found] == pytest.approx([weight for _, weight in pieces])
