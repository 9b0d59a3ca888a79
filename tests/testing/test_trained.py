"""The trained miniatures, and what they know."""

from pathlib import Path
from random import Random

import pytest

from sd_scripts import demo
from sd_scripts.families.cards.registry import cards
from sd_scripts.testing import trained
from sd_scripts.testing.shapes import SHAPES, ZORB, random_scene, words, write_scenes, zorb_scene

pytestmark = pytest.mark.run


def test_captions_name_what_is_drawn_and_no_colour_of_a_zorb(tmp_path: Path) -> None:
    random = Random(2)
    scenes = [random_scene(random), zorb_scene(random)]
    write_scenes(tmp_path, scenes, random)
    known, new = (path.read_text().split() for path in sorted(tmp_path.glob("*.txt")))
    assert {scenes[0].colour, scenes[0].shape} <= set(known)
    assert ZORB in new
    assert scenes[1].colour not in new


def test_the_base_model_has_no_word_for_a_zorb() -> None:
    assert ZORB not in words()
    assert set(SHAPES) < set(words())


def test_a_demo_that_names_no_family_trains_the_one_that_is_to_be_first() -> None:
    assert [card.name for card in cards() if card.page.demo_first and trained.has(card.name)] == [demo.DEFAULT]


@pytest.mark.parametrize("family", [name for name in demo.FAMILIES if trained.has(name)])
def test_a_shipped_model_is_whole_in_half_precision_and_small(family: str) -> None:
    files = [path for path in (trained.FILES / family).iterdir() if path.suffix == ".safetensors"]
    assert {path.name for path in files} == {trained.file_name(family, option) for option in trained.options_of(family)}
    assert sum(path.stat().st_size for path in files) < 10_000_000
