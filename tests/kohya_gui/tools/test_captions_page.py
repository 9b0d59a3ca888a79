"""The tab Captions without a browser: fields, hints, refusals, and a job from a try to its captions."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from kohya_gui.access.allowed_paths import EVERYWHERE, AllowedPaths
from kohya_gui.tools.captions import FORM, HIDDEN, described
from kohya_gui.tools.captions_routes import routes
from sd_scripts.runs.queue import RunQueue
from sd_scripts.runs.store import RunStore
from sd_scripts.settings.compat.captioning import OPTIONS
from tests.support.captioning_models.tagging import (
    CaptionServer,
    caption_server,
    captions,
    reply,
    write_colours,
    write_tagger,
)
from tests.support.runs import wait_for

__all__ = ["caption_server"]
SECRET = "sk-TheKeyOfATest0123456789"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "state"))
    return tmp_path


def page(home: Path, allowed: AllowedPaths = EVERYWHERE) -> TestClient:
    return TestClient(Starlette(routes=routes(RunQueue(RunStore(home / "runs.sqlite")), allowed)))


def refusal(client: TestClient, **body: Any) -> str:
    answer = client.post("/studio/captions/start", json=body)
    assert answer.status_code == 400
    return re.sub("<.*?>", "", answer.json().get("html") or answer.json()["error"]).removeprefix("✕")


def ended(client: TestClient) -> Any:
    wait_for(lambda: client.get("/studio/captions/job").json()["over"])
    return client.get("/studio/captions/job").json()


def test_every_option_has_a_field_and_a_method_that_shows_it() -> None:
    fields = {field["name"]: field for field in described()["fields"]}
    assert fields.keys() == OPTIONS.keys() - {*HIDDEN}
    assert all(field["label"] and field["help"] for field in fields.values())
    assert {*fields["thresh"]["methods"]} == {"tagger"}
    assert {*fields["prefix"]["methods"]} == {"tagger", "captioner", "endpoint"}
    assert fields["trigger"]["methods"] == []
    families = {name: tags for name, _, tags in described()["families"]}
    assert (families["sdxl"], families["flux"], families["qwen_image"]) == (True, False, False)


def test_values_of_other_methods_do_not_reach_the_command() -> None:
    values = FORM.read_values(
        {"method": "endpoint", "thresh": 0.9, "endpoint": "http://h/v1", "model": "m", "seed": "7"}
    )
    assert FORM.command(values)[2:] == [
        *("sd_scripts.tools.captioning", "--method", "endpoint", "--model", "m", "--seed", "7"),
        *("--endpoint", "http://h/v1"),
    ]


def test_hints_show_counts_and_the_size_and_licence_of_a_model(home: Path) -> None:
    client = page(home, AllowedPaths.within([home]))
    images = write_colours(home / "10_cat")
    (images / "red.txt").write_text("mine")

    def look(images: list[str] | None = None, **values: Any) -> Any:
        return client.post("/studio/captions/look", json={"values": values, "images": images}).json()

    told = look(train_data_dir=str(images))
    assert told["train_data_dir"] == {"text": "3 images, 1 with a .txt file", "good": True}
    assert "a download of 1.26 GB, licence Apache-2.0" in told["model"]["text"]
    assert told["missing"] is True
    assert look(train_data_dir=str(home / "no"))["train_data_dir"]["good"] is False
    assert look([str(images / "red.png")])["train_data_dir"]["text"] == "1 image chosen"
    assert look(model=str(write_tagger(home / "tagger")))["model"]["good"] is True
    assert look(method="captioner", model="me/unknown")["missing"] is True
    assert "outside the allowed folders" in look(train_data_dir="/etc")["train_data_dir"]["text"]
    assert "outside the allowed folders" in look(model="/etc/ssl")["model"]["text"]


def test_mistakes_and_paths_outside_are_refused(home: Path) -> None:
    images = write_colours(home / "data" / "10_cat")
    client = page(home, AllowedPaths.within([home / "data"]))
    (home / "data" / "link.png").symlink_to("/etc/hostname.png")
    good = {"train_data_dir": str(images)}
    assert refusal(client, values={}) == "Image folder (train_data_dir): not set; choose the folder of the images"
    assert "(thresh): 1.5 is outside 0.0..1.0" in refusal(client, values={**good, "thresh": 1.5})
    assert "outside the allowed folders" in refusal(client, values={"train_data_dir": str(home)})
    assert "outside the allowed folders" in refusal(client, values={**good, "model": str(home)})
    assert "outside the allowed folders" in refusal(client, values={**good, "model_dir": str(home)})
    assert "outside the allowed folders" in refusal(client, values={}, images=["/etc/a.png"])
    assert "outside the allowed folders" in refusal(client, values={}, images=[str(home / "data" / "link.png")])
    assert "is not an image" in refusal(client, values={}, images=["/etc/passwd"])
    assert "are not a list of paths" in refusal(client, values={}, images=["/a.png\n/etc/b.png"])
    assert "not a web address" in refusal(client, values={**good, "method": "endpoint", "endpoint": "file:///etc"})
    both = refusal(client, values={**good, "method": "endpoint"})
    assert "Address (endpoint): not set" in both
    assert "Model (model): not set" in both
    assert client.post("/studio/captions/resume", json={}).status_code == 404


@pytest.mark.run
def test_a_try_a_job_and_its_captions(home: Path) -> None:
    images = write_colours(home / "10_cat")
    tagger = write_tagger(home / "tagger")
    (images / "red.txt").write_text("mine\n")
    client = page(home)
    values = {"train_data_dir": str(images), "model": str(tagger), "trigger": "sks"}
    assert client.post("/studio/captions/start", json={"values": values, "try": True}).json() == {"ok": True}
    assert "already being captioned" in refusal(client, values=values, **{"try": True})
    tried = ended(client)
    assert tried["state"] == "finished"
    assert [row["after"] for row in tried["result"]["captions"]] == [
        *("sks, blue sky", "sks, green hair", "sks, red fox (forest)")
    ]
    assert client.get("/studio/captions/image/0").content.startswith(b"\xff\xd8")
    assert client.get("/studio/captions/image/9").status_code == 404
    assert captions(images) == {"red": "mine"}
    chosen = [str(images / "blue.png")]
    client.post("/studio/captions/start", json={"values": values, "images": chosen})
    assert ended(client)["result"]["written"] == 1
    assert captions(images) == {"blue": "sks, blue sky", "red": "mine"}


@pytest.mark.run
def test_jobs_wait_for_each_other_also_over_a_restart(home: Path, caption_server: CaptionServer) -> None:
    folders = [write_colours(home / name, "red") for name in ("a", "b", "c", "d")]
    caption_server.drips = True  # the first job does not end by itself
    first = {"method": "endpoint", "endpoint": caption_server.url, "model": "m"}
    second = {"model": str(write_tagger(home / "tagger"))}
    client = page(home)
    for folder, values in zip(folders, (first, second, second, second), strict=True):
        body = {"values": {**values, "train_data_dir": str(folder)}, "key": SECRET}
        assert client.post("/studio/captions/start", json=body).json() == {"ok": True}
    listed = client.get("/studio/captions/job").json()["waiting"]
    assert [each["folder"] for each in listed] == [str(folder) for folder in folders[1:]]
    client.post("/studio/captions/remove", json={"id": listed[1]["id"]})
    (saved,) = (home / "state").rglob("waiting-captions.json")
    assert SECRET not in saved.read_text()
    earlier = saved.read_text()
    caption_server.ended.set()
    wait_for(lambda: client.get("/studio/captions/job").json()["waiting"] == [])
    ended(client)
    assert [captions(folder) for folder in folders] == [
        *({"red": "a caption"}, {"red": "red fox (forest)"}, {}, {"red": "red fox (forest)"})
    ]
    for folder in folders:
        (folder / "red.txt").unlink(missing_ok=True)
    saved.write_text(earlier)
    later = page(home)
    wait_for(lambda: [*captions(folders[1]), *captions(folders[3])] == ["red", "red"])
    ended(later)


@pytest.mark.run
def test_a_key_reaches_the_endpoint_and_no_file(home: Path, caption_server: CaptionServer) -> None:
    images = write_colours(home / "10_cat", "red")
    client = page(home)
    caption_server.answers = lambda number: (200, {}, reply("A red square."))
    values = {"train_data_dir": str(images), "method": "endpoint", "endpoint": caption_server.url, "model": "m"}
    client.post("/studio/captions/start", json={"values": values, "key": SECRET})
    assert ended(client)["result"]["written"] == 1
    assert caption_server.keys == [f"Bearer {SECRET}"]
    assert captions(images) == {"red": "A red square."}
    files = [file for file in home.rglob("*") if file.is_file()]
    assert [file.name for file in files if SECRET.encode() in file.read_bytes()] == []
    assert SECRET not in json.dumps(client.get("/studio/captions/job").json())


def test_settings_of_kohya_ss_fill_the_form(home: Path) -> None:
    client = page(home)

    def opened(text: str) -> Any:
        return client.post("/studio/captions/settings", content=text.encode()).json()

    text = "[wd14_caption]\nrepo_id = 'SmilingWolf/wd-vit-tagger-v3'\ngeneral_threshold = 0.4\nonnx = true\n"
    assert opened(text)["values"] == {
        "method": "tagger",
        "existing": "replace",
        "remove_underscore": False,
        "model": "SmilingWolf/wd-vit-tagger-v3",
        "general_threshold": 0.4,
    }
    assert opened("method = 'captioner'\n")["values"] == {"method": "captioner"}
    assert opened("method = 'oracle'\n")["error"].startswith("method: 'oracle' is not one of")
    assert "is not TOML" in opened("[")["error"]
    assert "does not belong to captioning" in opened("[lora]\nx = 1\n")["error"]
