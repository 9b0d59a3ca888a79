"""The syntax of weighted captions: `(text:1.3)`, `(text)` and `[text]`, nested, with `\\(` for a plain bracket."""

import re

ROUND = 1.1
"""Factor of a pair of round brackets; square brackets divide by it."""
TOKENS = re.compile(
    r"\\[()\[\]\\]|[(\[\])]|:\s{0,9}([+-]?(?:\d{1,20}(?:\.\d{0,20})?|\.\d{1,20}))\s{0,9}\)|[^\\()\[\]:]+|[:\\]"
)


def parse_weights(prompt: str) -> list[tuple[str, float]]:
    """Return the prompt's pieces with their weights, in order; an unclosed bracket extends to the end.

    >>> parse_weights("a (red:1.3) cat")
    [('a ', 1.0), ('red', 1.3), (' cat', 1.0)]
    """
    pieces: list[tuple[str, float]] = []
    open_brackets: list[tuple[str, int]] = []  # kind and the number of pieces before it

    def close(weight: float) -> None:
        _, start = open_brackets.pop()
        pieces[start:] = [(text, old * weight) for text, old in pieces[start:]]

    for token in TOKENS.finditer(prompt):
        text, number = token[0], token[1]
        innermost = open_brackets[-1][0] if open_brackets else ""
        if text in ("(", "["):
            open_brackets.append((text, len(pieces)))
        elif number and innermost == "(":
            close(float(number))
        elif text == ")" and innermost == "(":
            close(ROUND)
        elif text == "]" and innermost == "[":
            close(1 / ROUND)
        else:
            pieces.append((text[1:] if len(text) > 1 and text[0] == "\\" else text, 1.0))
    while open_brackets:
        close(ROUND if open_brackets[-1][0] == "(" else 1 / ROUND)
    return _merge(pieces)


def _merge(pieces: list[tuple[str, float]]) -> list[tuple[str, float]]:
    """Merge neighbours of equal weight, so that the tokenizer sees whole words."""
    merged: list[tuple[str, float]] = []
    for text, weight in pieces:
        if merged and merged[-1][1] == weight:
            merged[-1] = (merged[-1][0] + text, weight)
        else:
            merged.append((text, weight))
    return merged
