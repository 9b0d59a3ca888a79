"""Recognition of secrets: which names of variables, options and keys have one as their value, and how secrets are
removed from texts and JSON. Settings files, event logs, the page and the diagnostics zip all read it here."""

import json
import logging
import os
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, quote_plus

REMOVED = "<removed>"
HANDED = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "WANDB_API_KEY", "OPENAI_API_KEY")
"""Variables that hand secrets to a run or tool."""
SHORTEST = 8
"""A shorter value may occur in a text by coincidence."""
DEEPEST = 100
"""JSON nested deeper is removed as a whole."""

VARIABLE = re.compile(r"KEY|PASS|PWD|PHRASE|TOKEN|SECRET|CREDENTIAL", re.I)
FOLDERS = ("PWD", "OLDPWD")
"""Variables of the shell that VARIABLE matches."""
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
INSIDE = re.compile(
    r"passw|passphrase|passcode|secret|credential|apikey|accesskey|privatekey|authkey|authtoken|accesstoken"
    r"|authorization|cookie"
)
"""Part of a name without its separators."""
LAST = re.compile(r"\w*(?:token|pwd|(?<!by)(?<!com)pass)|(?:seed|recovery|pass)phrase")
"""Last word of a name. Counts such as keep_tokens are plural."""
NO_TOKEN = frozenset({"per"})
NO_PASS = frozenset(
    (
        *("forward", "backward", "first", "second", "third", "last", "single", "multi", "one", "two"),
        *("hires", "by", "num", "per", "compile"),
    )
)
NO_KEY = frozenset(
    (
        *("cache", "foreign", "primary", "sort", "group", "state", "dict", "layer", "block", "json", "toml", "map"),
        *("hot", "short", "search", "index", "item", "compile", "graph", "shape", "bucket", "missing", "unknown"),
        *("unexpected", "option", "public", "dispatch", "metadata", "caption", "image", "text", "column", "mask"),
        *("video", "target", "source", "weight", "control", "conditioning"),
    )
)
"""Words before token, pass and key with which these mean something else."""

STEM = re.compile(
    r"[kK][eE][yY]|[pP](?:[aA][sS][sS]|[wW][dD]|[hH][rR][aA][sS][eE])|[tT][oO][kK][eE][nN]|[sS][eE][cC][rR][eE][tT]"
    r"|[cC](?:[rR][eE][dD][eE][nN]|[oO][oO][kK][iI][eE])|[aA][uU][tT][hH]"
)
"""Each name of a secret has one of these; `re.I` would take five times as long."""
LONGEST_NAME = 80
NAME_LETTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-")
NAME_REST = re.compile(rf"[A-Za-z0-9_.-]{{0,{LONGEST_NAME}}}")
WORD_BEFORE = re.compile(r"([A-Za-z]{1,10})[ ]\Z")
WORDS_BEFORE = frozenset(("api", "access", "auth", "account", "private", "secret", "seed", "recovery", "wandb"))
"""With a space after it part of a name, such as `api key`."""
SIGN = re.compile(
    r"(?P<closed>\\{0,8}[\"'])?(?P<sign>[ \t]{0,8}(?::=|=>|%3D|[=:])[ \t]{0,8}(?:(?:Bearer|Basic)[ ])?|,?[ \t]{1,8})"
)
"""The separator between a name and its value; after a flag a space is enough."""
OPENING = re.compile(r"\\{0,8}[\"']\Z")
TRIPLE = re.compile(r'"""(?:[^"]|"(?!"")){0,8000}"""')
QUOTED = re.compile(r'(\\{0,8}["\'])')
LISTED = re.compile(r"\[[^\]]{0,8000}\]?|\{[^}\n]*\}?")
OTHER_SCALAR = re.compile(r"[^,}\]\n]*")
IN_QUERY = re.compile(r"[^\s&#\"'<>]*")
BEFORE_NEXT_FLAG = re.compile(r"(?:(?![ \t]--?[A-Za-z])[^\n])*")
BEFORE_COMMAND = re.compile(r"(?:(?![ \t](?:python[\d.]{0,5}|accelerate|torchrun|bash)\b)[^\n])*")
REST_OF_LINE = re.compile(r"[^\n]*")

FORMS = (
    re.compile(r"(-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----)([^-]{1,20000})"),
    re.compile(r"(\b(?:Bearer|Basic)\s{1,8})([\w.~+/=-]{8,})", re.I),
    re.compile(r"(://)([^\s/\"'<>]{1,400})(?=@)"),
    re.compile(r"()\b((?:hf|gh[opsur]|github_pat|glpat|sk|wandb_v1)[_-][A-Za-z0-9_-]{16,})\b"),
    re.compile(r"()(?<![0-9A-Za-z])([0-9a-fA-F]{40})(?![0-9A-Za-z])"),
)
"""The text before a secret, and the secret, known by its form: private keys, headers, logins in addresses, tokens.
Keys of Weights & Biases have 40 hexadecimal digits."""


