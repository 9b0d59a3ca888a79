"""Captions in metadata files and settings in dataset_config change nothing around them."""

import json
from pathlib import Path

import pytest

from sd_scripts.formats.editing.dataset_toml import subsets_in, with_subset_value
from sd_scripts.formats.editing.editor import TextEdit
from sd_scripts.formats.editing.places import Place, read_places, text_of
from tests.formats.editing.conftest import Dataset

TABLE = """{
    "a":  {"tags": "cat, sofa",   "train_resolution": [512, 512], "score": 1.50 },
    "b": {"caption": ["one", "two"], "note": {"caption": "not this"}},
\t"é/c" : { }
}
"""
LINES = '{"image_path": "a.png", "caption": "a \\u2028 cat"}\n\n{"image_path": "b.png"}\r\n'
CONFIG = """# my cats
[general]   # all
caption_extension = '.txt'
unknown_key = 1

[[datasets]]
resolution = 512
  [[datasets.subsets]]
  image_dir = 'C:\\cats'  # the first
  num_repeats = 3 # often
  [[datasets.subsets]]
  image_dir = "dogs"
"""


def test_everything_around_a_caption_of_a_metadata_file_stays(dataset: Dataset) -> None:
    file = dataset.folder / "meta.json"
    file.write_text(TABLE)
    new = {("a", "tags"): "dog", ("b", "caption"): "1\n2", ("é/c", "caption"): "c", ("a", "caption"): 'a "dog"'}
    edits = [TextEdit(place=Place(file, key, words), text=text) for (key, words), text in new.items()]  # type: ignore[arg-type]
    dataset.editor.write(dataset.scope, "Edit", edits)
    assert file.read_text() == (
        TABLE.replace('"cat, sofa"', '"dog"')
        .replace('["one", "two"]', '["1", "2"]')
        .replace('{"tags"', '{"caption": "a \\"dog\\"", "tags"')
        .replace("{ }", '{"caption": "c" }')
    )
    dataset.editor.undo(dataset.scope)
    before, after = json.loads(TABLE), json.loads(file.read_text())
    assert after["a"].pop("caption") == after["é/c"].pop("caption") == ""  # as training reads a missing one
    assert after == before


def test_lines_of_a_metadata_file_are_changed_one_by_one(dataset: Dataset) -> None:
    file = dataset.folder / "meta.jsonl"
    file.write_bytes(LINES.encode())
    places = [Place(file, "a.png"), Place(file, "b.png")]
    assert [text_of(*read) for read in read_places(places).items()] == ["a \u2028 cat", ""]
    dataset.editor.write(dataset.scope, "Edit", [TextEdit(place=places[1], text="dog")])
    assert (
        file.read_bytes()
        == LINES.replace('{"image_path": "b.png"', '{"caption": "dog", "image_path": "b.png"').encode()
    )


@pytest.mark.parametrize("text", ["[]", "{", '{"a": 1}', '{"a": {}} x', "[" * 100_000, '{"b": {}}', '{"a" {}}'])
def test_a_file_that_is_not_metadata_stays_unchanged(dataset: Dataset, text: str) -> None:
    file = dataset.folder / "meta.json"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"is not a metadata file|has no entry"):
        dataset.editor.write(dataset.scope, "Edit", [TextEdit(place=Place(file, "a"), text="dog")])
    assert file.read_text() == text


def test_a_setting_of_a_subset_changes_its_line_alone(tmp_path: Path) -> None:
    for line_end in ("\n", "\r\n"):
        text = CONFIG.replace("\n", line_end).encode()
        changed = with_subset_value(text, (0, 0), "num_repeats", 12)
        assert changed == text.replace(b"num_repeats = 3", b"num_repeats = 12")
        added = with_subset_value(text, (0, 1), "num_repeats", 2)
        assert added == text + f"  num_repeats = 2{line_end}".encode()


def test_subsets_are_read_with_what_applies_to_them(tmp_path: Path) -> None:
    file = tmp_path / "cats.toml"
    file.write_text(CONFIG)
    cats, dogs = subsets_in(file)
    assert (cats.place, dogs.place) == ((0, 0), (0, 1))
    assert [cats.values[key] for key in ("image_dir", "num_repeats", "caption_extension")] == ["C:\\cats", 3, ".txt"]
    assert (dogs.values["image_dir"], dogs.values["resolution"]) == ("dogs", 512)
    with pytest.raises(ValueError, match="has no subset 3 of dataset 1"):
        with_subset_value(file.read_bytes(), (0, 2), "num_repeats", 1)
