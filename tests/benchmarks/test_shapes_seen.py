"""How the benchmarks see what an image shows."""

from random import Random

from PIL import Image

from benchmarks.shapes_seen import recognize
from sd_scripts.testing.shapes import random_scene, zorb_scene


def test_what_a_scene_shows_is_recognized_in_its_image() -> None:
    random = Random(1)
    scenes = [(zorb_scene if n % 4 == 0 else random_scene)(random) for n in range(60)]
    assert [scene for scene in scenes if not recognize(scene.draw(random)).shows(scene)] == []


def test_an_image_without_a_shape_shows_none() -> None:
    seen = recognize(Image.new("RGB", (128, 128), (246, 246, 242)))
    assert (seen.shape, seen.colour, seen.background) == ("", "", "white")
