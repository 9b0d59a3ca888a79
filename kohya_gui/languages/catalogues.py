"""The catalogues of the page's texts in other languages, which language.js applies in the browser.

A folder for each language has JSON files of English -> translation, one for each part of the page. A text with values
has `{1}`, `{2}`... in place of them, in any order; `{1!}` in a translation is a value that is itself a text of the
page, `{1?}` one that may be, and `{1#}` a number; a `{1!}` or `{1?}` may be empty. Keys of options and texts in
backticks stay as they are.
"""

import functools
import re
from collections.abc import Mapping
from pathlib import Path

from starlette.requests import HTTPConnection

from sd_scripts.formats.documents import parse_json

FOLDER = Path(__file__).parent
ENGLISH = "en"
LANGUAGES = {"zh-CN": "zh_CN"}
"""Language, as browsers call it -> its folder."""
COOKIE = "sd-scripts-language"
"""What the switch of the page chose."""


@functools.cache
def catalogue(language: str) -> Mapping[str, str]:
    """Return all texts of a language, by their English."""
    return {english: text for part in parts(language).values() for english, text in part.items()}


def parts(language: str) -> Mapping[str, Mapping[str, str]]:
    """Return the texts of each part of the page."""
    files = sorted((FOLDER / LANGUAGES[language]).glob("*.json"))
    return {file.stem: parse_json(file.read_text(encoding="utf-8")) for file in files}


def language_of(request: HTTPConnection) -> str:
    """Return the language that language.js would choose: of the switch, else the first that the browser prefers."""
    chosen = request.cookies.get(COOKIE)
    if chosen in (ENGLISH, *LANGUAGES):
        return chosen
    preferred = re.findall(r"(?:^|,)\s*(en|zh)\b", request.headers.get("accept-language", ""), re.IGNORECASE)
    return "zh-CN" if preferred and preferred[0].lower() == "zh" else ENGLISH


def translated(language: str, english: str, *values: object) -> str:
    """Return a text of a page that the server writes itself; `values` replace `{1}`, `{2}`... in it."""
    text = english if language == ENGLISH else catalogue(language).get(english, english)
    for number, value in enumerate(values, 1):
        text = text.replace(f"{{{number}}}", str(value))
    return text
