"""Images are moved, removed and put back with everything that belongs to them, and no file is written over."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sd_scripts.formats.disk import NotWritten
from sd_scripts.formats.editing.image_group import in_trash, moves_back, moves_to, moves_to_trash, renamed_for
from sd_scripts.formats.editing.journal import Move
from sd_scripts.formats.images.image_folders import find_images, image_folders
from tests.formats.editing.conftest import Dataset

CACHES = (
    *("a_0512x0512_sdxl.safetensors", "a_te_outputs.safetensors", "a_te_outputs_0123abcd.safetensors"),
    *("a_0512x0512_flux.npz", "a.npz"),
)


@pytest.fixture
def full(dataset: Dataset) -> Dataset:
    """Image a with caches of several kinds, next to images whose names begin like it, and a mask."""
    for name in CACHES:
        (dataset.folder / name).write_bytes(b"cache")
    for name in ("a_1.png", "ab.png"):
        dataset.add(name, "other")
        (dataset.folder / f"{Path(name).stem}_0512x0512_sdxl.safetensors").write_bytes(b"other")
    return dataset


def test_an_image_moves_with_caption_caches_and_mask(full: Dataset, tmp_path: Path) -> None:
    target, masks = tmp_path / "5_dog", tmp_path / "masks"
    target.mkdir()
    (masks / "10_cat").mkdir(parents=True)
    for name in ("a", "a_1", "a_2"):  # of image a, of image a_1, and the second control image of image a
        (masks / "10_cat" / f"{name}.png").write_bytes(b"mask")
    before = full.names()
    content = (full.folder / "a.png").read_bytes()
    full.editor.move(full.scope, "Move", *moves_to([full.folder / "a.png"], target, ".txt", (masks,)))
    assert sorted(path.name for path in target.iterdir()) == sorted(["a.png", "a.txt", *CACHES])
    assert sorted(path.name for path in (masks / "5_dog").iterdir()) == ["a.png", "a_2.png"]
    assert full.names() == [name for name in before if name not in ("a.png", "a.txt", *CACHES)]
    assert (target / "a.png").read_bytes() == content
    full.editor.undo(full.scope)
    assert full.names() == before
    assert (masks / "10_cat" / "a.png").exists()


def test_a_caption_that_others_share_is_copied(dataset: Dataset, tmp_path: Path) -> None:
    dataset.add("a.jpg")
    target = tmp_path / "5_dog"
    target.mkdir()
    dataset.editor.move(dataset.scope, "Move", *moves_to([dataset.folder / "a.jpg"], target, ".txt"))
    assert (target / "a.txt").read_text() == (dataset.folder / "a.txt").read_text() == "cat, sofa"
    dataset.editor.undo(dataset.scope)
    assert [*target.iterdir()] == []
    assert (dataset.folder / "a.jpg").exists()


def test_a_removed_image_goes_to_the_trash_and_back(full: Dataset) -> None:
    before = full.names()
    images = [full.folder / "a.png", full.folder / "b.png"]
    full.editor.move(full.scope, "Remove", moves_to_trash(images, ".txt"))
    assert not any((full.folder / name).exists() for name in ("a.png", "a.txt", "b.png", *CACHES))
    trashed = in_trash([full.folder])
    assert [path.name for path in trashed] == ["a.png", "b.png"]
    full.editor.move(full.scope, "Put back", moves_back(trashed))
    assert full.names() == before
    assert not (full.folder / ".trash").exists()


def test_no_file_is_written_over(dataset: Dataset, tmp_path: Path) -> None:
    target = tmp_path / "5_dog"
    target.mkdir()
    (target / "a.txt").write_text("a different cat")
    before = dataset.names()
    with pytest.raises(ValueError, match=r"a.txt already exists in '5_dog'"):
        dataset.editor.move(dataset.scope, "Move", *moves_to([dataset.folder / "a.png"], target, ".txt"))
    assert dataset.names() == before
    dataset.editor.move(dataset.scope, "Remove", moves_to_trash([dataset.folder / "b.png"], ".txt"))
    dataset.add("b.png", "a new one")
    with pytest.raises(ValueError, match="already exists"):
        dataset.editor.undo(dataset.scope)
    assert dataset.captions()["b"] == "a new one"


def test_a_full_disk_moves_nothing(dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "5_dog"
    target.mkdir()
    before = dataset.names()
    link = os.link

    def full(source: Path, to: Path, **how: bool) -> None:
        if to.name == "b.txt":
            raise FileExistsError(errno.ENOSPC, "No space left on device", str(to))
        link(source, to, **how)

    monkeypatch.setattr(os, "link", full)
    images = [dataset.folder / "a.png", dataset.folder / "b.png"]
    with pytest.raises(NotWritten, match="the disk is full"):
        dataset.editor.move(dataset.scope, "Move", *moves_to(images, target, ".txt"))
    assert dataset.names() == before
    assert [*target.iterdir()] == []


KILLED = """
import os, sys
from pathlib import Path
from sd_scripts.formats.editing.editor import Editor
from sd_scripts.formats.editing.image_group import moves_to
from sd_scripts.formats.editing.journal import Journal
folder, target, studio = map(Path, sys.argv[1:])
unlink = os.unlink
def kill_at_the_third(path, *more, **how):
    if str(path).endswith("b.png"):
        os.kill(os.getpid(), 9)  # linked at its new place, and still at the old one
    unlink(path, *more, **how)
