"""The demo: a model and pictures made on the spot, small, the same every time, and worth training on."""

from pathlib import Path
from typing import Any

import torch
from conftest import sdxl_settings
from PIL import Image

from sd_scripts import demo
from sd_scripts.data import drawn
from sd_scripts.families.miniature import pictures
from sd_scripts.families.sdxl import tiny
from sd_scripts.families.sdxl.load import check, load
from sd_scripts.families.sdxl.vae import encode_images
from sd_scripts.library.sdxl_model_util import VAE_SCALE
from sd_scripts.options.catalog import script_for
from sd_scripts.options.reading import from_file


def test_a_dozen_pictures_of_several_sizes_with_captions(miniature: Any) -> None:
    folder = miniature.data_dir / drawn.FOLDER
    sizes = {Image.open(path).size for path in folder.glob("*.png")}
    captions = {path.read_text().strip() for path in folder.glob("*.txt")}
    assert len(list(folder.glob("*.png"))) == 12
    assert sizes == set(drawn.SIZES)
    assert captions == set(drawn.captions())


def test_the_checkpoint_is_small_and_every_block_type_is_in_it(miniature: Any) -> None:
    assert miniature.checkpoint.stat().st_size < 30_000_000
    unet = load(sdxl_settings(miniature.checkpoint), torch.float32).denoiser
    assert [type(block).__name__ for block in unet.down_blocks] == list(tiny.UNET["down_block_types"])
    assert [type(block).__name__ for block in unet.up_blocks] == list(tiny.UNET["up_block_types"])


def test_it_is_the_same_every_time(miniature: Any, tmp_path: Path) -> None:
    again = tiny.write_miniature(tmp_path)
    assert again.checkpoint.read_bytes() == miniature.checkpoint.read_bytes()


def test_latents_have_the_spread_that_sdxls_have(miniature: Any) -> None:
    parts = load(sdxl_settings(miniature.checkpoint), torch.float32)
    latents = encode_images(parts, pictures()) * VAE_SCALE
    torch.testing.assert_close(latents.mean((0, 2, 3)), torch.zeros(4), atol=1e-3, rtol=0)
    torch.testing.assert_close(latents.std((0, 2, 3)), torch.ones(4), atol=1e-2, rtol=0)


def test_the_demo_writes_settings_that_training_accepts(tmp_path: Path) -> None:
    folder = tmp_path / "with a space"
    assert demo.main(["--folder", str(folder), "--make"]) == 0
    settings = from_file(script_for("sdxl", "lora"), folder / "demo.toml")
    assert settings.problems() == []
    assert check(settings) == []
