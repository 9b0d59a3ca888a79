"""The routes of the tab Dataset: what they answer, and that they lead to no file outside the allowed folders."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from kohya_gui.access.allowed_paths import AllowedPaths
from kohya_gui.dataset import dataset_views
from kohya_gui.dataset.dataset_routes import routes
from kohya_gui.dataset.dataset_views import OUTSIDE, DatasetViews, View
from sd_scripts.machine import thumbnail_store
from tests.support.data import make_folder, make_image
from tests.support.image_models.tiny import draw, write_yunet

pytestmark = pytest.mark.run
NAMES = (
    "a'b\"c.png",
    "<img src=x onerror=alert(1)>.png",
    "line\nend.png",
    "猫 🐈 é.png",
    "%2e%2e%2fpasswd.png",
    "#?&.png",
)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("page")


@pytest.fixture(scope="module")
def allowed(root: Path) -> Path:
    """The folder that the page may see, with a dataset and links that lead out of it."""
    folder = root / "allowed" / "data" / "2_cat"
    make_folder(folder, [(80, 64), (64, 64)])
    for name in NAMES if os.name == "posix" else ():
        make_image(folder / name)
    make_image(root / "secret.png", seed=9)
    (root / "secret.txt").write_text("the secret caption")
    (folder / "link.png").symlink_to(root / "secret.png")
    make_image(folder / "read.png")
    (folder / "read.txt").symlink_to(root / "secret.txt")
    (folder / "broken.jpg").write_bytes(b"\xff\xd8\xffno image")
    (root / "allowed" / "elsewhere").symlink_to(root)
    return root / "allowed"


@pytest.fixture(scope="module")
def page(root: Path, allowed: Path) -> Iterator[TestClient]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("XDG_STATE_HOME", "LOCALAPPDATA"):
            patch.setenv(name, str(root / "state"))
        with TestClient(Starlette(routes=routes(AllowedPaths.within([allowed])))) as client:
            yield client


def form(**more: Any) -> dict[str, Any]:
    values = {"resolution": "64", "caption_extension": ".txt", "max_train_steps": 4}
    return {"tab": "lora", "family": "sdxl", "values": values, **more}


def opened(page: TestClient, folder: Path) -> dict[str, Any]:
    answer = page.post("/studio/dataset/open", json=form(folder=str(folder)))
    assert answer.status_code == 200, answer.text
    view: dict[str, Any] = answer.json()
    return view


def looked(page: TestClient, view: dict[str, Any]) -> dict[str, Any]:
    """Look until nothing is left to see; return measurements and problems by name."""
    names = {image["key"]: Path(image["path"]).name for image in view["images"]}
    seen: dict[str, Any] = {names[key]: each for key, each in view["measures"].items()}
    while True:
        answer = page.post("/studio/dataset/look", json={"view": view["view"], "first": []}).json()
        seen |= {names[key]: each for key, each in (answer["measures"] | answer["problems"]).items()}
        if not answer["waiting"]:
            return seen


def by_name(view: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {Path(image["path"]).name: image for image in view["images"]}


def test_images_are_listed_looked_at_and_shown(page: TestClient, allowed: Path) -> None:
    view = opened(page, allowed / "data")
    images = by_name(view)
    assert (images["00.png"]["size"], images["00.png"]["caption"]) == ([80, 64], "a, b, c, 0")
    seen = looked(page, view)
    readable = {name for name, image in images.items() if image["size"]}
    assert seen.keys() == readable
    for name in readable:
        for what in ("thumbnail", "preview"):
            answer = page.get(f"/studio/dataset/{what}/{images[name]['key']}")
            assert answer.headers["content-type"] == "image/jpeg", name
            assert answer.content.startswith(b"\xff\xd8\xff"), name
    again = opened(page, allowed / "data")
    assert again["waiting"] == 0
    assert again["measures"].keys() == {images[name]["key"] for name in readable}


def test_links_that_lead_outside_show_nothing(page: TestClient, allowed: Path) -> None:
    images = by_name(opened(page, allowed / "data"))
    for name in ("link.png", "read.png"):  # one by its image, one by its caption
        image = images[name]
        assert (image["why"], image["caption"], image["size"], image["links"]) == (OUTSIDE, "", None, [])
        for what in ("thumbnail", "preview"):
            assert page.get(f"/studio/dataset/{what}/{image['key']}").status_code == 404


def test_a_link_that_leads_outside_later_is_not_followed(page: TestClient, root: Path, allowed: Path) -> None:
    folder = allowed / "later" / "1_cat"
    make_folder(folder, [(64, 64)])
    view = opened(page, folder.parent)
    key = view["images"][0]["key"]
    (folder / "00.png").unlink()
    (folder / "00.png").symlink_to(root / "secret.png")
    answer = page.post("/studio/dataset/look", json={"view": view["view"]}).json()
    assert (answer["measures"], answer["problems"], answer["waiting"]) == ({}, {}, 0)
    assert [page.get(f"/studio/dataset/{what}/{key}").status_code for what in ("thumbnail", "preview")] == [404, 404]


def test_no_path_leads_out_of_the_allowed_folders(page: TestClient, root: Path, allowed: Path) -> None:
    outside = [
        root,
        root / "secret.png",
        allowed / ".." / "..",
        allowed / "elsewhere",
        allowed / "elsewhere" / "allowed" / "..",
    ]
    for place in map(str, (*outside, "/", "~root", "C:\\Windows", "\\\\server\\share", "file:///etc", "..")):
        answer = page.post("/studio/dataset/open", json=form(folder=place))
        refused = answer.status_code == 400 and "outside the allowed folders" in answer.json()["error"]
        assert refused or not answer.json().get("images"), (place, answer.text)
    for key in ("..%2f..%2fsecret.png", "%2fetc%2fpasswd", "..", "0" * 32, str(root / "secret.png"), "a%00b"):
        assert page.get(f"/studio/dataset/thumbnail/{key}").status_code == 404
        assert page.get(f"/studio/dataset/preview/{key}").status_code == 404


def test_a_dataset_file_cannot_name_a_folder_outside(page: TestClient, root: Path, allowed: Path) -> None:
    config = allowed / "data.toml"
    config.write_text(f'[[datasets]]\nresolution = 64\n[[datasets.subsets]]\nimage_dir = "{root.as_posix()}"\n')
    answer = page.post("/studio/dataset/open", json=form(folder=str(config)))
    assert (answer.status_code, "outside the allowed folders" in answer.json()["error"]) == (400, True)


def test_a_dataset_file_is_opened(page: TestClient, allowed: Path) -> None:
    config = allowed / "good.toml"
    folder = (allowed / "data" / "2_cat").as_posix()
    config.write_text(f'[[datasets]]\nresolution = 64\n[[datasets.subsets]]\nimage_dir = "{folder}"\nnum_repeats = 5\n')
    assert by_name(opened(page, config))["00.png"]["repeats"] == 5


def test_a_training_on_the_images_takes_their_masks_once_all_have_one(page: TestClient, allowed: Path) -> None:
    folder = allowed / "masked" / "2_cat"
    make_folder(folder, [(64, 64)] * 2)
    masks = folder.parent / "masks"
    make_image(masks / "2_cat" / "00.png")
    assert opened(page, folder.parent)["train"] == {"train_data_dir": str(folder.parent)}
    make_image(masks / "2_cat" / "01.png")
    view = opened(page, folder.parent)
    used = {"conditioning_data_dir": str(masks), "masked_loss": True}
    assert view["train"] == {"train_data_dir": str(folder.parent), **used}
    form_of = form(folder=str(folder.parent))
    form_of["values"] |= view["train"]
    again = page.post("/studio/dataset/open", json=form_of).json()
    assert ([image["mask"] for image in again["images"]], again["train"]) == ([True, True], {})
    bare = allowed / "bare"
    make_folder(bare / "2_cat", [(64, 64)])
    unmasked = page.post("/studio/dataset/open", json={**form_of, "folder": str(bare)}).json()["train"]
    assert (unmasked["conditioning_data_dir"], unmasked["masked_loss"]) == (None, False)


def test_a_step_shows_no_image_from_outside(page: TestClient, allowed: Path) -> None:
    for number in range(1, 5):
        step = page.post(
            "/studio/dataset/step", json=form(folder=str(allowed / "data"), step=number, seed=number)
        ).json()
        for sample in step["samples"]:
            is_outside = Path(sample["path"]).name in ("link.png", "read.png")
            assert (sample["image"] is None) == is_outside
            assert "secret" not in sample["caption"]
    answer = page.post("/studio/dataset/step", json=form(folder=str(allowed / "data"), step=99))
    assert answer.json() == {"error": "step: the run has steps 1 to 4; choose one of these"}


def test_a_folder_that_is_deleted_while_it_is_open_is_named(page: TestClient, allowed: Path) -> None:
    folder = allowed / "gone" / "1_cat"
    paths = make_folder(folder, [(64, 64)])
    view = opened(page, folder.parent)
    for path in (*paths, *(path.with_suffix(".txt") for path in paths)):
        path.unlink()
    folder.rmdir()
    folder.parent.rmdir()
    assert looked(page, view) == {"00.png": "cannot be read: No such file or directory"}
    again = opened(page, folder.parent)
    assert (again["images"], again["refused"]) == ([], [f"train_data_dir: folder not found: '{folder.parent}'"])


def test_a_changed_image_is_looked_at_again(page: TestClient, allowed: Path) -> None:
    folder = allowed / "changed" / "1_cat"
    (path,) = make_folder(folder, [(64, 64)])
    view = opened(page, folder.parent)
    before = looked(page, view)
    make_image(path, (64, 64), 8)
    os.utime(path, ns=(time.time_ns(), time.time_ns() + 10**9))
    view = opened(page, folder.parent)
    assert view["waiting"] == 1
    assert looked(page, view) != before


def test_a_view_that_is_no_longer_open_is_named(page: TestClient) -> None:
    for route in ("look", "alike"):
        answer = page.post(f"/studio/dataset/{route}", json={"view": "0123", "distance": 1})
        assert (answer.status_code, answer.json()) == (404, {"error": dataset_views.GONE})


def test_near_duplicates_are_found_by_their_keys(page: TestClient, allowed: Path) -> None:
    folder = allowed / "twins" / "1_cat"
    make_folder(folder, [(64, 64)])
    (folder / "copy.png").write_bytes((folder / "00.png").read_bytes())
    view = opened(page, folder.parent)
    looked(page, view)
    groups = page.post("/studio/dataset/alike", json={"view": view["view"], "distance": 3}).json()["groups"]
    assert [sorted(group) for group in groups] == [sorted(image["key"] for image in view["images"])]


def test_faces_are_looked_for_once_there_is_a_detector(page: TestClient, root: Path, allowed: Path) -> None:
    folder = allowed / "faces" / "2_cat"
    draw(folder / "a.png", red=[(20, 44, 51, 75)])
    draw(folder / "b.png")
    first = looked(page, opened(page, folder.parent))
    assert {name: each["faces"] for name, each in first.items()} == {"a.png": None, "b.png": None}
    model = write_yunet(root / "yunet.onnx")
    views = DatasetViews(AllowedPaths.within([allowed]), face_model=lambda: str(model))
    (broken := root / "broken.onnx").write_bytes(b"no model")
    others = DatasetViews(AllowedPaths.within([allowed]), face_model=lambda: str(broken))
    others.look({"view": others.open(form(folder=str(folder.parent)))["view"], "first": []})
    tried = others.open(form(folder=str(folder.parent)))
    assert (tried["finds_faces"], tried["waiting"]) == (False, 0)
    view = views.open(form(folder=str(folder.parent)))
    assert (view["finds_faces"], view["waiting"]) == (True, 2)
    views.look({"view": view["view"], "first": []})
    again = views.open(form(folder=str(folder.parent)))
    faces = {name: again["measures"][image["key"]]["faces"] for name, image in by_name(again).items()}
    assert again["waiting"] == 0
    assert faces == {"a.png": ((0.1, 0.275, 0.16, 0.2),), "b.png": ()}


def test_an_image_that_ends_the_process_does_not_stop_the_others(allowed: Path) -> None:
    views = DatasetViews(AllowedPaths(), program="tests.support.dying_viewer")
    view = View(id="v", paths={key: str(allowed / key) for key in ("a", "deadly", "b")})
    view.waiting = dict.fromkeys(view.paths)
    views.add(view)
    answers = [views.look({"view": "v"}) for _ in range(3)]
    assert [sorted(answer["measures"]) for answer in answers] == [["a"], [], ["b"]]
    assert [sorted(answer["problems"]) for answer in answers] == [[], ["deadly"], []]
    assert answers[2]["waiting"] == 0


def test_a_damaged_store_of_thumbnails_is_made_again(page: TestClient, allowed: Path) -> None:
    looked(page, opened(page, allowed / "data"))
    thumbnail_store.THUMBNAILS.path.write_bytes(b"no database" * 1000)
    view = opened(page, allowed / "data")
    assert view["waiting"] > 0
    looked(page, view)
    assert opened(page, allowed / "data")["waiting"] == 0


def test_images_are_shown_though_thumbnails_cannot_be_kept(root: Path, page: TestClient, allowed: Path) -> None:
    folder = allowed / "unkept" / "1_cat"
    make_folder(folder, [(64, 64)])
    store = thumbnail_store.THUMBNAILS.path
    store.unlink(missing_ok=True)
    store.mkdir(parents=True)  # as on a full disk, nothing can be written there
    try:
        view = opened(page, allowed / "unkept")
        answer = page.post("/studio/dataset/look", json={"view": view["view"], "first": []}).json()
        (image,) = view["images"]
        assert (answer["stored"], [*answer["measures"]], answer["waiting"]) == (False, [image["key"]], 0)
        shown = page.get(f"/studio/dataset/thumbnail/{image['key']}")
        assert (shown.status_code, shown.content[:2]) == (200, b"\xff\xd8")
    finally:
        store.rmdir()


@pytest.mark.skipif(os.name != "posix", reason="modes of POSIX")
def test_thumbnails_are_private(page: TestClient, allowed: Path) -> None:
    looked(page, opened(page, allowed / "data"))
    assert thumbnail_store.THUMBNAILS.path.stat().st_mode & 0o077 == 0