def is_secret_variable(name: str) -> bool:
    """Return whether an environment variable of this name may have a secret as its value."""
    return name not in FOLDERS and VARIABLE.search(name) is not None


def is_secret(name: str) -> bool:
    """Return whether a key, flag, header or variable of this name has a secret as its value.

    Names in texts are of all kinds, so this leaves out what VARIABLE only happens to match, such as keep_tokens.
    """
    if name.isupper() and "_" in name:  # written like a variable
        return is_secret_variable(name)
    words = [word.lower() for word in WORD.findall(name)]
    if not words:
        return False
    before, last = (words[-2] if len(words) > 1 else ""), words[-1]
    if INSIDE.search("".join(words)):
        return True
    if last == "key":
        return bool(before) and before not in NO_KEY
    if last in ("token", "tokens") and before in ("access", "api", "auth", "hf", "refresh"):
        return True
    return bool(LAST.fullmatch(last)) and before not in (NO_TOKEN if last.endswith("token") else NO_PASS)


def secret_values(variables: Mapping[str, str]) -> set[str]:
    """Return the secrets among environment variables."""
    return {value for name, value in variables.items() if is_secret_variable(name) and len(value) >= SHORTEST}


def handed_values(variables: Mapping[str, str]) -> list[str]:
    """Return the secrets that a run was handed."""
    return [value for name in HANDED if len(value := variables.get(name, "")) >= SHORTEST]


