"""What a browser can do to a dataset: edits, files and uploads, within the allowed folders and never over others."""

import io
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from starlette.applications import Starlette
from starlette.testclient import TestClient

from kohya_gui.access.allowed_paths import EVERYWHERE, AllowedPaths
from kohya_gui.dataset.editing.routes import routes
from sd_scripts.runs.folder import new_run_folder
from sd_scripts.runs.queue import PlannedRun, RunQueue
from sd_scripts.runs.store import RunStore


def image_bytes(colour: int = 0) -> bytes:
    made = io.BytesIO()
    Image.new("RGB", (8, 8), (colour, 0, 0)).save(made, "PNG")
    return made.getvalue()


class Page:
    """A browser with a dataset open: cats/10_cat and cats/5_dog."""

    def __init__(self, folder: Path, allowed_paths: AllowedPaths = EVERYWHERE) -> None:
        self.root = folder / "cats"
        self.cats, self.dogs = self.root / "10_cat", self.root / "5_dog"
        for number, name in enumerate(("a", "b", "c")):
            self.add(self.cats / f"{name}.png", f"cat, {name}", number)
        self.add(self.dogs / "d.png", "dog", 9)
        self.queue = RunQueue(RunStore(folder / "runs.sqlite"), every=0.05)
        self.browser = TestClient(Starlette(routes=routes(self.queue, allowed_paths)))
        self.place = str(self.root)

    def add(self, image: Path, caption: str, colour: int = 0) -> None:
        image.parent.mkdir(parents=True, exist_ok=True)
        image.write_bytes(image_bytes(colour))
        image.with_suffix(".txt").write_text(caption)

    def post(self, path: str, body: dict[str, Any] | None = None, *, status: int = 200) -> Any:
        answer = self.browser.post(f"/studio/dataset/{path}", json={"place": self.place, **(body or {})})
        assert answer.status_code == status, answer.text
        return answer.json()

    def refused(self, path: str, body: dict[str, Any] | None = None) -> str:
        return str(self.post(path, body, status=400)["error"])

    def captions(self) -> dict[str, Any]:
        read: dict[str, Any] = self.post("captions/read")["captions"]
        return {Path(path).stem: caption for path, caption in read.items()}

    def edit(self, text: str, version: str | None = None) -> dict[str, Any]:
        return {"edits": {str(self.cats / "a.png"): {"text": text, "version": version}}}

    def send(self, batch: str, name: str, content: bytes, folder: Path | None = None) -> Any:
        query = {"place": self.place, "folder": str(folder or self.cats), "batch": batch, "name": name}
        return self.browser.post("/studio/dataset/upload/file", params=query, content=content)


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Page:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return Page(tmp_path)


def test_a_caption_is_read_written_and_undone(page: Page) -> None:
    caption = page.captions()["a"]
    assert (caption["text"], caption["author"], caption["file"], caption["shared"]) == ("cat, a", "outside", "a.txt", 0)
    answer = page.post("captions/write", page.edit("cat, new", caption["version"]))
    assert (answer["done"], answer["undo"], answer["redo"]) == ("Edit a.png", "Edit a.png", None)
    assert page.captions()["a"]["author"] == "hand"
    answer = page.post("captions/undo")
    assert (answer["done"], answer["redo"]) == ("Undone: Edit a.png", "Edit a.png")
    assert page.captions()["a"]["text"] == "cat, a"
    page.post("captions/redo")
    assert (page.cats / "a.txt").read_text() == "cat, new"
    assert [action["label"] for action in page.post("captions/history")["actions"]] == ["Edit a.png"]


def test_an_edit_of_a_caption_that_changed_shows_both_texts(page: Page) -> None:
    version = page.captions()["a"]["version"]
    (page.cats / "a.txt").write_text("theirs")
    answer = page.post("captions/write", page.edit("mine", version))
    assert answer["refused"] == "1 caption changed outside this page: a.txt; nothing was written"
    assert answer["conflicts"] == [{"path": str(page.cats / "a.png"), "theirs": "theirs", "yours": "mine"}]
    now = answer["captions"][str(page.cats / "a.png")]["version"]
    assert page.post("captions/write", page.edit("mine", now))["done"] == "Edit a.png"


