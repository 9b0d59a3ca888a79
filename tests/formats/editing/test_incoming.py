"""Uploads arrive whole or not at all, stay in their folder, and write over nothing; archives are not trusted."""

import io
import stat
import zipfile

import pytest
from PIL import Image

from sd_scripts.formats.editing import incoming
from sd_scripts.formats.editing.incoming import Incoming, Received
from sd_scripts.formats.editing.outgoing import zipped
from tests.formats.editing.conftest import Dataset


def image_bytes(colour: int = 0) -> bytes:
    made = io.BytesIO()
    Image.new("RGB", (8, 8), (colour, 0, 0)).save(made, "PNG")
    return made.getvalue()


def archive(**files: bytes) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as opened:
        for name, content in files.items():
            opened.writestr(name, content)
    return made.getvalue()


def arrived(dataset: Dataset, files: dict[str, bytes]) -> Received:
    sent = Incoming(dataset.folder, Incoming.new_batch())
    for name, content in files.items():
        with sent.file(name, len(content)) as sink:
            sink.write(content)
    received = sent.finish()
    dataset.editor.move(dataset.scope, "Upload", received.moves)
    sent.discard()
    return received


def test_images_captions_and_archives_arrive_and_an_undo_removes_them(dataset: Dataset) -> None:
    before = dataset.names()
    packed = archive(**{"sub/z.png": image_bytes(9), "sub/z.txt": b"zoo", "__MACOSX/._z.png": b"", "read.me": b"?"})
    received = arrived(dataset, {"n.png": image_bytes(), "n.txt": b"new", "more.zip": packed})
    assert dataset.names() == sorted([*before, "n.png", "n.txt", "z.png", "z.txt"])
    assert received.images == 2
    assert received.skipped == ["read.me: is neither an image nor a caption"]
    dataset.editor.undo(dataset.scope)
    assert [name for name in dataset.names() if not name.startswith(".trash")] == before
    dataset.editor.redo(dataset.scope)
    assert (dataset.folder / "n.txt").read_text() == "new"


def test_a_taken_name_gets_a_number_and_its_caption_too(dataset: Dataset) -> None:
    received = arrived(dataset, {"a.png": image_bytes(200), "a.txt": b"different", "b.txt": b"cat, garden\n"})
    assert received.renamed == ["a (2).png", "a (2).txt"]
    assert received.present == ["b.txt"]
    assert dataset.captions()["a"] == "cat, sofa"
    assert dataset.captions()["a (2)"] == "different"


def test_images_of_several_folders_arrive_where_training_reads_them(dataset: Dataset) -> None:
    before = dataset.names()
    files = {"x/n.png": image_bytes(1), "x/n.txt": b"one", "y/n.png": image_bytes(2), "y/n.txt": b"two"}
    packed = archive(**{"set/masks/10_cat/n.png": image_bytes()})
    received = arrived(dataset, {**files, "20_dog/n.png": image_bytes(3), "set.zip": packed})
    new = ["n.png", "n (2).png", "n (2).txt", "n (3).png", "n (3).txt"]
    assert dataset.names() == sorted([*before, *new])
    assert [dataset.captions()[name] for name in ("n (2)", "n (3)")] == ["one", "two"]
    assert "is a mask; put it into the folder 'masks'" in received.skipped[0]
    root = dataset.folder.parent / "all"
    root.mkdir()
    sent = Incoming(root, Incoming.new_batch())
    with sent.file("set/20_dog/n.png", 0) as sink:
        sink.write(image_bytes())
    assert [move.target for move in sent.finish().moves] == [root / "20_dog" / "n.png"]


