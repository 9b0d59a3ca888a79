"""Masks that are painted and images that are cut by hand: what is saved is what training reads, nothing is lost, and no
request leads out of the dataset."""

import base64
import os
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from starlette.applications import Starlette
from starlette.testclient import TestClient

from kohya_gui.access.allowed_paths import EVERYWHERE, AllowedPaths
from kohya_gui.dataset.editing import caption_routes, crop_routes, mask_routes, set_routes
from kohya_gui.dataset.editing.mask_routes import drawing_process
from kohya_gui.server.resident_process import ResidentProcess
from sd_scripts.data.plan.epochs import plan_epoch
from sd_scripts.data.reader import BatchReader
from sd_scripts.data.sources.images import Pixels, read_image, read_mask
from sd_scripts.dataset_view.masks import EDITED_SIDE
from sd_scripts.formats.editing.editor import Editor
from sd_scripts.formats.editing.journal import Journal
from sd_scripts.machine.thumbnail_store import image_key
from sd_scripts.runs.queue import RunQueue
from sd_scripts.runs.store import RunStore
from tests.support.data import make_image, plan_of

pytestmark = pytest.mark.run
SIZE = (96, 64)


@pytest.fixture(scope="module")
def process() -> Iterator[ResidentProcess]:
    made = drawing_process()
    yield made
    made.close()


class Page:
    """A browser with a dataset open: cats/10_cat with two captioned images."""

    def __init__(self, folder: Path, process: ResidentProcess, allowed_paths: AllowedPaths = EVERYWHERE) -> None:
        self.root = folder / "cats"
        self.cats, self.masks = self.root / "10_cat", self.root / "masks" / "10_cat"
        for seed, name in enumerate("ab"):
            make_image(self.cats / f"{name}.png", SIZE, seed)
            (self.cats / f"{name}.txt").write_text(f"cat, {name}")
        self.editor = Editor(Journal(folder / "journal"))
        queue = RunQueue(RunStore(folder / "runs.sqlite"), every=0.05)
        routes = [
            *mask_routes.routes(self.editor, allowed_paths, process),
            *crop_routes.routes(self.editor, queue, allowed_paths, process),
            *set_routes.routes(self.editor, queue, allowed_paths),
            *caption_routes.routes(self.editor, allowed_paths),
        ]
        self.browser = TestClient(Starlette(routes=routes))

    def post(self, path: str, image: str = "a.png", *, status: int = 200, **body: Any) -> Any:
        whole = {"place": str(self.root), "images": {str(self.cats): [image]}, **body}
        answer = self.browser.post(f"/studio/dataset/{path}", json=whole)
        assert answer.status_code == status, answer.text
        return answer.json()

    def refused(self, path: str, image: str = "a.png", **body: Any) -> str:
        return str(self.post(path, image, status=400, **body)["error"])

    def paint(self, pixels: Pixels | None, image: str = "a.png", **body: Any) -> Any:
        version = self.post("masks/read", image, **body)["version"]
        mask = None if pixels is None else sent(pixels)
        return self.post("masks/write", image, mask=mask, **{"version": version, **body})

    def key(self, image: str = "a.png") -> str:
        stat = (self.cats / image).stat()
        return image_key(str(self.cats / image), stat.st_size, stat.st_mtime_ns)

    def crop(self, box: tuple[int, int, int, int], image: str = "a.png", **body: Any) -> Any:
        return self.post("crop", image, box=box, key=self.key(image), **body)

    def names(self) -> list[str]:
        return sorted(path.relative_to(self.root).as_posix() for path in self.root.rglob("*") if path.is_file())

    def undo(self) -> None:
        self.editor.undo(str(self.root))


@pytest.fixture
def page(tmp_path: Path, process: ResidentProcess) -> Page:
    return Page(tmp_path, process)


def sent(pixels: Pixels) -> dict[str, Any]:
    packed = base64.b64encode(zlib.compress(pixels.tobytes())).decode()
    return {"width": pixels.shape[1], "height": pixels.shape[0], "pixels": packed}


def shown(answer: dict[str, Any]) -> Pixels:
    content = zlib.decompress(base64.b64decode(answer["pixels"]))
    return np.frombuffer(content, np.uint8).reshape(answer["height"], answer["width"])


def painting(seed: int = 5, size: tuple[int, int] = SIZE) -> Pixels:
    return np.random.default_rng(seed).integers(0, 256, size[::-1], dtype=np.uint8)


def test_what_is_painted_is_what_a_batch_weighs_the_loss_with(page: Page) -> None:
    pixels = painting()
    answer = page.paint(pixels)
    assert (answer["done"], answer["file"]) == ("Paint the mask of a.png", "a.png")
    assert page.post("masks/fill", images=None)["done"] == "White masks for 1 image"
    masks = {"conditioning_data_dir": str(page.root / "masks"), "masked_loss": True, "enable_bucket": False}
    plan = plan_of(page.root, resolution="96,64", **masks)
    reader = BatchReader(plan, max_train_steps=9)
    read = {
        plan.items[planned.picks[0][0]].path.name: batch.mask[0, 0].mul(255).numpy()
        for planned in plan_epoch(plan, 1)
        if (batch := reader[planned][0]) is not None and batch.mask is not None
    }
    assert np.array_equal(read["a.png"], pixels)
    assert read["b.png"].min() == 255
    assert np.array_equal(shown(page.post("masks/read")["mask"]), pixels)


