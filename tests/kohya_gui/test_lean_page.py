"""The GUI's changes to Gradio's code of the page."""

from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from kohya_gui.server import lean_page


def test_each_changed_file_is_served_under_gradios_name() -> None:
    client, changed = TestClient(Starlette(routes=lean_page.routes())), lean_page.changed()
    for pattern, changes in lean_page.CHANGES.items():
        (path,) = [path for path in lean_page.ASSETS.glob(pattern) if path.name in changed]
        answer = client.get(f"/assets/{path.name}")
        assert answer.headers["content-type"].startswith("text/javascript")
        original = path.read_text(encoding="utf-8")
        for before, after in changes:
            assert before in original
            assert after in answer.text
            assert before not in answer.text
        assert len(answer.text) == len(original) + sum(len(after) - len(before) for before, after in changes)


def test_files_of_a_different_gradio_are_left_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events, nodes, _ = lean_page.CHANGES["core-*.js"]
    (tmp_path / "core-new.js").write_text(events.before + nodes.before)  # one of three is missing
    (tmp_path / "statustracker-new.js").write_text(2 * lean_page.CLOCK.before)
    (tmp_path / "Blocks-new.js").write_text(lean_page.ONCE.before)
    monkeypatch.setattr(lean_page, "ASSETS", tmp_path)
    assert lean_page.changed() == {"Blocks-new.js": lean_page.ONCE.after}
