"""The catalogues have every text of the page, and no other."""

from collections import Counter
from itertools import chain

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

import kohya_gui.server.studio_routes  # with all option groups  # noqa: F401
from kohya_gui.languages import language_routes
from kohya_gui.languages.catalogues import LANGUAGES, catalogue, parts
from tests.support.languages import page_texts
from tests.support.languages.translating import Translating, own_values


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_text_of_the_page_is_in_the_catalogue_and_no_other(language: str) -> None:
    known = Translating(catalogue(language))
    texts = page_texts.texts()
    missing = {
        source: left for source, of_source in texts.items() if (left := [t for t in of_source if not known.knows(t)])
    }
    assert not missing, "add these texts to kohya_gui/languages"
    stale = [text for text in catalogue(language) if text not in known.used and not page_texts.is_in_code(text)]
    assert not stale, "remove these texts from kohya_gui/languages"


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_translation_keeps_keys_and_has_no_other_values(language: str) -> None:
    """A value such as a plural "s" may be left out."""
    texts = catalogue(language).items()
    both = {text: (Counter(own_values(text)), Counter(own_values(words))) for text, words in texts}
    assert [text for text, (values, shown) in both.items() if shown - values] == []
    assert [text for text, (values, shown) in both.items() if any(v[0] != "{" for v in values - shown)] == []


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_text_is_translated_once(language: str) -> None:
    count = Counter(chain.from_iterable(parts(language).values()))
    assert [text for text, times in count.items() if times > 1] == []


def test_a_catalogue_is_sent_once_and_then_known() -> None:
    client = TestClient(Starlette(routes=language_routes.routes()))
    answer = client.get("/studio/language/zh-CN")
    assert answer.json()["Learning rate"] == "学习率"
    again = client.get("/studio/language/zh-CN", headers={"If-None-Match": answer.headers["ETag"]})
    assert again.status_code == 304


def test_an_unknown_language_is_a_404() -> None:
    answer = TestClient(Starlette(routes=language_routes.routes())).get("/studio/language/..%2f..%2ftabs")
    assert answer.status_code == 404
