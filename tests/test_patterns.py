"""Every regular expression of ours takes time in proportion to the text: files and texts come from others, and while
Python matches one pattern, no other thread of the page runs."""

import ast
import importlib
import re
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

ROOT = Path(__file__).parents[1]
LENGTHS = (300, 3_000, 20_000, 100_000)
MOST = 0.1
"""Seconds of the processor for a text of the greatest length."""
METHODS = ("match", "fullmatch", "search", "findall", "finditer", "sub", "split")
OF_PACKAGES = (
    *("sd_scripts.formats", "sd_scripts.machine", "sd_scripts.runs", "sd_scripts.options", "sd_scripts.settings"),
    *("sd_scripts.tools.doctor", "kohya_gui"),
)
"""Packages whose patterns are built from parts; elsewhere patterns are literals, which are found in the source."""
OF_PYTORCH = ("compile_report.py", "cuda_graph_skips.py")
"""Files whose patterns read only PyTorch's messages."""
PIECES = (
    *("a", "A", "0", " ", "\t", "\n", "_", "-", ".", ",", ":", ";", "/", "\\", '"', "'", "(", ")", "[", "]", "{", "}"),
    *(
        "<",
        ">",
        "=",
        "%",
        "@",
        "&",
        "?",
        "|",
        "#",
        "+",
        "*",
        "\r",
        "\x1b",
        "é",
        "a ",
        " a",
        "a_",
        "_1",
        "1_",
        "a.",
        ".1",
    ),
    *(
        "a:",
        "a: ",
        "a=",
        "a,",
        '"a',
        "a\\",
        '\\"',
        "a-",
        "-1",
        "--a ",
        "ab: 1,",
        "[a",
        "{a",
        "(a",
        "<a",
        "a b ",
        "\\\\",
    ),
)


def flags_of(call: ast.Call) -> int:
    names = {node.attr for arg in call.args[1:] for node in ast.walk(arg) if isinstance(node, ast.Attribute)}
    return sum(getattr(re, name) for name in names if isinstance(getattr(re, name, None), re.RegexFlag))


def patterns() -> dict[str, tuple["re.Pattern[str]", set[str]]]:
    """Return each pattern with the methods by which it is used, by where it is."""
    found: dict[str, tuple[re.Pattern[str], set[str]]] = {}
    assigned: dict[str, str] = {}
    uses: dict[str, set[str]] = {}
    for file in (*(ROOT / "sd_scripts").rglob("*.py"), *(ROOT / "kohya_gui").rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        if file.name in OF_PYTORCH or not re.search(
            r"\b(?:re\.|[A-Z_]{3,}\.(?:match|fullmatch|search|find|sub|split))", text
        ):
            continue
        for node in ast.walk(ast.parse(text)):
            place = f"{file.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"
            match node:
                case ast.Call(
                    func=ast.Attribute(value=ast.Name(id="re"), attr=name), args=[ast.Constant(value=str(literal)), *_]
                ):
                    found[place] = re.compile(literal, flags_of(node)), {name} & {*METHODS}
                case ast.Assign(targets=[ast.Name(id=name)]):
                    assigned[place] = name
                case ast.Attribute(value=ast.Name(id=name), attr=method) if method in METHODS:
                    uses.setdefault(name, set()).add(method)
        module = ".".join(file.relative_to(ROOT).with_suffix("").parts)
        if module.startswith(OF_PACKAGES) and "re.compile" in text:
            for name, value in vars(importlib.import_module(module)).items():
                for number, each in enumerate(value if isinstance(value, tuple) else [value]):
                    if isinstance(each, re.Pattern) and isinstance(each.pattern, str):
                        found[f"{module}.{name}[{number}]"] = each, set()
                        assigned[f"{module}.{name}[{number}]"] = name
    return {
        place: (pattern, methods or uses.get(assigned.get(place, ""), set()) or {"fullmatch"})
        for place, (pattern, methods) in found.items()
    }


def texts(pattern: "re.Pattern[str]", length: int) -> Iterator[str]:
    """Yield texts of this length: repetitions of short pieces and of the pattern's own words, alone and after a word,
    with different ends, so that what began to match does not."""
    words = list(dict.fromkeys(re.findall(r"[\w<>:/\"'=@ -]{2,}|[^\w\s\\]{1,3}", pattern.pattern)))
    pieces = dict.fromkeys([*PIECES, *words, *(word + more for word in words for more in ("a", "1", " ", ":", '"'))])
    begun = ((begin, piece) for begin in words for piece in ("a", "1", " ", "a ", "("))
    for begin, piece in (*(("", piece) for piece in pieces), *begun):
        text = begin + piece * (length // len(piece) + 1)
        yield from (text[: length - 1] + end for end in ("\0", "]"))
    for begin in words:
        yield ((begin + "a" * 700) * (length // 700 + 1))[:length]


def seconds(pattern: "re.Pattern[str]", method: str, text: str) -> float:
    """Return the processor's time for one text."""
    begin = time.process_time()
    match method:
        case "sub":
            pattern.sub("", text)
        case "finditer" | "search":
            for _ in pattern.finditer(text):
                pass
        case _:
            getattr(pattern, method)(text)
    return time.process_time() - begin


def slow_text(pattern: "re.Pattern[str]", method: str) -> str:
    """Return a text for which the pattern takes more than its time, or an empty text."""
    taken = [seconds(pattern, method, text) for text in texts(pattern, LENGTHS[0])]
    suspects = sorted(range(len(taken)), key=lambda number: taken[number])[-2:]
    for length in LENGTHS[1:]:  # the slowest short texts; not at full length first, which might take for ever
        for number in suspects:
            text = next(islice(texts(pattern, length), number, None))
            took = min(seconds(pattern, method, text) for _ in range(2))
            if took >= MOST * max(length / LENGTHS[-1], 0.1):
                return text
    return ""


def test_every_pattern_runs_in_proportional_time() -> None:
    slow = {
        f"{place}: {method} of {pattern.pattern}": text[:40]
        for place, (pattern, methods) in patterns().items()
        for method in methods
        if (text := slow_text(pattern, method))
    }
    assert not slow


def test_a_slow_pattern_is_found() -> None:
    assert slow_text(re.compile(r"\s+x"), "search")