def test_the_page_learns_of_changes_from_outside(page: Page) -> None:
    versions = {path: caption["version"] for path, caption in page.post("captions/read")["captions"].items()}
    assert page.post("captions/changed", {"versions": versions}) == {"unchanged": True}
    (page.dogs / "d.txt").write_text("a different dog")
    (changed,) = page.post("captions/changed", {"versions": versions})["captions"].values()
    assert changed["text"] == "a different dog"


def test_two_browsers_on_one_folder_lose_nothing_and_see_each_other(page: Page) -> None:
    ours, theirs = page.post("captions/read")["captions"], page.post("captions/read")["captions"]
    a, b, c = (str(page.cats / f"{name}.png") for name in "abc")

    def write(text: str, seen: Any, *paths: str) -> Any:
        return page.post("captions/write", {"edits": {p: {"text": text, "version": seen[p]["version"]} for p in paths}})

    assert write("ours", ours, a)["done"]
    assert write("theirs", theirs, b)["done"]
    refused = write("theirs", theirs, a, c)  # a selection with one that has changed in the meantime
    assert [each["theirs"] for each in refused["conflicts"]] == ["ours"]
    for seen, news in ((ours, {a: "ours", b: "theirs"}), (theirs, {a: "ours", b: "theirs"})):
        versions = {path: caption["version"] for path, caption in seen.items()}
        changed = page.post("captions/changed", {"versions": versions})["captions"]
        assert {path: caption["text"] for path, caption in changed.items()} == news
    assert page.captions()["c"]["text"] == "cat, c"
    page.post("captions/undo")  # the newest edit, of whichever browser
    assert [page.captions()[name]["text"] for name in "ab"] == ["ours", "cat, b"]


def test_a_bulk_edit_does_what_its_preview_showed(page: Page) -> None:
    body = {"images": {str(page.cats): ["a.png", "b.png"]}, "edit": {"kind": "replace", "find": "cat", "text": "lion"}}
    preview = page.post("captions/preview", body)
    assert (preview["count"], preview["of"]) == (2, 2)
    assert preview["changes"][0] == {"path": str(page.cats / "a.png"), "before": "cat, a", "after": "lion, a"}
    answer = page.post("captions/bulk", {**body, "digest": preview["digest"]})
    assert answer["done"] == "Replace 'cat' with 'lion' · 2 captions"
    assert {name: each["text"] for name, each in page.captions().items()} == {
        "a": "lion, a",
        "b": "lion, b",
        "c": "cat, c",
        "d": "dog",
    }
    assert "look at it again" in page.refused("captions/bulk", {**body, "digest": preview["digest"]})
    page.post("captions/undo")
    assert page.captions()["b"]["text"] == "cat, b"


def test_a_restore_point_is_made_restored_and_removed(page: Page) -> None:
    (point,) = page.post("captions/points/add", {"name": "Before"})["points"]
    assert (point["name"], point["captions"]) == ("Before", 4)
    page.post("captions/write", page.edit("x"))
    (page.dogs / "d.txt").write_text("changed outside")
    assert page.post("captions/points/restore", {"point": point["id"]})["done"] == "Restored 2 captions"
    assert page.captions()["d"]["text"] == "dog"
    assert page.post("captions/points/remove", {"point": point["id"]})["points"] == []
    assert page.refused("captions/points/restore", {"point": point["id"]}) == "This restore point no longer exists"


def test_tags_are_counted_over_the_folder(page: Page) -> None:
    answer = page.post("captions/tags")
    assert (answer["tags"][0], answer["captions"]) == (["cat", 3], 4)


def test_images_are_moved_removed_and_put_back(page: Page) -> None:
    body = {"images": {str(page.cats): ["a.png"]}}
    assert page.post("files/move", {**body, "target": str(page.dogs)})["done"] == "Move 1 image to 5_dog"
    assert (page.dogs / "a.txt").read_text() == "cat, a"
    page.post("captions/undo")
    assert page.post("files/remove", body)["done"] == "Remove 1 image"
    assert sorted(page.captions()) == ["b", "c", "d"]
    (trashed,) = page.post("files/trash")["trash"]
    assert page.post("files/put-back", {"paths": [trashed["path"]]})["done"] == "Put back 1 image"
    assert page.captions()["a"]["text"] == "cat, a"
    page.post("files/remove", body)
    assert page.post("files/empty-trash")["done"] == "Deleted 1 image for good"
    assert page.post("files/trash")["count"] == 0
    assert page.post("captions/history")["undo"] != "Remove 1 image"


