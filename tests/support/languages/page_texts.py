"""The texts of the page, where the code declares them, in the form of the catalogues in kohya_gui/languages.

A value in a text is `{1}`, `{2}`... Elements of HTML from the server are texts of their own; those within a sentence
are values of it.
"""

import ast
import errno
import functools
import os
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

from kohya_gui.form.presets import PRESETS, preset_title, preset_words
from kohya_gui.tabs import TABS
from sd_scripts.families.cards.registry import preset_family
from sd_scripts.options.spec import OptionGroup
from sd_scripts.settings.catalog import FAMILY_TITLES
from sd_scripts.settings.family_options import each_option

ROOT = Path(__file__).parents[3]
GUI = ROOT / "kohya_gui"
MODULES = (GUI, ROOT / "sd_scripts")
"""Folders of modules with texts of the page, and messages of runs, which the page shows."""
NO_TEXT_BEFORE = re.compile(
    r"""(?: \b(?:class|id|type|for|role|name|rel|key|kind|accept|autocomplete|list|method|every)\ ?:\s*
    | \b(?:className|classList\.\w+\(|dataset\.\w+\ ===?|case)\s*
    | \b(?:querySelector(?:All)?|closest|matches|getElementById|(?:get|set|remove|has|toggle)Attribute|addEventListener
      |on|el|svg|ask|send|url|getItem|setItem|removeItem|getContext|whileShown|startsWith|endsWith|includes|styleSheet)
      \(\s*(?:"[\w-]+",\s*)?
    | "(?:aria-controls|aria-live|aria-haspopup|aria-keyshortcuts|data-[\w-]+)":\s* )$""",
    re.VERBOSE,
)
"""What stands before a string of a script that no person reads."""
TEXT = re.compile(r"(?:[A-Z][a-z]|[A-Za-z'’,]+ [A-Za-z(]|^[a-z]{3,}…$|\} [a-z]{2,}|[A-Z]{2,} |^[a-z]{2,} \{)")
"""Words: a capital, or two of them."""
NO_TEXT = re.compile(
    r"^(?:[#.\[:@/]|https?:|var\(|calc\(|rgba?\(|translate|[MmLlHhVvZz][\d .,-]+|[\w.-]+/[\w./-]+$|data:|[\w-]+=)"
    r"|^--[\w-]*$"
    r"|^(?:SELECT|INSERT|UPDATE|DELETE|CREATE|PRAGMA|ALTER|WHERE|ORDER|id = |state |path\b)"  # SQL
    r"|[<>]|\{\d+\}px|[;{] ?[a-z-]+: "
    r"|^\.?[\w-]+(?: [.#][\w-]+)+|\[[\w-]+[=\]^$*]| > [.#\w]|:(?:not|is|has|checked)\b|^[A-Z]\w+$(?<=[a-z][A-Z]\w{3})"
)
NAME = re.compile(
    r"(?:[A-Z]\w*-)+[A-Z]\w*|[\W\d]*"
    r"|\S*(?:[a-z]\w*\.[\w*]|[a-z][A-Z]|\w/\w|_[a-z]|\d-?[A-Za-z]|[a-z]\d)\S*"
    r"(?:,? (?:[A-Z0-9]\S*|[bf][fp]\d+|klein|base))*"
    r"|(?:[\w-]+_[\w-]+ ?)+|(?:[A-Z0-9][A-Z0-9.-]+\w*,? ?)+(?:fp\d+|bf16|klein(?: base)?)?"
)
"""Names and keys, which stay as they are."""
LEFT = frozenset(Path(__file__).with_name("page_names.txt").read_text(encoding="utf-8").splitlines())
"""Other names, and strings that nobody reads."""
GRADIO = ("number input for {1}", "range slider for {1}", "Reset to default value", "More tabs")
"""Names of Gradio's own controls, which follow the browser's language only."""
OTHERS = (
    *(os.strerror(code) for code in (errno.ENOENT, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)),
    *(os.strerror(code) for code in (errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.EEXIST, errno.ENOTEMPTY)),
    *(os.strerror(code) for code in (errno.EMFILE, errno.EBUSY, errno.ENOMEM, errno.EINVAL, errno.ESTALE, errno.ELOOP)),
    *(os.strerror(code) for code in (errno.ECONNREFUSED, errno.ECONNRESET, errno.ETIMEDOUT, errno.ENETUNREACH)),
    *(
        os.strerror(errno.EHOSTUNREACH),
        "Name or service not known",
        "Temporary failure in name resolution",
        "timed out",
    ),
    *(os.strerror(code) for code in (errno.EISDIR, errno.ENOTDIR, errno.ECONNABORTED, errno.EPIPE, errno.EADDRINUSE)),
    *("[Errno {1}] {2}", "[Errno {1}] {2}: '{3}'", "'{1}': {2}"),
    *("Expecting value", "Expecting ',' delimiter", "Expecting ':' delimiter", "Extra data", "Unterminated string"),
    *("Expecting property name enclosed in double quotes", "Invalid control character", "Invalid \\escape"),
    *("Illegal trailing comma before end of object", "Illegal trailing comma before end of array"),
    *("Expected '=' after a key in a key/value pair", "Expected newline or end of document after a statement"),
    *("Invalid initial character for a key part", "Invalid statement", "Invalid value", "Cannot overwrite a value"),
    *("Cannot declare {1} twice", "Duplicate inline table key {1}", "Unclosed array", "Unclosed inline table"),
    *("Unescaped '\\' in a string", "Illegal character {1}", "Found invalid character {1}", "Invalid hex value"),
    *("Expected ']' at the end of a table declaration", "Expected ']]' at the end of an array declaration"),
    *("Invalid date or datetime", "Cannot mutate immutable namespace {1}", "Cannot redefine namespace {1}"),
    *("Expected {1}", "Escaped character is not a Unicode scalar value", "at end of document"),
    *("image file is truncated", "image file is truncated ({1} bytes not processed)", "Truncated File Read"),
    *("cannot identify image file {1}", "broken data stream when reading image file"),
    *("unrecognized data stream contents when reading image file", "could not create decoder object"),
)
"""Common errors of the system and of the libraries that read JSON, TOML and images, which messages quote."""
TERMINAL = (
    *("kohya_gui/access/auth", "kohya_gui/access/c", "kohya_gui/access/login_throttle"),
    *("kohya_gui/command", "kohya_gui/demo", "kohya_gui/doctor", "kohya_gui/kohya/", "kohya_gui/languages/"),
    *("kohya_gui/print_command", "kohya_gui/server/lean", "kohya_gui/theme"),
    *("sd_scripts/demo", "sd_scripts/settings/document", "sd_scripts/settings/command_line"),
    *("sd_scripts/settings/compat/generate_flags", "sd_scripts/settings/compat/musubi_caching", "sd_scripts/testing/"),
    "sd_scripts/families/common/encoders/tiny",
)
"""Modules whose texts are for the terminal, or that nobody reads."""
LOGGED = re.compile(r"logger\.")
COUNTED = re.compile(r"""\bcounted\([^"'\n]*["'](\w+[^\Ws])["']\)""")
INLINE = ("a", "b", "code", "em", "i", "kbd", "button")
ATTRIBUTES = ("title", "aria-label", "placeholder", "alt", "label")


