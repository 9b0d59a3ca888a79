"""An image that does not fit into the GPU's memory is decoded in tiles, and one on a CPU in float32; the VAE is left
unchanged."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from diffusers import AutoencoderKL

from sd_scripts.families.common.autoencoder import vae_decode, vae_encode

LATENTS = torch.randn(1, 4, 16, 24, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def vae() -> Any:
    torch.manual_seed(0)
    blocks = {"down_block_types": ("DownEncoderBlock2D",) * 4, "up_block_types": ("UpDecoderBlock2D",) * 4}
    return AutoencoderKL(block_out_channels=(8, 8, 8, 8), norm_num_groups=4, sample_size=1024, **blocks).eval()


@contextmanager
def memory_for(vae: Any, most: int) -> Iterator[list[tuple[int, int]]]:
    """Inside, nothing larger than this many latents a side can be decoded; yields the sizes that were tried."""
    tried: list[tuple[int, int]] = []

    def begin(module: Any, arguments: tuple[Any, ...]) -> None:
        height, width = arguments[0].shape[-2:]
        tried.append((height, width))
        if max(height, width) > most:
            raise torch.OutOfMemoryError("CUDA out of memory")

    hook = vae.decoder.register_forward_pre_hook(begin)
    try:
        yield tried
    finally:
        hook.remove()


def test_an_image_too_large_for_memory_is_decoded_in_tiles(vae: Any) -> None:
    whole = vae_decode(vae, LATENTS)
    with memory_for(vae, 12) as tried:
        tiled = vae_decode(vae, LATENTS)
    assert tried[0] == (16, 24)
    assert len(tried) > 2
    assert tiled.shape == whole.shape == (1, 3, 128, 192)
    both = torch.stack((tiled.flatten(), whole.flatten()))
    assert float(torch.corrcoef(both)[0, 1]) > 0.8
    assert torch.equal(vae_decode(vae, LATENTS), whole)  # whole again


def test_an_image_too_large_even_in_tiles_is_reported_and_leaves_the_vae_unchanged(vae: Any) -> None:
    before = (vae.use_tiling, vae.tile_latent_min_size, vae.tile_sample_min_size)
    with memory_for(vae, 4), pytest.raises(torch.OutOfMemoryError):
        vae_decode(vae, LATENTS)
    assert (vae.use_tiling, vae.tile_latent_min_size, vae.tile_sample_min_size) == before


def test_no_tiling_when_memory_suffices(vae: Any) -> None:
    with memory_for(vae, 24) as tried:
        vae_decode(vae, LATENTS)
    assert tried == [(16, 24)]


def test_on_a_cpu_a_vae_in_bfloat16_computes_in_float32(vae: Any) -> None:
    exact = copy.deepcopy(vae.bfloat16()).float()
    pixels = torch.rand(1, 3, 64, 64) * 2 - 1
    assert torch.equal(vae_encode(vae, pixels), vae_encode(exact, pixels).bfloat16())
    assert torch.equal(vae_decode(vae, LATENTS), vae_decode(exact, LATENTS))
    assert vae.dtype == torch.bfloat16