def without_secrets(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values without the keys, in tables too, that are named like secrets."""
    return {
        name: without_secrets(value) if isinstance(value, Mapping) else value
        for name, value in values.items()
        if not _is_secret_entry(name, value)
    }


def _is_secret_entry(name: str, value: Any) -> bool:
    """Return whether a key of a settings file is a secret; numbers and switches are none, whatever their name."""
    return is_secret(name) and not isinstance(value, int | float)


def secret_names(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names that `without_secrets` leaves out, those in tables with a dot."""
    for name, value in values.items():
        if _is_secret_entry(name, value):
            yield name
        elif isinstance(value, Mapping):
            yield from (f"{name}.{inner}" for inner in secret_names(value))


def ways_to_write(text: str) -> list[str]:
    """Return the forms in which a text may appear in other texts, longest first: unchanged, composed and decomposed
    Unicode, percent-encoded, and escaped for JSON and the shell."""
    forms = {text, unicodedata.normalize("NFC", text), unicodedata.normalize("NFD", text)}
    written = set(forms)
    for form in forms:
        encoded = form.encode("utf-8", errors="surrogateescape")
        written |= {quote(encoded), quote(encoded, safe=""), quote_plus(encoded)}
        written |= {json.dumps(form)[1:-1], json.dumps(form, ensure_ascii=False)[1:-1]}
        written.add(re.sub(r"([^\w./-])", r"\\\1", form))
    return sorted(written, key=len, reverse=True)


class Hider:
    """Replaces secrets in texts and JSON by REMOVED: known values, the text after the name of a secret, and text with
    the form of one. `also` are further names, with one of the stems in them, whose values are removed."""

    def __init__(self, values: Iterable[str] = (), also: Iterable[str] = ()) -> None:
        forms = {form for value in values for form in ways_to_write(value)}
        self._values = sorted(forms, key=len, reverse=True)
        self._also = frozenset(also)

    def known(self, text: str) -> str:
        """Return a text without the values that are known."""
        for value in self._values:
            text = text.replace(value, REMOVED)
        return text

    def text(self, text: str) -> str:
        """Return a text without secrets."""
        text = "".join(self._without_named(self.known(text)))
        for form in FORMS:
            text = form.sub(rf"\1{REMOVED}", text)
        return text

    def json(self, value: Any, finish: Callable[[str], str] = str) -> Any:
        """Return a parsed JSON value without secrets; `finish` changes each text that is left, keys too."""
        return self._json(value, lambda text: finish(self.text(text)), DEEPEST)

    def _json(self, value: Any, cleaned: Callable[[str], str], depth: int) -> Any:
        if isinstance(value, str):
            return cleaned(value)
        if not isinstance(value, dict | list):
            return value
        if not depth:
            return REMOVED
        if isinstance(value, dict):
            return {
                cleaned(name): REMOVED if self._names(name) else self._json(each, cleaned, depth - 1)
                for name, each in value.items()
            }
        after_flag = [False, *(isinstance(each, str) and self._is_flag(each) for each in value)]
        pairs = zip(value, after_flag, strict=False)
        return [REMOVED if after else self._json(each, cleaned, depth - 1) for each, after in pairs]

    def _names(self, name: str) -> bool:
        return name in self._also or is_secret(name)

    def _is_flag(self, word: str) -> bool:
        """Return whether the word after this one on a command line is a secret."""
        return word.startswith("-") and "=" not in word and self._names(word.lstrip("-"))

    def _without_named(self, text: str) -> Iterable[str]:
        """Yield the parts of a text, without what follows the name of a secret."""
        place = 0
        while stem := STEM.search(text, place):
            name = _name_around(text, stem, place)
            sign = SIGN.match(text, name.end)
            if sign and (name.is_flag or sign["sign"].strip(" \t,")) and self._names(name.text):
                shown, end = _value(text, name, sign)
                yield text[place : sign.end()] + shown
            else:
                end = name.end
                yield text[place:end]
            place = end
        yield text[place:]


def without_handed(text: str) -> str:
    """Return a text without the secrets that the process was handed, which errors of libraries may quote."""
    return Hider(handed_values(os.environ)).known(text)


class HidingFormatter(logging.Formatter):
    """Formats records as `without_handed` does."""

    def format(self, record: logging.LogRecord) -> str:
        return without_handed(super().format(record))


class _Name(NamedTuple):
    text: str
    start: int
    end: int
    is_flag: bool
    before: str
    """The quote, with its backslashes, or the letter before it."""


def _name_around(text: str, stem: "re.Match[str]", least: int) -> _Name:
    """Return the name that a stem is part of."""
    start, least = stem.start(), max(least, stem.start() - LONGEST_NAME)
    while start > least and text[start - 1] in NAME_LETTERS:
        start -= 1
    if start and text[start - 1] == "\\" and text[start] in "nrt" and start < stem.start():  # an escaped line break
        start += 1
    end = NAME_REST.match(text, stem.end()).end()  # type: ignore[union-attr]  # it matches nothing, too
    name = text[start:end]
    word = WORD_BEFORE.search(text[max(start - 11, 0) : start])
    if word and (word[1].lower() in WORDS_BEFORE or (name == "pass" and word[1].lower() in NO_PASS)):
        name = f"{word[1]} {name}"
    opened = OPENING.search(text[max(start - 9, 0) : start])
    return _Name(name.lstrip("-"), start, end, name.startswith("-"), opened[0] if opened else text[start - 1 : start])


def _value(text: str, name: _Name, sign: "re.Match[str]") -> tuple[str, int]:
    """Return the replacement of the value behind a name, in its quotes, and where the value ends."""
    start = sign.end()
    if whole := TRIPLE.match(text, start):
        return f'"""{REMOVED}"""', whole.end()
    if opened := QUOTED.match(text, start):
        mark = opened[0]
        end = _end_of_quoted(text, opened.end(), mark)
        while text.startswith(mark, end) and text[end + len(mark) : end + len(mark) + 1].isalnum():  # a quote in it
            end = _end_of_quoted(text, end + len(mark), mark)
        closed = text.startswith(mark, end)
        return f"{mark}{REMOVED}{mark if closed else ''}", end + len(mark) * closed
    if listed := LISTED.match(text, start):
        return REMOVED, listed.end()
    if sign["closed"]:
        return REMOVED, _end(OTHER_SCALAR, text, start)
    if name.before[-1:] in ('"', "'"):  # the quotes are around name and value
        return REMOVED, _end_of_quoted(text, start, name.before)
    if name.before in ("?", "&"):
        return REMOVED, _end(IN_QUERY, text, start)
    if name.is_flag:
        return REMOVED, _end(BEFORE_NEXT_FLAG, text, start)
    return REMOVED, _end(BEFORE_COMMAND if sign["sign"] == "=" else REST_OF_LINE, text, start)


def _end(pattern: "re.Pattern[str]", text: str, start: int) -> int:
    found = pattern.match(text, start)
    return found.end() if found else start


def _end_of_quoted(text: str, start: int, mark: str) -> int:
    """Return where the closing quote begins, or the line ends. A quote behind more backslashes than `mark` has is part
    of the text."""
    escapes = len(mark) - 1
    letter = mark[-1]
    line = text.find("\n", start)
    line = len(text) if line < 0 else line
    place = start
    while (place := text.find(letter, place, line)) >= 0:
        before = place
        while before > start and text[before - 1] == "\\":
            before -= 1
        if place - before == escapes:
            return before
        place += 1
    return line
