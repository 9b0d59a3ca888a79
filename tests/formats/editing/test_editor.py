"""Captions are changed whole or not at all, and nobody's text is lost."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sd_scripts.formats.disk import NotWritten
from sd_scripts.formats.editing.editor import ChangedOutside, Editor, TextEdit
from sd_scripts.formats.editing.journal import Journal
from sd_scripts.formats.editing.places import Place, caption_places, content_of, read_places, text_of, version_of
from tests.formats.editing.conftest import Dataset

AUTHOR_OF_B = "cat, garden\n"


def edits(dataset: Dataset, **texts: str) -> list[TextEdit]:
    return [TextEdit(place=dataset.place(stem), text=text) for stem, text in texts.items()]


def test_a_caption_keeps_its_line_ends_its_byte_order_mark_and_its_mode(dataset: Dataset) -> None:
    file = dataset.folder / "w.txt"
    file.write_bytes(b"\xef\xbb\xbfcat\r\nsofa\r\n")
    file.chmod(0o640)
    dataset.editor.write(dataset.scope, "Edit", [TextEdit(place=Place(file), text="dog\nsofa")])
    assert file.read_bytes() == b"\xef\xbb\xbfdog\r\nsofa\r\n"
    assert file.stat().st_mode & 0o777 == 0o640


def test_a_text_that_was_read_is_written_back_as_the_same_bytes() -> None:
    place = Place(Path("a.txt"))
    for content in (b"", b"a", b"a\n", b"a\r\nb", b"\xef\xbb\xbfa\r\n", "é\u2028b".encode()):
        assert content_of(place, text_of(place, content), content) == content


def test_undo_and_redo_work_after_a_restart(dataset: Dataset, tmp_path: Path) -> None:
    before = dataset.captions()
    dataset.editor.write(dataset.scope, "One", edits(dataset, a="dog", b="dog, garden"))
    after = dataset.captions()
    dataset.editor.write(dataset.scope, "Two", edits(dataset, a="bird"))
    restarted = Editor(Journal(tmp_path / "studio"))
    assert [restarted.undo(dataset.scope).label for _ in "12"] == ["Two", "One"]
    assert dataset.captions() == before
    assert restarted.redo(dataset.scope).label == "One"
    assert dataset.captions() == after


def test_an_undone_new_caption_is_removed(dataset: Dataset) -> None:
    dataset.add("d.png")
    dataset.editor.write(dataset.scope, "New", edits(dataset, d="dog"))
    dataset.editor.undo(dataset.scope)
    assert not (dataset.folder / "d.txt").exists()


def test_a_change_from_outside_is_never_overwritten(dataset: Dataset) -> None:
    seen = version_of((dataset.folder / "a.txt").read_bytes())
    (dataset.folder / "a.txt").write_text("theirs")
    both = [TextEdit(place=dataset.place("a"), text="mine", seen=seen), *edits(dataset, b="dog")]
    with pytest.raises(ChangedOutside, match=r"1 caption changed outside this page: a.txt") as raised:
        dataset.editor.write(dataset.scope, "Edit", both)
    (conflict,) = raised.value.conflicts
    assert (conflict.theirs, conflict.yours) == ("theirs", "mine")
    assert dataset.captions() == {"a": "theirs", "b": AUTHOR_OF_B, "c": "cat"}


def test_an_undo_is_refused_after_a_change_from_outside(dataset: Dataset) -> None:
    dataset.editor.write(dataset.scope, "Edit", edits(dataset, a="dog", b="dog"))
    (dataset.folder / "a.txt").write_text("theirs")
    with pytest.raises(ChangedOutside):
        dataset.editor.undo(dataset.scope)
    assert dataset.captions() == {"a": "theirs", "b": "dog\n", "c": "cat"}


def test_a_full_disk_changes_no_caption(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    before = dataset.captions()
    free = iter("12")

    def fsync(descriptor: int) -> None:
        if not next(free, ""):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(NotWritten, match="the disk is full"):
        dataset.editor.write(dataset.scope, "Edit", edits(dataset, a="first", b="second", c="third"))
    assert dataset.captions() == before
    assert not [name for name in dataset.names() if name.startswith(".")]
    assert dataset.editor.next_actions(dataset.scope) == (None, None)


KILLED = """
import os, sys
from pathlib import Path
from sd_scripts.formats.editing import editor
from sd_scripts.formats.editing.journal import Journal
from sd_scripts.formats.editing.places import Place
folder, studio = map(Path, sys.argv[1:])
replaced = os.replace
def kill_at_the_second(source, target):
    if str(target).endswith("b.txt"):
        os.kill(os.getpid(), 9)
    replaced(source, target)
