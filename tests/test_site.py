"""README and docs also work as a site."""

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.run
ROOT = Path(__file__).parents[1]


def test_the_site_builds_with_every_link_and_anchor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("material", reason="mkdocs-material is not installed")
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    monkeypatch.setenv("NO_MKDOCS_2_WARNING", "1")
    build(load_config(str(ROOT / "mkdocs.yml"), strict=True, site_dir=str(tmp_path)))
    entries = json.loads((tmp_path / "search" / "search_index.json").read_text(encoding="utf-8"))["docs"]
    pages = {entry["location"].partition("#")[0] for entry in entries}
    assert {"index.html", "contributing.html", "options/data.html", "benchmarks/results/2026-11-26_flux.html"} <= pages