def test_a_large_image_is_painted_small_and_its_mask_has_its_size(page: Page) -> None:
    Image.new("RGB", (2 * EDITED_SIDE, EDITED_SIDE)).save(page.cats / "a.png")
    pixels = np.full((EDITED_SIDE // 2, EDITED_SIDE), 255, np.uint8)
    pixels[:, : EDITED_SIDE // 2] = 0
    page.paint(pixels)
    with Image.open(page.masks / "a.png") as mask:
        assert (mask.size, mask.mode) == ((2 * EDITED_SIDE, EDITED_SIDE), "L")
    back = shown(page.post("masks/read")["mask"])
    assert {*np.flatnonzero((back != pixels).any(axis=0))} <= {EDITED_SIDE // 2 - 1, EDITED_SIDE // 2}  # its edge


def test_painting_is_undone_step_by_step_and_a_mask_is_removed(page: Page) -> None:
    before = page.names()
    page.paint(painting(1))
    first = (page.masks / "a.png").read_bytes()
    page.paint(painting(2))
    page.paint(None)
    assert page.names() == before
    page.undo()
    page.undo()
    assert (page.masks / "a.png").read_bytes() == first
    page.undo()
    assert page.names() == before
    page.editor.redo(str(page.root))
    assert (page.masks / "a.png").read_bytes() == first


def test_a_mask_that_changed_outside_is_not_written_over(page: Page) -> None:
    page.paint(painting(1))
    version = page.post("masks/read")["version"]
    Image.fromarray(painting(2)).save(page.masks / "a.png")
    theirs = (page.masks / "a.png").read_bytes()
    answer = page.post("masks/write", version=version, mask=sent(painting(3)))
    assert answer["refused"] == "1 mask changed outside this page: a.png; nothing was written"
    assert (page.masks / "a.png").read_bytes() == theirs
    with pytest.raises(ValueError, match="1 mask changed outside this page"):
        page.undo()
    page.post("masks/write", version=answer["version"], mask=sent(painting(3)))
    assert np.array_equal(read_mask(page.masks / "a.png"), painting(3))


def test_a_mask_of_a_different_format_is_replaced_by_a_png(page: Page) -> None:
    page.masks.mkdir(parents=True)
    Image.fromarray(painting(1)).save(page.masks / "a.jpg")
    theirs = (page.masks / "a.jpg").read_bytes()
    page.paint(painting(2))
    assert [path.name for path in page.masks.iterdir()] == ["a.png"]
    page.undo()
    assert [path.read_bytes() for path in page.masks.iterdir()] == [theirs]


def test_a_full_disk_keeps_the_mask_that_is_there(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    page.paint(painting(1))
    before = {name: (page.root / name).read_bytes() for name in page.names()}
    replace = os.replace

    def full(source: Path, target: Path) -> None:
        if Path(target).name == "a.png":
            raise OSError(28, "No space left on device", str(target))
        replace(source, target)

    monkeypatch.setattr(os, "replace", full)
    version = page.post("masks/read")["version"]
    assert "the disk is full" in page.refused("masks/write", version=version, mask=sent(painting(2)))
    assert {name: (page.root / name).read_bytes() for name in page.names()} == before


def test_a_restore_point_has_the_masks_too(page: Page) -> None:
    page.paint(painting(1))
    first = (page.masks / "a.png").read_bytes()
    (point,) = page.post("captions/points/add", name="Before")["points"]
    assert (point["captions"], point["masks"]) == (2, 1)
    page.paint(painting(2))
    page.paint(painting(3), "b.png")
    (page.cats / "b.txt").write_text("a different cat")
    answer = page.post("captions/points/restore", point=point["id"])
    assert answer["done"] == "Restored 1 caption and 2 masks"
    assert [path.read_bytes() for path in page.masks.iterdir()] == [first]
    page.undo()
    assert np.array_equal(read_mask(page.masks / "b.png"), painting(3))


def test_a_cut_replaces_its_image_with_mask_and_control_image(page: Page, tmp_path: Path) -> None:
    controls = tmp_path / "controls" / "10_cat"
    for name in ("a.png", "b.png"):
        make_image(controls / name, (SIZE[0] * 2, SIZE[1] * 2), 7)
    control = read_image(controls / "a.png")[0]
    pixels, mask = read_image(page.cats / "a.png")[0], painting()
    (page.cats / "a_0096x0064_sdxl.safetensors").write_bytes(b"cache")
    page.paint(mask)
    before = {name: (page.root / name).read_bytes() for name in page.names()}
    answer = page.crop((10, 4, 40, 50), masks=[str(controls.parent)])
    assert (answer["done"], answer["left"]) == ("Crop a.png", [])
    assert np.array_equal(read_image(page.cats / "a.png")[0], pixels[4:54, 10:50])
    assert np.array_equal(read_mask(page.masks / "a.png"), mask[4:54, 10:50])
    assert np.array_equal(read_image(controls / "a.png")[0], control[8:108, 20:100])
    assert sorted(path.name for path in page.cats.iterdir()) == [".trash", "a.png", "a.txt", "b.png", "b.txt"]
    page.undo()
    assert {name: (page.root / name).read_bytes() for name in before} == before
    assert np.array_equal(read_image(controls / "a.png")[0], control)
    page.editor.redo(str(page.root))
    assert np.array_equal(read_image(page.cats / "a.png")[0], pixels[4:54, 10:50])
    assert page.post("files/empty-trash")["done"] == "Deleted 1 image for good"
    assert not any((page.cats / ".trash").iterdir())


def test_a_cut_of_a_rotated_jpeg_has_the_colours_that_training_reads(page: Page) -> None:
    image = Image.fromarray(painting(3, (64, 64)))
    exif = Image.Exif()
    exif[0x0112] = 6
    image.convert("RGB").resize((64, 32)).save(page.cats / "c.jpg", exif=exif)
    pixels = read_image(page.cats / "c.jpg")[0]
    assert pixels.shape == (64, 32, 3)
    answer = page.crop((2, 8, 30, 40), "c.jpg")
    assert Path(answer["path"]).name == "c.png"
    assert np.array_equal(read_image(page.cats / "c.png")[0], pixels[8:48, 2:32])
    assert not (page.cats / "c.jpg").exists()


def test_a_cut_that_cannot_be_made_changes_nothing(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(page.cats / "b.png", page.cats / "b.jpg")
    before = page.names()
    wrong = [
        page.refused("crop", box=[0, 0, *SIZE], key=page.key()),
        page.refused("crop", box=[0, 0, SIZE[0] + 1, 10], key=page.key()),
        page.refused("crop", box=[-1, 0, 10, 10], key=page.key()),
        page.refused("crop", box=[0, 0, 0, 10], key=page.key()),
        page.refused("crop", box=[0, 0, 10.0, 10], key=page.key()),
        page.refused("crop", box=[0, 0, 10, 10], key="elsewhere"),
        page.refused("crop", "b.jpg", box=[0, 0, 10, 10], key=page.key("b.jpg")),  # b.png is a different image
        page.refused("crop", "gone.png", box=[0, 0, 10, 10], key=""),
    ]
    link = os.link
    monkeypatch.setattr(os, "link", lambda source, target, **how: full_at("a.png", link, source, target, **how))
    wrong.append(page.refused("crop", box=[0, 0, 10, 10], key=page.key()))
    assert all(sentence and "Traceback" not in sentence for sentence in wrong)
    assert "already exists in '10_cat'" in wrong[6]
    assert "the disk is full" in wrong[8]
    assert page.names() == before


def full_at(name: str, link: Any, source: Path, target: Path, **how: bool) -> None:
    if Path(target).name == name and source.parent.name.startswith(".crop-"):
        raise FileExistsError(28, "No space left on device", str(target))
    link(source, target, **how)


def test_no_mask_or_cut_leads_out_of_the_dataset(tmp_path: Path, process: ResidentProcess) -> None:
    page = Page(tmp_path, process, AllowedPaths.within([tmp_path / "cats"]))
    outside = tmp_path / "outside"
    make_image(outside / "secret.png", SIZE)
    secret = (outside / "secret.png").read_bytes()
    (page.root / "masks").symlink_to(outside)
    make_image(outside / "10_cat" / "a.png", SIZE)
    (page.cats / "l.png").symlink_to(outside / "secret.png")
    huge = {"width": 10**6, "height": 10**6, "pixels": ""}
    bomb = {"width": 8, "height": 8, "pixels": base64.b64encode(zlib.compress(bytes(10**7))).decode()}
    wrong = [
        page.refused("masks/read"),
        page.refused("masks/write", version="-", mask=sent(painting())),
        page.refused("masks/fill"),
        page.refused("masks/read", mask_folder=str(outside)),
        page.refused("masks/read", "../../outside/secret.png"),
        page.refused("crop", "l.png", box=[0, 0, 8, 8], key=page.key("l.png")),
        page.refused("crop", "../../outside/secret.png", box=[0, 0, 8, 8], key=""),
    ]
    assert all("outside the allowed folders" in wrong[number] for number in (0, 1, 2, 3, 5))
    (page.root / "masks").unlink()
    for mask in (huge, bomb, {}, "x", {"width": 8, "height": 8, "pixels": "%%%"}):
        wrong.append(page.refused("masks/write", version="-", mask=mask))
    assert all(sentence and "Traceback" not in sentence for sentence in wrong)
    assert (outside / "secret.png").read_bytes() == secret
    assert sorted(path.name for path in outside.rglob("*")) == ["10_cat", "a.png", "secret.png"]