def is_text(literal: str) -> bool:
    words = re.sub(r"\{\d+\}", "", literal)
    is_told_apart = re.search(
        r"[A-Za-z]{4}|[A-Za-z]{2} [A-Za-z]{2}|^[A-Z]\w\w|^[a-z]{2,} $" if words != literal else r"[a-z]{2}", words
    )
    return bool(TEXT.search(literal)) and not NO_TEXT.search(literal) and bool(is_told_apart)


# Scripts


def script_literals(source: str) -> Iterator[tuple[str, str]]:
    """Yield the strings of a script, and the code before each; a text in several parts is one."""
    joined = re.sub(r'"\s*\+\n?\s*"', "", source)
    yield from _scan(joined, 0, "")[0]


def _scan(source: str, at: int, end: str) -> tuple[list[tuple[str, str]], int]:
    """Read code up to the character `end`; return its strings and the place after it."""
    found: list[tuple[str, str]] = []
    depth = 0
    while at < len(source):
        here = source[at]
        if source.startswith("//", at):
            at = source.find("\n", at)
            at = len(source) if at < 0 else at
        elif source.startswith("/*", at):
            at = source.index("*/", at) + 2
        elif here == "/" and re.search(r"(?:[(,=:\[!&|?{};+\n]|=>|return|^)\s*$", source[max(0, at - 20) : at]):
            at = _after_regex(source, at)
        elif here in "\"'":
            literal = re.compile(rf"{here}((?:\\.|[^\\{here}])*){here}").match(source, at)
            assert literal, source[at : at + 60]
            found.append((_plain(literal[1]), source[max(0, at - 90) : at]))
            at = literal.end()
        elif here == "`":
            inner, at = _template(source, at)
            found += inner
        elif here == end and not depth:
            return found, at + 1
        else:
            depth += {"{": 1, "}": -1}.get(here, 0)
            at += 1
    return found, at


