"""Publishing from the page: the card of a real run folder, saved next to the file, and a zip to download."""

import io
import os
import re
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from starlette.applications import Starlette
from starlette.testclient import TestClient

from kohya_gui.access.allowed_paths import EVERYWHERE, AllowedPaths
from kohya_gui.runs import live_routes
from kohya_gui.tools.publish_routes import KEPT_SECONDS, PACKED, routes
from sd_scripts.formats.private import private_folder
from sd_scripts.formats.toml_files import write_toml
from sd_scripts.runs.folder import new_run_folder
from sd_scripts.runs.queue import RunQueue
from sd_scripts.runs.store import RunStore, state_folder
from tests.support.runs import wait_for

pytestmark = pytest.mark.run


class Studio:
    """A finished run and the routes, as a browser reaches them."""

    def __init__(self, folder: Path, allowed: AllowedPaths = EVERYWHERE) -> None:
        queue = RunQueue(RunStore(folder / "runs.sqlite"))
        run = new_run_folder(folder / "runs", "cat")
        self.file = folder / "cat.safetensors"
        safetensors.torch.save_file({"lora_unet_x.lora_down.weight": torch.ones(2, 2)}, self.file)
        write_toml(run.config, {"family": "sdxl", "method": "lora", "output_name": "cat", "network_dim": 2})
        log = run.log()
        log("started", family="sdxl", method="lora", max_steps=1, images=2)
        log("saved", path=str(self.file), step=1)
        log("finished", step=1, path=str(self.file))
        log.close()
        self.run = queue.store.add(run, name="cat", tab="lora", family="sdxl", state="finished").id
        served = [*routes(queue, allowed), *live_routes.routes(queue, allowed)]
        self.browser = TestClient(Starlette(routes=served))

    def get(self, path: str) -> Any:
        return self.browser.get(f"/studio/run/{self.run}/{path}")

    def publish(self, **body: Any) -> Any:
        return self.browser.post(f"/studio/run/{self.run}/publish", json=body)

    def outcome(self) -> dict[str, Any]:
        wait_for(lambda: not self.get("published").json()["running"], 60)
        told: dict[str, Any] = self.get("published").json()
        return told


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("XDG_STATE_HOME", "LOCALAPPDATA"):
        monkeypatch.setenv(name, str(tmp_path / "state"))


def _fields_of(answer: dict[str, Any]) -> list[str]:
    """Return the ids of the fields to which a message leads."""
    return re.findall('data-field="([^"]+)"', answer["html"])


def test_the_edited_card_is_saved_next_to_the_file_and_packed(tmp_path: Path, state: None) -> None:
    studio = Studio(tmp_path)
    told = studio.get("card").json()
    assert told["text"].startswith("---\n")
    assert told["names"] == ["README.md", "cat.safetensors"]
    assert told["sources"] == {"README.md": str(tmp_path / "cat-README.md"), "cat.safetensors": str(studio.file)}
    assert studio.get("published").status_code == 404
    assert studio.publish(text="my card", zip=True).status_code == 200
    assert studio.outcome() == {"running": False, "url": "", "zip": True, "error": "", "html": ""}
    with zipfile.ZipFile(io.BytesIO(studio.get("published/zip").content)) as packed:
        assert packed.read("README.md") == b"my card\n"
        assert packed.read("cat.safetensors") == studio.file.read_bytes()
    assert studio.get("published/zip").status_code == 404
    assert list((tmp_path / "state").rglob("*.zip")) == []
    assert (tmp_path / "cat-README.md").read_text() == "my card\n"
    assert studio.get("card").json()["text"] == "my card\n"


def test_a_zip_that_nobody_downloaded_is_removed_a_day_later(tmp_path: Path, state: None) -> None:
    folder = private_folder(state_folder())
    for number, age in ((1, 2 * KEPT_SECONDS), (2, 0)):
        zip_file = folder / PACKED.format(number)
        zip_file.touch()
        os.utime(zip_file, (time.time() - age,) * 2)
    Studio(tmp_path)
    assert [file.name for file in folder.glob("*.zip")] == ["published-2.zip"]


def test_a_token_reaches_the_upload_and_no_file(tmp_path: Path, state: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    studio = Studio(tmp_path)
    assert studio.publish(text="card", repo_id="me/my-cat", token="hf_TheTokenOfATest").status_code == 200
    outcome = studio.outcome()
    assert outcome["error"].startswith("--repo_id: nothing was uploaded to 'me/my-cat' (")
    assert _fields_of(outcome) == ["publish-repo_id"]
    holding = [path for path in tmp_path.rglob("*") if path.is_file() and b"hf_TheToken" in path.read_bytes()]
    assert holding == []


def test_a_run_that_cannot_be_published_is_refused_in_one_sentence_that_links_to_its_field(
    tmp_path: Path, state: None
) -> None:
    studio = Studio(tmp_path)
    for body, name, problem in (
        ({"text": " ", "zip": True}, "text", "the card must have"),
        ({"text": "card"}, "repo_id", "enter the repository"),
        ({"text": "card", "repo_id": 3}, "repo_id", "enter the repository"),
        ({"text": "card", "repo_id": "a/b/c"}, "repo_id", "'a/b/c' is not a repository name"),
    ):
        answer = studio.publish(**body)
        assert answer.status_code == 400
        assert answer.json()["error"].startswith(f"{name}: {problem}")
        assert _fields_of(answer.json()) == [f"publish-{name}"]
    assert studio.get("card").json()["fields"].keys() == {"text", "repo_id", "token", "public"}
    assert not (tmp_path / "cat-README.md").exists()


def test_files_outside_the_allowed_folders_are_not_published(tmp_path: Path, state: None) -> None:
    (tmp_path / "mine").mkdir()
    studio = Studio(tmp_path, AllowedPaths.within([tmp_path / "mine"]))
    assert "is outside the allowed folders" in studio.get("card").json()["error"]
    assert "is outside the allowed folders" in studio.publish(text="card", zip=True).json()["error"]
