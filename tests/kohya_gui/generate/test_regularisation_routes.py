"""Regularisation images from the page: what a training needs, the job, and images of Generate that become such."""

from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from starlette.applications import Starlette
from starlette.testclient import TestClient

from kohya_gui.access.allowed_paths import EVERYWHERE, AllowedPaths
from kohya_gui.dataset import dataset_routes
from kohya_gui.generate.regularisation_routes import FORM, OPTIONS, RegularisationJob, routes
from sd_scripts.formats.images.image_parameters import text_chunks
from sd_scripts.runs.queue import RunQueue
from sd_scripts.runs.store import RunStore
from tests.support.data import make_folder
from tests.support.runs import wait_for
from tests.support.training import OF_FAMILY, SHORT

pytestmark = pytest.mark.run
SAMPLING = {"seed": 1, "steps": 4, "scale": 1.0, "width": 8, "height": 8}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("XDG_STATE_HOME", "LOCALAPPDATA"):
        monkeypatch.setenv(name, str(tmp_path / "state"))
    return tmp_path


def page(home: Path, allowed: AllowedPaths = EVERYWHERE) -> TestClient:
    queue = RunQueue(RunStore(home / "runs.sqlite"))
    return TestClient(Starlette(routes=[*routes(queue, allowed), *dataset_routes.routes(allowed)]))


def form(**values: Any) -> dict[str, Any]:
    shared = {name: value for name, value in {**SHORT, **OF_FAMILY["flux"]}.items() if value is not None}
    texts = {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}
    return {"tab": "lora", "family": "flux", "values": {**shared, **texts}}


def refusal(client: TestClient, route: str, body: dict[str, Any]) -> str:
    answer = client.post(f"/studio/{route}", json=body)
    assert answer.status_code == 400, answer.text
    return str(answer.json()["error"])


def test_a_training_gets_the_images_that_it_needs(
    home: Path, any_miniature: Any, request: pytest.FixtureRequest
) -> None:
    make_folder(home / "cats" / "2_ohwx cat", [(64, 64)])
    training = form(train_data_dir=home / "cats", **any_miniature.files)
    with page(home) as client:
        answer = client.post("/studio/dataset/regularisation", json=training)
        assert answer.status_code == 200, answer.text
        needs = answer.json()
        place = home / "regularisation_cats"
        assert needs["place"] == str(place)
        (cat,) = needs["classes"]
        assert (cat["prompt"], cat["images"], cat["here"], cat["sizes"]) == ("cat", 2, 0, {"64x64": 2})
        request.getfixturevalue("warm_python")  # for the job: a resident process cannot be forked
        options = {"reg_data_dir": str(place), "steps": "1", "prompt": [], "images": None}
        assert client.post("/studio/regularisation/start", json={**training, "options": options}).status_code == 200
        known = client.get("/studio/regularisation").json()
        assert not known["over"]

        def news() -> Any:
            return client.get(f"/studio/regularisation?known={known['known']}")

        wait_for(lambda: news().status_code == 200 and news().json()["over"])
        ended = news().json()
        assert (ended["state"], ended["done"], ended["place"]) == ("finished", 2, str(place)), ended
        assert len([*(place / "1_cat").glob("*.png")]) == 2
        assert client.post("/studio/regularisation/resume", json={}).status_code == 200
        wait_for(lambda: client.get("/studio/regularisation").json()["over"])
        assert client.get("/studio/regularisation").json()["state"] == "finished", "all are there already"


def test_mistakes_are_refused_before_a_job_starts(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RegularisationJob, "begin", lambda *args, **more: pytest.fail("it must not start"))
    training = form(train_data_dir=home, output_dir=home)
    with page(home, AllowedPaths.within([home])) as client:

        def why(body: dict[str, Any], **options: Any) -> str:
            return refusal(client, "regularisation/start", {**body, "options": options})

        assert why(training) == "reg_data_dir: not set; name the folder for the images"
        assert "outside the allowed folders" in why(training, reg_data_dir="/elsewhere")
        assert why(training, reg_data_dir=str(home), prompt="--run_dir /etc").startswith("prompt: '--run_dir /etc'")
        assert why(training, reg_data_dir=str(home), steps="many") == "steps: 'many' is not a whole number"
        assert "outside the allowed folders" in why(
            form(train_data_dir="/elsewhere", output_dir=home), reg_data_dir=str(home)
        )
        assert client.post("/studio/regularisation/resume", json={}).status_code == 404
        for body in ({"prompts": "cat"}, {"images": 0}, {"images": True}, {"place": "/elsewhere"}):
            assert refusal(client, "dataset/regularisation", {**training, **body}).split(":")[0] in (
                *("prompt", "images", "reg_data_dir"),
            )


def test_the_dialog_has_every_option_of_the_tool(home: Path) -> None:
    with page(home) as client:
        fields = client.get("/studio/regularisation/fields").json()
    assert fields.keys() == {*FORM} == OPTIONS.keys() - {"config_file"}
    assert all(field["label"] and field["help"] and field["families"] for field in fields.values())


def test_generated_images_become_regularisation_images(home: Path) -> None:
    made = home / "images"
    made.mkdir()
    for name, prompt in (("one.png", "cat"), ("two.png", "a cat on a sofa")):
        texts = PngInfo()
        for key, text in text_chunks({"prompt": prompt, **SAMPLING}).items():
            texts.add_text(key, text)
        Image.new("RGB", (8, 8)).save(made / name, pnginfo=texts)
    (made / "broken.png").write_bytes(b"no image")
    (home / "secret.png").write_bytes(b"secret")
    (made / "link.png").symlink_to(home / "secret.png")
    names = ["one.png", "two.png", "broken.png", "link.png", "gone.png"]
    body = {**form(train_data_dir=home, output_dir=home), "image_dir": str(made), "names": names, "class": "cat"}
    with page(home, AllowedPaths.within([home])) as client:
        answer = client.post("/studio/regularisation/take", json={**body, "reg_data_dir": str(home / "reg")}).json()
        folder = home / "reg" / "1_cat"
        assert answer == {"copied": 3, "place": str(home / "reg"), "folder": str(folder)}
        assert {path.name for path in folder.iterdir()} == {"one.png", "two.png", "two.txt", "broken.png"}
        assert (folder / "two.txt").read_text() == "a cat on a sofa\n"
        (folder / "two.txt").write_text("edited")
        assert (
            client.post("/studio/regularisation/take", json={**body, "reg_data_dir": str(home / "reg")}).json()[
                "copied"
            ]
            == 0
        )
        assert (folder / "two.txt").read_text() == "edited"
        wrong = [{"names": ["../secret.png"]}, {"names": []}, {"names": "one.png"}, {"class": " "}]
        wrong += [{"reg_data_dir": "/elsewhere"}, {"image_dir": "/elsewhere"}, {"reg_data_dir": ""}]
        for change in wrong:
            assert ": " in refusal(client, "regularisation/take", {**body, "reg_data_dir": str(home / "reg"), **change})
