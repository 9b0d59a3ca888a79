"""An image or a clip that does not fit into the GPU's memory is decoded in tiles, and one on a CPU in float32; the VAE
is left unchanged."""

import copy
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from diffusers import AutoencoderKL
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sd_scripts.families.common.autoencoder import IMAGE_TILING, Tile, Tiling, vae_decode, vae_encode
from sd_scripts.families.common.encoders.causal_vae import TILING as CAUSAL_TILING
from sd_scripts.families.common.encoders.hunyuan_vae import TILING as HUNYUAN_TILING
from sd_scripts.families.hunyuan_video import full_size as hunyuan_video
from sd_scripts.families.sdxl import full_size as sdxl
from sd_scripts.families.wan import full_size as wan
from sd_scripts.families.wan_5b import full_size as wan_5b

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


class LiveMemory(TorchDispatchMode):
    """Inside the context, `peak` is the largest number of bytes of the tensors made there that existed together."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self.counted: weakref.WeakSet[Any] = weakref.WeakSet()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self._count(tensor.untyped_storage())
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        if storage in self.counted:
            return
        self.counted.add(storage)
        self.live += storage.nbytes()
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._free, storage.nbytes())

    def _free(self, size: int) -> None:
        self.live -= size


DECODERS: dict[str, tuple[Any, Tiling, tuple[int, ...]]] = {
    "SDXL, image": (sdxl, IMAGE_TILING, (1, 4, 128, 128)),
    "Wan 2.1, clip": (wan, CAUSAL_TILING, (1, 16, 4, 60, 104)),
    "Wan 2.1, image": (wan, CAUSAL_TILING, (1, 16, 1, 60, 104)),
    "Wan 2.2, clip": (wan_5b, CAUSAL_TILING, (1, 48, 7, 44, 80)),
    "HunyuanVideo, tile": (hunyuan_video, HUNYUAN_TILING, (1, 16, 5, 32, 32)),
    "HunyuanVideo, long clip": (hunyuan_video, HUNYUAN_TILING, (1, 16, 21, 52, 52)),
}
"""Full size, tiling, and the shape of latents."""


@torch.no_grad()
@pytest.mark.parametrize("case", DECODERS)
def test_the_memory_of_decoding_is_known_before(case: str) -> None:
    """Enough, and at most three times what the tensors take: convolutions need workspaces."""
    full_size, tiling, shape = DECODERS[case]
    vae: Any = full_size.modules()["vae"].to(torch.bfloat16)
    vae.use_framewise_decoding = False
    latents = torch.zeros(shape, dtype=torch.bfloat16, device="meta")
    with LiveMemory() as counted:
        vae.decode(latents)
    assert counted.peak < 2 * tiling.values(vae, shape) < 3.2 * counted.peak


def test_a_longer_clip_of_wan_is_decoded_whole_in_the_same_memory() -> None:
    vae = wan.modules()["vae"]
    short, long = (CAUSAL_TILING.values(vae, (1, 16, frames, 60, 104)) for frames in (2, 21))
    assert long < 1.1 * short


def test_tiles_of_clips_become_smaller_and_then_shorter() -> None:
    shape = (1, 16, 21, 60, 104)
    assert CAUSAL_TILING.tiles(shape) == [Tile(52), Tile(32)]
    assert HUNYUAN_TILING.tiles(shape) == [Tile(52), Tile(32), Tile(32, 16), Tile(32, 8), Tile(32, 4)]
    assert HUNYUAN_TILING.tiles((1, 16, 1, 24, 24)) == [Tile(12)]