def _template(source: str, at: int) -> tuple[list[tuple[str, str]], int]:
    before = source[max(0, at - 90) : at]
    found: list[tuple[str, str]] = []
    text = ""
    values = 0
    at += 1
    while source[at] != "`":
        if source[at] == "\\":
            text += _plain(source[at : at + 2])
            at += 2
        elif source.startswith("${", at):
            start = at + 2
            inner, at = _scan(source, start, "}")
            found += inner
            values += 1
            counted = re.match(r"(?:Studio\.)?counted\([^\"]*\"(\w+)\"\)\}$", source[start:at])
            text += f"{{{values}}}" + (f" {counted[1]}s" if counted else "")
        else:
            text += source[at]
            at += 1
    return [*found, (text, before)], at + 1


def _after_regex(source: str, at: int) -> int:
    in_class = False
    at += 1
    while source[at] != "/" or in_class:
        in_class = (in_class or source[at] == "[") and source[at] != "]"
        at += 2 if source[at] == "\\" else 1
    return at + 1


def _plain(text: str) -> str:
    text = re.sub(r"\\u\{?([0-9a-fA-F]{4})\}?", lambda code: chr(int(code[1], 16)), text)
    return re.sub(r"\\(.)", lambda escape: {"n": "\n", "t": "\t"}.get(escape[1], escape[1]), text)


# Python


@functools.cache
def python_literals(file: Path) -> tuple[str, ...]:
    """Return the strings of a module, without docstrings, asserts and what is logged."""
    return tuple(_literals(ast.parse(file.read_text(encoding="utf-8"))))


def _literals(tree: ast.Module) -> Iterator[str]:
    nodes = list(ast.walk(tree))
    left: set[int] = set()
    for node in nodes:
        if isinstance(node, ast.Expr):
            left.add(id(node.value))
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("add_argument", "add_parser"):
            left.update(id(each.value) for each in node.keywords)
        elif isinstance(node, ast.Call) and LOGGED.match(ast.unparse(node.func)):
            left.update(map(id, node.args))
        elif isinstance(node, ast.Assert):
            left.add(id(node.msg))
        elif isinstance(node, ast.JoinedStr):
            left.update(id(part) for part in node.values)
            left.update(id(part.format_spec) for part in node.values if isinstance(part, ast.FormattedValue))
    for node in nodes:
        if id(node) in left:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            yield _numbered(node)


def _numbered(node: ast.JoinedStr) -> str:
    text = ""
    values = 0
    for part in node.values:
        if isinstance(part, ast.Constant):
            text += str(part.value)
        else:
            values += 1
            text += f"{{{values}}}"
    return text


# HTML and Markdown