@pytest.mark.parametrize(
    "name",
    [
        *("../a.png", "/etc/a.png", "a/../../b.png", "..\\a.png", "C:\\a.png", "C:a.png", "a//b.png", "", "."),
        *(".hidden.png", "a/.git/b.png", "con.png", "a/b/c/d/e.png", "a.png.", "a\nb.png", "x" * 300 + ".png"),
        *("page.svg", "run.exe", "a.png/", "settings.toml", "model.safetensors"),
    ],
)
def test_a_name_that_leads_elsewhere_or_is_not_an_image_is_refused(dataset: Dataset, name: str) -> None:
    before = dataset.names()
    with pytest.raises(ValueError), Incoming(dataset.folder, Incoming.new_batch()).file(name, 1):  # noqa: PT011
        pass
    packed = archive(**{name or "x": image_bytes(), "good.png": image_bytes()})
    arrived(dataset, {"set.zip": packed})
    assert dataset.names() == sorted([*before, "good.png"])
    assert not [path for path in dataset.folder.parent.iterdir() if path.name not in ("10_cat", "studio")]


def test_an_archive_that_would_fill_the_disk_is_refused(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    before = dataset.names()
    bomb = archive(**{f"{n}.txt": bytes(300_000) for n in range(4)})
    link = zipfile.ZipInfo("l.png")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    linked = io.BytesIO()
    with zipfile.ZipFile(linked, "w") as opened:
        opened.writestr(link, "/etc/passwd")
    monkeypatch.setattr(incoming, "MOST_FILES", 5)
    for content, problem in (
        (bomb, "would unpack to 1.2 MB"),
        (archive(**{f"{n}.txt": b"" for n in range(6)}), "has 6 files; the maximum is 5"),
        (archive(a=b"x" * 99)[:60], "not a complete zip archive"),
    ):
        sent = Incoming(dataset.folder, Incoming.new_batch())
        with sent.file("set.zip", len(content)) as sink:
            sink.write(content)
        with pytest.raises(ValueError, match=problem):
            sent.finish()
        sent.discard()
    assert arrived(dataset, {"set.zip": linked.getvalue()}).skipped == ["l.png: is a link"]
    assert dataset.names() == before


def test_an_archive_that_lies_about_its_sizes_stops_at_the_limit(dataset: Dataset) -> None:
    content = bytearray(archive(**{"a.txt": bytes(range(256)) * 40_000}))
    place = content.rindex(b"PK\x01\x02") + 24
    content[place : place + 4] = (100).to_bytes(4, "little")  # the size that the directory declares
    sent = Incoming(dataset.folder, Incoming.new_batch())
    with sent.file("set.zip", len(content)) as sink:
        sink.write(bytes(content))
    with pytest.raises(ValueError, match=r"not a complete zip archive|more than it declares"):
        sent.finish()


def test_a_file_over_the_limit_or_without_room_leaves_nothing(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(incoming, "LARGEST_FILE", 10)
    sent = Incoming(dataset.folder, Incoming.new_batch())
    with pytest.raises(ValueError, match="is too large"), sent.file("n.png", 5) as sink:
        sink.write(b"x" * 11)
    with pytest.raises(ValueError, match="free some space"), sent.file("n.png", 1 << 60):
        pass
    sent.discard()
    assert not (dataset.folder / ".trash").exists()


def test_an_image_that_is_cut_off_is_named_and_left_out(dataset: Dataset) -> None:
    received = arrived(dataset, {"n.png": image_bytes()[:20], "m.png": b"<svg onload=alert(1)>"})
    assert received.skipped == ["m.png: is not an image, or is cut off", "n.png: is not an image, or is cut off"]
    assert not (dataset.folder / "n.png").exists()


def test_an_exported_archive_has_the_same_files(dataset: Dataset) -> None:
    files = [path for path in sorted(dataset.folder.iterdir()) if path.is_file()]
    packed = io.BytesIO(b"".join(zipped([*files, dataset.folder / "gone.png"], dataset.folder.parent)))
    with zipfile.ZipFile(packed) as opened:
        assert opened.testzip() is None
        assert {name: opened.read(name) for name in opened.namelist()} == {
            f"10_cat/{path.name}": path.read_bytes() for path in files
        }