def test_an_edit_that_cannot_be_undone_does_not_hide_those_before_it(page: Page) -> None:
    page.post("captions/write", page.edit("one"))
    page.post("captions/write", {"edits": {str(page.cats / "b.png"): {"text": "two"}}})
    (page.cats / "b.txt").write_text("changed outside")
    assert page.post("captions/undo")["refused"].endswith("b.txt; nothing was written")
    assert page.post("captions/skip")["undo"] == "Edit a.png"
    page.post("captions/undo")
    assert {name: each["text"] for name, each in page.captions().items()}["a"] == "cat, a"


def test_a_mask_moves_with_its_image(page: Page, tmp_path: Path) -> None:
    mask = tmp_path / "masks" / "10_cat" / "a.png"
    page.add(mask, "")
    body = {"images": {str(page.cats): ["a.png"]}, "target": str(page.dogs), "masks": [str(tmp_path / "masks")]}
    page.post("files/move", body)
    assert (tmp_path / "masks" / "5_dog" / "a.png").is_file()
    assert not mask.exists()
    assert page.refused("captions/read", {"masks": "all"}) == "masks: must be a list of folders"


def test_repeats_rename_a_folder_unless_a_run_uses_it(page: Page, tmp_path: Path) -> None:
    body = {"folder": str(page.cats), "repeats": 12}
    folder = new_run_folder(tmp_path / "runs", "my run")
    folder.config.write_text(f"train_data_dir = {str(page.root)!r}\n")
    facts: dict[str, Any] = {"name": "my run", "tab": "lora", "family": "sdxl", "gpus": "cpu"}
    id = page.queue.add(PlannedRun(folder=folder, argv=[sys.executable], environment={}, **facts))
    expected = "repeats: '10_cat' cannot be renamed while the run 'my run' uses it; wait until it has ended"
    assert page.refused("files/repeats", body) == expected
    page.queue.store.update(id, state="finished", started=1.0, ended=2.0, place=None)
    assert page.post("files/repeats", body)["done"] == "Rename 10_cat to 12_cat"
    assert (page.root / "12_cat" / "a.png").is_file()


def test_repeats_of_a_dataset_config_keep_its_comments(page: Page, tmp_path: Path) -> None:
    config = tmp_path / "cats.toml"
    text = f"# mine\n[[datasets]]\n[[datasets.subsets]]\nimage_dir = {str(page.cats)!r}\nnum_repeats = 1 # once\n"
    config.write_text(text)
    page.place = str(config)
    page.post("files/repeats", {"folder": str(page.cats), "repeats": 7})
    assert config.read_text() == text.replace("num_repeats = 1", "num_repeats = 7")
    assert page.captions()["a"]["text"] == "cat, a"
    page.post("captions/undo")
    assert config.read_text() == text


def test_the_masks_of_a_folder_are_named_in_its_dataset_config(page: Page, tmp_path: Path) -> None:
    config = tmp_path / "cats.toml"
    text = f"[[datasets]]\n[[datasets.subsets]] # cats\nimage_dir = {str(page.cats)!r}\n"
    config.write_text(text)
    page.place = str(config)
    body = {"folder": str(page.cats)}
    masks = page.root / "masks"
    assert page.refused("files/masks", body) == f"masks: folder not found: '{masks}'; paint masks first"
    masks.mkdir()
    page.post("files/masks", body)
    assert config.read_text() == f'{text}conditioning_data_dir = "{masks}"\n'
    page.post("captions/undo")
    assert config.read_text() == text


def test_captions_of_a_metadata_file_are_edited_in_it(page: Page, tmp_path: Path) -> None:
    meta = page.cats / "meta.json"
    meta.write_text('{"a": {"caption": "one", "score": 1.0}, "b": {"tags": "x, y"}}')
    page.place = str(meta)
    captions = page.captions()
    assert (captions["a"]["text"], captions["b"]["text"]) == ("one", "x, y")
    assert captions["c"]["problem"] == "The metadata file has no entry for this image"
    page.post("captions/write", page.edit("two"))
    assert meta.read_text() == '{"a": {"caption": "two", "score": 1.0}, "b": {"tags": "x, y"}}'


