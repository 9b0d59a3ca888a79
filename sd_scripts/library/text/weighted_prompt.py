"""The syntax of weighted captions: `(text:1.3)`, `(text)` and `[text]`, nested, with `\\(` for a plain bracket."""

import math
import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter

ROUND = 1.1
"""Factor of a pair of round brackets; square brackets divide by it."""
LARGEST = 1000.0
"""Bound of a weight: deep nesting must not reach infinity, which times 0 is NaN."""
TOKENS = re.compile(
    r"(\\[()\[\]\\]|[(\[\])]|:\s{0,9}([+-]?(?:[0-9]{1,20}(?:\.[0-9]{0,20})?|\.[0-9]{1,20}))\s{0,9}\)|[^\\()\[\]:]+|[:\\])"
)


def parse_weights(prompt: str) -> list[tuple[str, float]]:
    """Return the prompt's pieces with their weights, in order; an unclosed bracket extends to the end.

    >>> parse_weights("a (red:1.3) cat")
    [('a ', 1.0), ('red', 1.3), (' cat', 1.0)]
    """
    pieces: list[str] = []
    starts, ends, factors = list[int](), list[int](), list[float]()
    """Of each pair of brackets, in opening order: the pieces before it, those up to its end, and its factor."""
    kinds, opened = list[str](), list[int]()

    def close(factor: float) -> None:
        kinds.pop()
        place = opened.pop()
        ends[place] = len(pieces)
        factors[place] = factor

    for text, number in TOKENS.findall(prompt):
        innermost = kinds[-1] if kinds else ""
        if text in ("(", "["):
            opened.append(len(starts))
            kinds.append(text)
            starts.append(len(pieces))
            ends.append(0)
            factors.append(1.0)
        elif number and innermost == "(":
            close(float(number))
        elif text == ")" and innermost == "(":
            close(ROUND)
        elif text == "]" and innermost == "[":
            close(1 / ROUND)
        else:
            pieces.append(text[1:] if len(text) > 1 and text[0] == "\\" else text)
    while kinds:
        close(ROUND if kinds[-1] == "(" else 1 / ROUND)
    # neighbours of equal weight are merged, so that the tokenizer sees whole words
    weighted = zip(pieces, _weights(len(pieces), starts, ends, factors), strict=True)
    return [("".join(text for text, _ in group), weight) for weight, group in groupby(weighted, key=itemgetter(1))]


def _weights(count: int, starts: Sequence[int], ends: Sequence[int], factors: Sequence[float]) -> Iterator[float]:
    """Yield the weight of each of `count` pieces: the product of the factors of the brackets around it."""
    around = [(count, 1.0)]
    """Where each bracket that is open here ends, and the product up to it."""
    bracket = 0
    for place in range(count):
        while around[-1][0] <= place:
            around.pop()
        while bracket < len(starts) and starts[bracket] == place:
            if ends[bracket] > place:
                around.append((ends[bracket], _bounded(around[-1][1] * factors[bracket])))
            bracket += 1
        yield around[-1][1]


def _bounded(weight: float) -> float:
    return weight if -LARGEST < weight < LARGEST else math.copysign(LARGEST, weight)
