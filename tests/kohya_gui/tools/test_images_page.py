"""The tab Image tools without a browser: fields, hints, refusals, and a job from a try to its copies."""

import re
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from kohya_gui.access.allowed_paths import EVERYWHERE, AllowedPaths
from kohya_gui.tools.images import FORM, routes
from sd_scripts.runs.queue import RunQueue
from sd_scripts.runs.store import RunStore
from tests.support.image_models.tiny import draw, write_yunet
from tests.support.runs import wait_for


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "state"))
    return tmp_path


def page(home: Path, allowed: AllowedPaths = EVERYWHERE) -> TestClient:
    return TestClient(Starlette(routes=routes(RunQueue(RunStore(home / "runs.sqlite")), allowed)))


def refusal(client: TestClient, **body: Any) -> str:
    answer = client.post("/studio/images/start", json=body)
    assert answer.status_code == 400, answer.text
    return re.sub("<.*?>", "", answer.json().get("html") or answer.json()["error"]).removeprefix("✕")


def ended(client: TestClient) -> Any:
    wait_for(lambda: client.get("/studio/images/job").json()["over"])
    return client.get("/studio/images/job").json()


def test_each_option_has_a_field_and_belongs_to_the_tasks_that_read_it(home: Path) -> None:
    described = page(home).get("/studio/images").json()
    fields = {field["name"]: field["methods"] for field in described["fields"]}
    assert fields.keys() == FORM.options.keys() - {*FORM.hidden}
    assert (fields["margin"], fields["size"], fields["train_data_dir"]) == (["crop", "mask"], ["resize", "upscale"], [])
    values = FORM.read_values({"task": "resize", "size": "64", "colour": "#000000", "image_list": "/etc/passwd"})
    assert FORM.command(values)[2:] == ["sd_scripts.tools.images", "--task", "resize", "--size", "64"]


def test_hints_count_images_and_name_the_model_of_the_task(home: Path) -> None:
    client = page(home, AllowedPaths.within([home]))
    draw(home / "photos" / "10_cat" / "a.png")
    draw(home / "photos" / "10_cat" / "b.tiff")

    def look(**values: Any) -> Any:
        return client.post("/studio/images/look", json={"values": values}).json()

    told = look(train_data_dir=str(home / "photos"))
    assert told["train_data_dir"]["text"] == "2 images, 1 in formats that training does not read"
    assert (told["finds"], told["missing"]) == ("", False)
    told = look(task="mask", mask_from="background")
    assert (told["finds"], told["missing"]) == ("background", True)
    assert "a download of 0.22 GB, licence MIT" in told["model"]["text"]
    assert look(task="crop", model=str(write_yunet(home / "yunet.onnx")))["model"]["good"] is True
    assert "outside the allowed folders" in look(train_data_dir="/etc")["train_data_dir"]["text"]


def test_mistakes_and_paths_outside_are_refused(home: Path) -> None:
    photos = home / "data" / "photos"
    draw(photos / "a.png")
    client = page(home, AllowedPaths.within([home / "data"]))
    good = {"train_data_dir": str(photos)}
    assert refusal(client, values={}) == "Image folder (train_data_dir): not set; choose the folder of the images"
    assert "(size): 4 is outside 16..8192" in refusal(client, values={**good, "task": "resize", "size": 4})
    for name in ("output_dir", "conditioning_data_dir"):
        assert "outside the allowed folders" in refusal(client, values={**good, name: str(home / "x")}), name
    for name, task in (("model", "crop"), ("upscale_model", "upscale")):
        assert "outside the allowed folders" in refusal(client, values={**good, "task": task, name: "/etc/x"}), name
    assert "(upscale_model): not set" in refusal(client, values={**good, "task": "upscale"})
    assert "outside the allowed folders" in refusal(client, values={}, images=["/etc/a.heic"])
    assert "is not an image" in refusal(client, values={}, images=["/etc/passwd"])
    whole = refusal(client, values={"train_data_dir": str(home / "data")})
    assert "the folder next to the images is outside the allowed folders" in whole
    (home / "data" / "masks").mkdir()
    masks = {"task": "mask", "mask_from": "alpha", "train_data_dir": str(home / "data")}
    assert "the folder next to the images is outside the allowed folders" in refusal(client, values=masks)
    (home / "secret.txt").write_text("secret")
    (photos / "a.txt").symlink_to(home / "secret.txt")
    assert "is a link that leads outside the allowed folders" in refusal(client, values=good)
    (photos / "a.txt").unlink()
    cats = home / "data" / "cats" / "10_cat"
    draw(cats / "a.png")
    draw(home / "secret" / "10_cat" / "a.png")
    (cats.parent / "masks").symlink_to(home / "secret")
    for values in ({"train_data_dir": str(cats)}, {"train_data_dir": str(cats.parent)}):
        assert "is a link that leads outside the allowed folders" in refusal(client, values=values), values
    (cats.parent / "masks").unlink()
    draw(home / "other" / "b.png")
    client = page(home, AllowedPaths.within([home / "data" / "photos", home / "other"]))
    both = [str(photos / "a.png"), str(home / "other" / "b.png")]  # copies would be next to their common folder
    assert "the folder next to the images is outside the allowed folders" in refusal(client, values={}, images=both)
    assert client.post("/studio/images/resume", json={}).status_code == 404


@pytest.mark.run
def test_a_try_a_job_and_its_copies(home: Path) -> None:
    photos = home / "photos"
    draw(photos / "10_cat" / "a.png", red=[(84, 68, 115, 99)])
    draw(photos / "10_cat" / "b.png", red=[(84, 68, 115, 99)])
    client = page(home)
    values = {"train_data_dir": str(photos), "task": "crop", "model": str(write_yunet(home / "yunet.onnx"))}
    client.post("/studio/images/start", json={"values": values, "try": True})
    assert ended(client)["result"]["sentence"] == "2 images tried; nothing written"
    for when in ("before", "after"):
        assert client.get(f"/studio/images/image/1?when={when}").content.startswith(b"\xff\xd8")
    assert client.get("/studio/images/image/1?when=../x").status_code == 404
    assert not (home / "photos-cropped").exists()
    chosen = [str(photos / "10_cat" / "b.png")]
    client.post("/studio/images/start", json={"values": values, "images": chosen})
    assert ended(client)["result"]["output"] == str(home / "photos-cropped")
    assert [path.name for path in (home / "photos-cropped" / "10_cat").iterdir()] == ["b.png"]