os.unlink = kill_at_the_third
Editor(Journal(studio)).move(str(folder), "Move", *moves_to([folder / "a.png", folder / "b.png"], target, ".txt"))
"""


@pytest.mark.skipif(os.name == "nt", reason="there is no SIGKILL")
def test_a_kill_in_the_middle_of_a_move_loses_nothing(dataset: Dataset, tmp_path: Path) -> None:
    target = tmp_path / "5_dog"
    target.mkdir()
    before = dataset.names()
    subprocess.run([sys.executable, "-c", KILLED, dataset.folder, target, tmp_path / "studio"], check=False)
    assert sorted(path.name for path in target.iterdir()) == ["a.png", "a.txt", "b.png"]
    with dataset.editor.alone():
        pass
    assert dataset.names() == before
    assert [*target.iterdir()] == []


CUT_OFF = """
import os, sys
from pathlib import Path
from sd_scripts.formats.editing.editor import Editor, FileEdit
from sd_scripts.formats.editing.image_group import moves_of_crop, staging_for
from sd_scripts.formats.editing.journal import Journal
from sd_scripts.formats.editing.places import MISSING, Place
folder, studio, until = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
image, cut = folder / "a.png", staging_for(folder / "a.png", "1")
cut.parent.mkdir(parents=True)
cut.write_bytes(b"cut")
unlink = os.unlink
def kill(path, *more, **how):
    if str(path).endswith(until):
        os.kill(os.getpid(), 9)  # linked at its new place, and still at the old one
    unlink(path, *more, **how)
os.unlink = kill
mask = FileEdit(place=Place(folder / "masks" / "a.png", words="mask"), content=b"mask", seen=MISSING)
Editor(Journal(studio)).write_files(str(folder), "Crop", [mask], moves_of_crop(image, cut, {}, []))
"""


@pytest.mark.skipif(os.name == "nt", reason="there is no SIGKILL")
@pytest.mark.parametrize("until", ["10_cat/a.png", ".crop-1/a.png"])
def test_a_kill_in_the_middle_of_a_cut_loses_no_image(dataset: Dataset, tmp_path: Path, until: str) -> None:
    before = {name: (dataset.folder / name).read_bytes() for name in dataset.names()}
    subprocess.run([sys.executable, "-c", CUT_OFF, dataset.folder, tmp_path / "studio", until], check=False)
    assert (dataset.folder / "masks" / "a.png").read_bytes() == b"mask"
    with dataset.editor.alone():
        pass
    after = {name: (dataset.folder / name).read_bytes() for name in dataset.names()}
    assert {name: content for name, content in after.items() if ".crop-" not in name} == before


def test_repeats_rename_the_folder_and_captions_keep_their_history(dataset: Dataset) -> None:
    from sd_scripts.formats.editing.editor import TextEdit

    root = str(dataset.folder.parent)
    dataset.editor.write(root, "Edit", [TextEdit(place=dataset.place("a"), text="dog")])
    renamed = renamed_for(dataset.folder, 12)
    dataset.editor.move(root, "12 repeats", [Move(source=dataset.folder, target=renamed)])
    assert (renamed / "a.txt").read_text() == "dog"
    for _ in "12":
        dataset.editor.undo(root)
    assert dataset.captions()["a"] == "cat, sofa"
    for _ in "12":
        dataset.editor.redo(root)
    assert (renamed / "a.txt").read_text() == "dog"
    with pytest.raises(ValueError, match="does not begin like 10_cat"):
        renamed_for(Path("cats"), 3)
    with pytest.raises(ValueError, match="repeats: must be 1 to 1,000"):
        renamed_for(renamed, 0)


def test_files_on_a_different_disk_are_copied_and_then_removed(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "5_dog"
    target.mkdir()
    rename = os.rename

    def elsewhere(source: Path, to: Path, **how: bool) -> None:
        if Path(source).parent != Path(to).parent:
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        rename(source, to)

    monkeypatch.setattr(os, "link", elsewhere)
    monkeypatch.setattr(os, "rename", elsewhere)
    content = (dataset.folder / "a.png").read_bytes()
    dataset.editor.move(dataset.scope, "Move", *moves_to([dataset.folder / "a.png"], target, ".txt"))
    assert (target / "a.png").read_bytes() == content
    assert sorted(path.name for path in target.iterdir()) == ["a.png", "a.txt"]
    assert "a.png" not in dataset.names()


def test_training_and_tools_do_not_read_the_trash(dataset: Dataset) -> None:
    dataset.editor.move(dataset.scope, "Remove", moves_to_trash([dataset.folder / "a.png"], ".txt"))
    assert [path.name for path in find_images(dataset.folder.parent, recursive=True)] == ["b.png", "c.png"]
    for root, repeats in ((dataset.folder, 1), (dataset.folder.parent, None)):
        found = image_folders(root, repeats)
        assert (len(found.folders), [remark for remark in found.remarks if "trash" in remark]) == (1, [])