class _Pieces(HTMLParser):
    """The texts of HTML: those of blocks, with inline elements as values, and of the inline elements themselves."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[str] = []
        self._open: list[str] = [""]
        self.feed(html)
        self.close()
        while self._open:
            self._end()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value for name, value in attrs if name in ATTRIBUTES and value]
        if tag in ("br", "img", "input", "hr"):
            self._open[-1] += "\n"
        elif tag in INLINE:
            self._open.append("")
        else:
            self._end()
            self._open = [""]

    def handle_endtag(self, tag: str) -> None:
        if tag in INLINE and len(self._open) > 1:
            self._end()
            self._open[-1] += "{0}"
        else:
            while self._open:
                self._end()
            self._open = [""]

    def handle_data(self, data: str) -> None:
        self._open[-1] += data

    def _end(self) -> None:
        text = self._open.pop() if self._open else ""
        self.found += text.split("\n") if "{0}" not in text else [text]


def pieces(text: str) -> list[str]:
    """Return the texts of HTML, or the text if it is none."""
    text = re.sub(r"\*\*([^*]+)\*\*|\*([A-Z][^*]*)\*", lambda match: f"<em>{match[1] or match[2]}</em>", text)
    found = _Pieces(text).found if re.search(r"</?[a-z]", text) else [text]
    return [trimmed for each in found if (trimmed := _trimmed(each))]


def _trimmed(text: str) -> str:
    """Return a text without the values, usually elements, at its ends, and with its values in order."""
    text = re.sub(r"\s+", " ", text).strip()
    text = re.sub(r"^(?:\{0\}[,:]? ?)+|(?: ?\{0\})+$", "", text).strip()
    text = re.sub(r"(?<=\} )(image|step|caption)\{\d+\}(?= |$)", r"\1s", text)  # {1} image{2}: one or several
    count = iter(range(1, 100))
    return re.sub(r"\{\d+\}", lambda _: f"{{{next(count)}}}", text)


@functools.cache
def _of_scripts() -> tuple[tuple[str, str, str], ...]:
    return tuple(_each_script())


def _each_script() -> Iterator[tuple[str, str, str]]:
    for file in sorted((GUI / "static").rglob("*.js")):
        if "vendor" not in file.parts:
            for literal, before in script_literals(file.read_text(encoding="utf-8")):
                yield file.relative_to(ROOT).as_posix(), literal, before


def _of_modules(folder: Path) -> Iterator[tuple[str, str]]:
    for file in sorted(folder.rglob("*.py")):
        name = file.relative_to(ROOT).as_posix()
        if not name.startswith(TERMINAL):
            for literal in python_literals(file):
                yield name, literal


def _of_options() -> Iterator[tuple[str, str]]:
    """Yield labels, titles of groups and help texts; a help text is joined from these parts."""
    for group in _groups(OptionGroup):
        yield "options", group.title
        for option in each_option(group):
            if option.not_yet or option.refused or option.stands_for:
                continue
            yield "options", option.label
            yield "options", option.label.removesuffix(f" ({option.name})")
            for text in (option.help, *option.notes.values(), *(text for _, text in option.family_notes)):
                yield "help", text


def _groups(of: type[OptionGroup]) -> Iterator[type[OptionGroup]]:
    for group in of.__subclasses__():
        if group.__module__.startswith(("sd_scripts.", "kohya_gui.")) and ".compat." not in group.__module__:
            yield group
        yield from _groups(group)


def _of_presets() -> Iterator[tuple[str, str]]:
    for tab in TABS:
        for file in sorted((PRESETS / tab).glob("*.toml")):
            yield "presets", preset_words(file)
            yield "presets", preset_title(file)
            family = FAMILY_TITLES.get(preset_family(file.stem), "")
            title = preset_title(file).removeprefix(family).strip()
            yield "presets", title[:1].upper() + title[1:]


def _of_counts() -> Iterator[tuple[str, str]]:
    """Yield the numbers with a noun that `counted` writes."""
    for file in (*(GUI / "static").rglob("*.js"), *GUI.rglob("*.py"), *(ROOT / "sd_scripts").rglob("*.py")):
        for noun in COUNTED.findall(file.read_text(encoding="utf-8")):
            yield "counts", f"{{1}} {noun}s"


def texts() -> dict[str, list[str]]:
    """Return the texts that the page shows: file, or what they are -> texts."""
    found: dict[str, dict[str, None]] = {}
    for source, literal in (
        *_of_options(),
        *_of_presets(),
        *_of_counts(),
        *(("Gradio", text) for text in GRADIO),
        *(("others", text) for text in OTHERS),
    ):
        found.setdefault(source, {}).update(dict.fromkeys(pieces(literal)))
    scripts = ((name, text) for name, text, before in _of_scripts() if not NO_TEXT_BEFORE.search(before))
    modules = (each for folder in MODULES for each in _of_modules(folder))
    for source, literal in (*scripts, *modules):
        found.setdefault(source, {}).update(dict.fromkeys(filter(is_text, pieces(literal))))
    known: set[str] = set()
    result = {}
    for source, of_source in found.items():
        result[source] = [
            text for text in of_source if text not in known and text not in LEFT and not NAME.fullmatch(text)
        ]
        known.update(of_source)
    return {source: of_source for source, of_source in result.items() if of_source}


def is_in_code(text: str) -> bool:
    """Return whether a text, such as a single word, is a string of the page's code or the name of an entry there."""
    return text in _strings()


@functools.cache
def _strings() -> frozenset[str]:
    found = [text for _, text, _ in _of_scripts()]
    found += (text for folder in MODULES for _, text in _of_modules(folder))
    entries = re.compile(r"^ +(\w+): ", re.MULTILINE)
    names = (name for file in (GUI / "static").rglob("*.js") for name in entries.findall(file.read_text("utf-8")))
    return frozenset((*(piece for text in found for piece in pieces(text)), *names))
