"""The page about the options is what the code says."""

from pathlib import Path

from scripts_help import SDXL_LORA

from sd_scripts.options.document import page
from sd_scripts.options.spec import each_option


def test_the_page_is_fresh():
    written = (Path(__file__).parent.parent / "docs" / "options.md").read_text(encoding="utf-8")
    assert written == page(), "run: python -m sd_scripts.options.document > docs/options.md"


def test_the_page_names_every_option():
    text = page()
    assert all(f"| `{o.name}` |" in text for group in SDXL_LORA.groups for o in each_option(group))
