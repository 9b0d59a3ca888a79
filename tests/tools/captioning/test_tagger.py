"""WD14-family taggers: images as these models read them, which tags are written, and files that are not a tagger."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sd_scripts.options.captioning.text import TaggerOptions
from sd_scripts.tools.captioning.tagger import Tagger, prepared
from sd_scripts.tools.captioning.tags import Tag, TagRules
from tests.support.captioning_models.tagging import write_tagger

KNOWN = [
    Tag(name="solo", category="general"),
    Tag(name="blue_sky", category="general"),
    Tag(name="o_o", category="general"),
    Tag(name="fox_(forest)", category="character"),
    Tag(name="highres", category="meta"),
    Tag(name="sensitive", category="rating"),
    Tag(name="general", category="rating"),
]
CONFIDENCES = np.array([0.5, 0.9, 0.4, 0.6, 0.3, 0.2, 0.7], np.float32)


def chosen(**options: object) -> str:
    return ", ".join(TagRules(KNOWN, TaggerOptions(**options)).choose(CONFIDENCES))  # type: ignore[arg-type]


def test_an_image_is_padded_with_white_to_a_square_in_bgr() -> None:
    red = np.zeros((2, 4, 3), np.uint8)
    red[..., 0] = 255
    seen = prepared(red, 4)
    assert (seen.dtype, seen.shape) == (np.float32, (4, 4, 3))
    assert seen[0].tolist() == seen[3].tolist() == [[255.0] * 3] * 4
    assert seen[1].tolist() == seen[2].tolist() == [[0.0, 0.0, 255.0]] * 4
    assert prepared(red, 2).shape == (2, 2, 3)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "blue sky, fox (forest), solo, o_o"),
        ({"tag_order": "model"}, "solo, blue sky, o_o, fox (forest)"),
        ({"tag_order": "alphabetical"}, "blue sky, fox (forest), o_o, solo"),
        ({"remove_underscore": False}, "blue_sky, fox_(forest), solo, o_o"),
        ({"thresh": 0.55}, "blue sky, fox (forest)"),
        ({"thresh": 0.55, "meta_threshold": 0.1, "general_threshold": 1.0}, "fox (forest), highres"),
        ({"character_threshold": 0.7}, "blue sky, solo, o_o"),
        ({"character_tags_first": True}, "fox (forest), blue sky, solo, o_o"),
        ({"character_tag_expand": True}, "blue sky, fox, forest, solo, o_o"),
        ({"undesired_tags": "Blue sky, solo"}, "fox (forest), o_o"),
        ({"always_first_tags": "solo,hat"}, "solo, blue sky, fox (forest), o_o"),
        ({"use_rating_tags": True}, "general, blue sky, fox (forest), solo, o_o"),
        ({"use_rating_tags_as_last_tag": True, "thresh": 0.9}, "blue sky, general"),
        ({"use_rating_tags": True, "rating_threshold": 0.8, "thresh": 0.9}, "blue sky"),
        ({"tag_replacement": "blue sky,sky;solo,sky"}, "sky, fox (forest), o_o"),
    ],
)
def test_the_tags_that_options_choose(options: dict[str, object], expected: str) -> None:
    assert chosen(**options) == expected


def test_a_tagger_sees_colours_in_the_order_of_its_channels(tmp_path: Path) -> None:
    tagger = Tagger(write_tagger(tmp_path), TaggerOptions(), "cpu")
    red, green, blue = (np.full((5, 5, 3), 255 * np.eye(3)[channel], np.uint8) for channel in range(3))
    assert tagger([blue, red, green]) == [["blue sky"], ["red fox (forest)"], ["green hair"]]


def test_files_that_are_not_a_tagger_are_refused_in_one_sentence(tmp_path: Path) -> None:
    folder = write_tagger(tmp_path)
    tags, model = folder / "selected_tags.csv", folder / "model.onnx"
    content = tags.read_text()
    broken = {
        "id,tag\n1,a\n": "must have the columns name and category",
        "": "must have the columns name and category",
        "name,category\na,0\n": "has 6 tags but 'selected_tags.csv' lists 1",
        "name,category\n,0\n": "line 2 has no name or no category",
        "name,category\na\n": "line 2 has no name or no category",
        "name,category\na,zero\n": "line 2 has no name or no category",
    }
    for text, why in broken.items():
        tags.write_text(text)
        with pytest.raises(ValueError, match=f"^model: .*{why}"):
            Tagger(folder, TaggerOptions(), "cpu")
    tags.write_bytes(b"\xff\xfe\0")
    with pytest.raises(ValueError, match=r"^model: .*UTF-8"):
        Tagger(folder, TaggerOptions(), "cpu")
    tags.write_text(content)
    model.write_bytes(model.read_bytes()[:-200])
    with pytest.raises(ValueError, match=r"^model: '.*model.onnx' cannot be loaded: "):
        Tagger(folder, TaggerOptions(), "cpu")


def test_thresholds_are_by_category() -> None:
    rules = TagRules([replace(KNOWN[0], category="artist")], TaggerOptions(artist_threshold=0.6))
    assert rules.choose(np.array([0.59], np.float32)) == []
    assert rules.choose(np.array([0.61], np.float32)) == ["solo"]
