"""The page about the options matches the code."""

from pathlib import Path

from sd_scripts.settings.document import page


def test_the_page_is_fresh():
    written = (Path(__file__).parents[2] / "docs" / "options.md").read_text(encoding="utf-8")
    assert written == page(), "run: python -m sd_scripts.settings.document > docs/options.md"