def test_files_are_uploaded_together_and_exported(page: Page) -> None:
    batch = page.post("upload/begin", {"folder": str(page.cats)})["batch"]
    for name, content in (("n.png", image_bytes(77)), ("n.txt", b"new"), ("a.png", image_bytes(99))):
        assert page.send(batch, name, content).json() == {"ok": True}
    assert sorted(page.captions()) == ["a", "b", "c", "d"]  # nothing is in the set before all has arrived
    answer = page.post("upload/finish", {"folder": str(page.cats), "batch": batch})
    assert answer["done"] == "2 images added, 1 file renamed"
    assert page.captions()["n"]["text"] == "new"
    exported = page.post("export", {"images": {str(page.cats): ["n.png", "a (2).png"]}})
    archive = page.browser.get(f"/{exported['url']}")
    with zipfile.ZipFile(io.BytesIO(archive.content)) as opened:
        assert sorted(opened.namelist()) == ["cats/10_cat/a (2).png", "cats/10_cat/n.png", "cats/10_cat/n.txt"]
    assert page.browser.get(f"/{exported['url']}").status_code == 404


def test_no_request_leads_out_of_the_dataset(page: Page, tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("secret")
    batch = page.post("upload/begin")["batch"]
    wrong = [
        page.refused("captions/read", {"images": {str(tmp_path): ["secret.txt"]}}),
        page.refused("captions/read", {"images": {str(page.cats): ["../../secret.txt"]}}),
        page.refused("captions/read", {"extension": "/../../secret.txt"}),
        page.refused("captions/write", {"edits": {str(secret): {"text": "x"}}}),
        page.refused("files/remove", {"images": {str(page.cats): ["a.txt"]}}),
        page.refused("files/move", {"images": {str(page.cats): ["a.png"]}, "target": str(tmp_path)}),
        page.refused("files/put-back", {"paths": [str(secret)]}),
        page.refused("upload/begin", {"folder": str(tmp_path)}),
        page.refused("upload/finish", {"batch": "../../.."}),
        page.send(batch, "../../evil.png", image_bytes()).json()["error"],
        page.send(batch, "evil.svg", b"<svg onload='alert(1)'/>").json()["error"],
        page.send("../" * 5, "evil.png", image_bytes()).json()["error"],
        page.send(batch, "evil.png", image_bytes(), tmp_path).json()["error"],
    ]
    assert all(sentence and "Traceback" not in sentence for sentence in wrong)
    assert secret.read_text() == "secret"
    assert sorted(page.captions()) == ["a", "b", "c", "d"]


def test_links_out_of_the_allowed_folders_are_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.txt").write_text("secret")
    (outside / "secret.png").write_bytes(image_bytes(3))
    page = Page(tmp_path, AllowedPaths.within([tmp_path / "cats"]))
    (page.cats / "l.png").write_bytes(image_bytes(5))
    (page.cats / "l.txt").symlink_to(outside / "secret.txt")
    assert "outside the allowed folders" in page.refused("captions/read")
    only = {"images": {str(page.cats): ["l.png"]}, "edit": {"kind": "add", "text": "x"}, "digest": ""}
    assert "outside the allowed folders" in page.refused("captions/bulk", only)
    (page.cats / "l.txt").unlink()
    (page.cats / "l.png").unlink()
    (page.cats / "l.png").symlink_to(outside / "secret.png")
    for path, more in (("files/move", {"target": str(page.dogs)}), ("files/remove", {}), ("export", {})):
        assert "outside the allowed folders" in page.refused(path, {"images": only["images"], **more})
    page.place = str(outside)
    assert "outside the allowed folders" in page.refused("captions/read")
    config = page.root / "set.toml"
    config.write_text(f"[[datasets]]\n[[datasets.subsets]]\nimage_dir = {str(outside)!r}\n")
    page.place = str(config)
    assert "outside the allowed folders" in page.refused("captions/read")
    assert (outside / "secret.txt").read_text() == "secret"
