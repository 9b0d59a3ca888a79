"""Upscaling with spandrel: seamless tiles, the size that is asked for, and other files."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from sd_scripts.data.sources.images import read_image
from sd_scripts.tools.images.sizes import Upscaler
from tests.support.image_models.tiny import draw, edit
from tests.support.image_models.tiny_upscaler import write_upscaler

pytestmark = pytest.mark.run


@pytest.fixture(scope="module")
def upscaler(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_upscaler(tmp_path_factory.mktemp("model") / "2x.safetensors")


def test_tiles_have_no_seams_and_torchvision_stays_unknown(upscaler: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (75, 110, 3), dtype=np.uint8)
    large = Upscaler(upscaler, 32, "cpu")(pixels)
    assert np.array_equal(large, pixels.repeat(2, 0).repeat(2, 1))
    assert "torchvision" not in sys.modules


def test_small_images_are_upscaled_and_large_ones_copied(tmp_path: Path, upscaler: Path) -> None:
    photos = tmp_path / "photos"
    draw(photos / "small.png", (40, 30), red=[(0, 0, 19, 29)])
    draw(photos / "middle.png", (80, 60))
    draw(photos / "large.png", (400, 300))
    flags = ("--task", "upscale", "--upscale_model", upscaler, "--size", 100, "--device", "cpu")
    assert edit(photos, *flags) == 0
    made = tmp_path / "photos-upscaled"
    shapes = {path.stem: read_image(path)[0].shape[:2] for path in made.iterdir()}
    assert shapes == {"small": (60, 80), "middle": (87, 115), "large": (300, 400)}
    assert (made / "large.png").read_bytes() == (photos / "large.png").read_bytes()
    assert read_image(made / "small.png")[0][0, 39].tolist() == [255, 0, 0]


def test_other_files_than_upscalers_are_named(tmp_path: Path) -> None:
    save_file({"weight": torch.zeros(2)}, tmp_path / "other.safetensors")
    (tmp_path / "broken.pth").write_bytes(b"PK\3\4broken")
    torch.save({"attack": torch.nn.Linear}, tmp_path / "code.pth")
    for name in ("other.safetensors", "broken.pth", "code.pth"):
        with pytest.raises(ValueError, match=f"upscale_model: '.*{name}' cannot be loaded: "):
            Upscaler(tmp_path / name, 64, "cpu")
    with pytest.raises(ValueError, match="is not a model file"):
        Upscaler(tmp_path / "gone.pth", 64, "cpu")