editor.os.replace = kill_at_the_second
edits = [editor.TextEdit(place=Place(folder / f"{name}.txt"), text="dog") for name in "abc"]
editor.Editor(Journal(studio)).write(str(folder), "Edit", edits)
"""


@pytest.mark.skipif(os.name == "nt", reason="there is no SIGKILL")
def test_a_kill_in_the_middle_changes_no_caption(dataset: Dataset, tmp_path: Path) -> None:
    before = dataset.captions()
    done = subprocess.run([sys.executable, "-c", KILLED, dataset.folder, tmp_path / "studio"], check=False)
    assert done.returncode == -9
    assert dataset.captions() != before
    with dataset.editor.alone():
        pass
    assert dataset.captions() == before
    assert not [name for name in dataset.names() if name.startswith(".")]


def test_recovery_keeps_what_was_changed_after_the_kill(dataset: Dataset, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", KILLED, dataset.folder, tmp_path / "studio"], check=False)
    (dataset.folder / "a.txt").write_text("theirs")
    dataset.editor.write(dataset.scope, "Edit", edits(dataset, b="mine"))
    assert dataset.captions() == {"a": "theirs", "b": "mine\n", "c": "cat"}


def test_two_who_edit_one_caption_do_not_overwrite_each_other(dataset: Dataset, tmp_path: Path) -> None:
    other = Editor(Journal(tmp_path / "studio"))
    seen = version_of((dataset.folder / "a.txt").read_bytes())
    dataset.editor.write(dataset.scope, "Mine", [TextEdit(place=dataset.place("a"), text="mine", seen=seen)])
    with pytest.raises(ChangedOutside):
        other.write(dataset.scope, "Theirs", [TextEdit(place=dataset.place("a"), text="theirs", seen=seen)])
    assert dataset.captions()["a"] == "mine"
    other.undo(dataset.scope)
    assert dataset.captions()["a"] == "cat, sofa"


def test_the_author_of_each_caption_is_remembered_and_comes_back_with_an_undo(dataset: Dataset) -> None:
    place = dataset.place("a")

    def author() -> object:
        return dataset.editor.journal.authors(read_places([place])).get(place)

    assert author() == "outside"
    dataset.editor.write(dataset.scope, "Tag", edits(dataset, a="tags"), "tagger")
    assert author() == "tagger"
    dataset.editor.write(dataset.scope, "Edit", edits(dataset, a="by hand"))
    assert author() == "hand"
    dataset.editor.undo(dataset.scope)
    assert author() == "tagger"
    (dataset.folder / "a.txt").write_text("theirs")
    assert author() == "outside"


def test_a_restore_point_puts_all_captions_back(dataset: Dataset) -> None:
    before = dataset.captions()
    contents = read_places([dataset.place(stem) for stem in "abc"])
    point = dataset.editor.journal.add_point(dataset.scope, "Before tags", contents)
    dataset.editor.write(dataset.scope, "Edit", edits(dataset, a="x", b="y", c="z"))
    dataset.editor.restore(dataset.scope, point, "Before tags")
    assert dataset.captions() == before
    dataset.editor.undo(dataset.scope)
    assert dataset.captions() == {"a": "x", "b": "y\n", "c": "z"}


def test_a_damaged_journal_is_set_aside_with_a_sentence(dataset: Dataset, tmp_path: Path) -> None:
    (tmp_path / "studio").mkdir()
    (tmp_path / "studio" / "edits.sqlite").write_bytes(b"not SQLite" * 500)
    with pytest.raises(ValueError, match=r"is damaged .* and was renamed"):
        dataset.editor.write(dataset.scope, "Edit", edits(dataset, a="dog"))
    dataset.editor.write(dataset.scope, "Edit", edits(dataset, a="dog"))
    assert dataset.captions()["a"] == "dog"


def test_a_caption_behind_a_link_is_written_where_it_is(dataset: Dataset, tmp_path: Path) -> None:
    real = tmp_path / "captions.txt"
    real.write_text("cat")
    image = dataset.add("l.png")
    (dataset.folder / "l.txt").symlink_to(real)
    place = caption_places([image], ".txt")[image]
    dataset.editor.write(dataset.scope, "Edit", [TextEdit(place=place, text="dog")])
    assert real.read_text() == "dog"
    assert (dataset.folder / "l.txt").is_symlink()


def test_images_share_a_caption_as_in_training(dataset: Dataset) -> None:
    face = dataset.add("face_120_80_60_60.png")
    (dataset.folder / "face.txt").write_text("a face")
    assert caption_places([face], ".txt")[face] == dataset.place("face")


def test_what_is_not_a_caption_is_refused_in_one_sentence(dataset: Dataset) -> None:
    (dataset.folder / "a.txt").write_bytes("katze".encode("utf-16"))
    with pytest.raises(ValueError, match="not UTF-8 text; save it as UTF-8"):
        dataset.editor.write(dataset.scope, "Edit", edits(dataset, a="dog"))
    os.mkfifo(dataset.folder / "p.txt")
    with pytest.raises(ValueError, match="not a regular file"):
        dataset.editor.write(dataset.scope, "Edit", edits(dataset, p="dog"))
    with pytest.raises(ValueError, match="characters that are not valid"):
        dataset.editor.write(dataset.scope, "Edit", edits(dataset, b="a\0b"))
    with pytest.raises(ValueError, match="at most 100,000 bytes"):
        dataset.editor.write(dataset.scope, "Edit", edits(dataset, b="x" * 200_000))
