"""The syntax of weighted captions."""

import math
import time

import pytest

from sd_scripts.library.text.weighted_prompt import parse_weights


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


@pytest.mark.parametrize("piece", ["(a", "[(b", "(c:1.2)", "d)", "\\(", "(a b [", "(:9", "e:3)(", "(((", "]("])
def test_any_nesting_is_read_in_proportional_time(piece: str) -> None:
    prompt = (piece * 100_000)[:100_000]
    took = []
    for _ in range(3):
        begin = time.process_time()
        weights = [weight for _, weight in parse_weights(prompt)]
        took.append(time.process_time() - begin)
    assert min(took) < 0.3  # it takes 0.1; in quadratic time it would be minutes
    assert all(map(math.isfinite, weights))


def test_excessive_weights_are_bounded() -> None:
    assert parse_weights("(((red:99999999):99999999):0.5)(cat:-99999999)") == [("red", 1000.0), ("cat", -1000.0)]
    assert parse_weights("(" * 9 + "a:99999999999999999999)" + ":99999999999999999999)" * 7 + ":0)") == [("a", 0.0)]
