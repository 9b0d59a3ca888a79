"""What people read is written as a native speaker would: words.toml has wording that reads as translated."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from sd_scripts.formats.documents import parse_toml

ROOT = Path(__file__).parents[1]
WORDS = Path(__file__).with_name("words.toml")
FOLDERS = ("sd_scripts", "kohya_gui", "benchmarks", "tests")
LEFT = ("kohya_gui/static/vendor/", "benchmarks/results/")
"""Files of others, and results as they were written at their date."""
BREAK = re.compile(r"\"\s*\n\s*[rf]?\"|'\s*\n\s*[rf]?'")
"""Between two parts of a text that continues on the next line."""
SCRIPT = re.compile(r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|`(?:\\.|[^`\\])*`""", re.DOTALL)
"""Comments and strings in JavaScript."""
COMMENT = re.compile(r"(?:^ *|  )(# .*)", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Wording:
    pattern: str
    better: str
    example: str
    allowed: str = ""
    names: bool = False

    @cached_property
    def regex(self) -> "re.Pattern[str]":
        return re.compile(self.pattern.replace(" ", r"\s+"), re.IGNORECASE)

    def search(self, text: str) -> "re.Match[str] | None":
        if self.allowed:
            text = re.sub(self.allowed.replace(" ", r"\s+"), lambda match: "." * len(match[0]), text, flags=re.I)
        return self.regex.search(text)


def wordings() -> list[Wording]:
    return [Wording(**entry) for entry in parse_toml(WORDS.read_text(encoding="utf-8"))["wording"]]


def spoken(name: str) -> str:
    """Return the name of a test as a sentence."""
    return name.removeprefix("test_").replace("_", " ")


def python_texts(source: str, *, is_test: bool) -> Iterator[tuple[int, str, bool]]:
    """Yield line and text of docstrings, comments and names of tests, and of messages outside of tests; the flag says
    whether it is a name."""
    nodes = list(ast.walk(ast.parse(source)))
    documents = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    parts = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in nodes:
        match node:
            case ast.FunctionDef(name=name) if is_test and name.startswith("test_"):
                yield node.lineno, spoken(name), True
            case ast.Constant(value=str(text)) if id(node) in documents:
                yield node.lineno, text, False
            case ast.Constant(value=str(text)) if not is_test and id(node) not in parts and len(text.split()) > 2:
                yield node.lineno, text, False
            case ast.JoinedStr(values=values) if not is_test:
                yield node.lineno, "".join(v.value if isinstance(v, ast.Constant) else "{}" for v in values), False
    for match in COMMENT.finditer(source):
        yield source.count("\n", 0, match.start(1)) + 1, match[1], False


def script_texts(source: str) -> Iterator[tuple[int, str, bool]]:
    """Yield line and text of comments, and of strings with more than two words."""
    for match in SCRIPT.finditer(source):
        if match[0].startswith("/") or len(match[0].split()) > 2:
            yield source.count("\n", 0, match.start()) + 1, match[0], False


def texts(suffix: str, source: str, *, is_test: bool) -> Iterator[tuple[int, str, bool]]:
    match suffix:
        case ".py":
            return python_texts(source, is_test=is_test)
        case ".js":
            return script_texts(source)
        case _:
            return iter([(1, source, False)])


def files() -> Iterator[tuple[str, Path]]:
    code = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*.*"))
    for path in (ROOT / "gui.py", *code, *ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")):
        name = path.relative_to(ROOT).as_posix()
        if path.suffix in (".py", ".js", ".md") and not name.startswith(LEFT):
            yield name, path


def findings() -> Iterator[str]:
    """Yield "file:line: words -> better words"."""
    table = wordings()
    anything = re.compile("|".join(wording.regex.pattern for wording in table), re.IGNORECASE | re.MULTILINE)
    for name, path in files():
        source = path.read_text(encoding="utf-8")
        if not anything.search(BREAK.sub("", source)) and not anything.search(source.replace("_", " ")):
            continue
        for line, text, is_name in texts(path.suffix, source, is_test=name.startswith("tests/")):
            for wording in table:
                if (is_name or not wording.names) and (match := wording.search(text)):
                    line_of_match = line + text.count("\n", 0, match.start())
                    yield f"{name}:{line_of_match}: {' '.join(match[0].split())!r} -> {wording.better}"


def test_texts_and_test_names_read_as_english() -> None:
    assert list(findings()) == []


def test_each_wording_is_found_in_its_example() -> None:
    table = wordings()
    assert [wording.pattern for wording in table if not wording.search(wording.example)] == []
    assert [wording.pattern for wording in table for other in table if other.search(wording.better)] == []


def test_docstrings_comments_messages_and_names_are_read() -> None:
    source = (
        '"""Of a module."""\nx = 1  # the reason\nmessage = f"the file {x} "\\\n    "is missing"\ndef test_a_b(): ...\n'
    )
    assert sorted(python_texts(source, is_test=False)) == [
        (1, "Of a module.", False),
        (2, "# the reason", False),
        (3, "the file {} is missing", False),
    ]
    assert (5, "a b", True) in [*python_texts(source, is_test=True)]
    script = "// the reason\nlabel('Add to queue', 'id')"
    assert [*script_texts(script)] == [(1, "// the reason", False), (2, "'Add to queue'", False)]
