"""HunyuanVideo's causal VAE, which FramePack has, too: sizes, encoding, decoding. An image is a clip of one frame."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from sd_scripts.data.plan.buckets import Extent
from sd_scripts.families.cards.clip_facts import latent_frames
from sd_scripts.families.cards.memory_facts import PIXELS_AT_ONCE
from sd_scripts.families.common.autoencoder import (
    LARGEST_AT_ONCE,
    Tile,
    Tiling,
    attributes_restored,
    vae_decode,
    vae_encode,
)
from sd_scripts.families.common.components import Components
from sd_scripts.families.common.flow_sampling import ClipVAE
from sd_scripts.library.files.lean_diffusers import AutoencoderKLHunyuanVideo
from sd_scripts.library.files.state_dicts import Shapes, count

LATENT_SCALE = 0.476986
"""latents = encoded * scale"""
CHANNELS, SIDE, STEP = 16, 8, 4
"""Channels of latents; pixels and frames along one of them."""
ENCODED = Tile(32)
"""In which long and large clips are encoded: 256 pixels a side, as always the latents of a cache."""
MASK = 5
"""Values for each pair of tokens in the attention of the decoder's middle, whose mask is made in float32."""


def latent_shape(extent: Extent) -> tuple[int, ...]:
    """Return the shape (16, f, h, w) of a sample's latents: the first frame has one of its own."""
    return CHANNELS, latent_frames(extent.frames), extent.height // SIDE, extent.width // SIDE


def vae_config(shapes: Shapes) -> dict[str, Any]:
    """Return the arguments of diffusers' AutoencoderKLHunyuanVideo. Raises KeyError if a needed key is missing."""
    levels = count(shapes, r"encoder\.down_blocks\.\d+\.resnets\.0\.conv1\.conv\.weight")
    widths = [shapes[f"encoder.down_blocks.{level}.resnets.0.conv1.conv.weight"][0] for level in range(levels)]
    return {
        "in_channels": shapes["encoder.conv_in.conv.weight"][1],
        "out_channels": shapes["decoder.conv_out.conv.weight"][0],
        "latent_channels": shapes["post_quant_conv.weight"][0],
        "block_out_channels": tuple(widths),
        "down_block_types": ("HunyuanVideoDownBlock3D",) * levels,
        "up_block_types": ("HunyuanVideoUpBlock3D",) * levels,
        "layers_per_block": count(shapes, r"encoder\.down_blocks\.0\.resnets\.\d+\.conv1\.conv\.weight"),
        "norm_num_groups": min(32, widths[0] // 2),
        "scaling_factor": LATENT_SCALE,
    }


def make_vae(shapes: Shapes) -> nn.Module:
    """Return a VAE that reads and writes whole clips: diffusers' default blends pieces of 16 frames, whose latents
    differ."""
    vae: Any = AutoencoderKLHunyuanVideo(**vae_config(shapes))
    vae.use_framewise_encoding = vae.use_framewise_decoding = False
    return vae  # type: ignore[no-any-return]


def encode_images(components: Components, pixels: Tensor) -> Tensor:
    """Encode (B, 3, F, H, W) in -1..1, F = 1 + 4n -> latents (B, 16, 1 + n, H/8, W/8) float32, scaled, on the VAE's
    device. Clips of more than 4 million pixels, such as 16 frames of 512x512, are encoded in tiles.

    Raises ValueError if they are not finite.
    """
    vae: Any = components.vae
    in_tiles = pixels[0, 0].numel() > PIXELS_AT_ONCE
    with tiled(vae, ENCODED) if in_tiles else nullcontext():
        latents = vae_encode(vae, pixels).float()  # scaling in half precision would round
    if torch.isfinite(latents).all():
        return latents * vae.config.scaling_factor
    if vae.dtype == torch.float16:
        raise ValueError("mixed_precision: the VAE overflowed in fp16; set mixed_precision = bf16 or no_half_vae")
    raise ValueError("vae: the VAE produces non-finite values; download its file again or choose another")


def decode_latents(components: Components, latents: Tensor) -> Tensor:
    """Decode latents (B, 16, f, h, w), scaled -> frames (B, 3, 1 + 4 (f - 1), 8h, 8w) float32 in 0..1."""
    vae: Any = components.vae
    return vae_decode(vae, latents / vae.config.scaling_factor, TILING)


def decoder_values(vae: Any, shape: tuple[int, ...]) -> float:
    """Return how many values the decoder keeps at its peak for latents of this shape: all frames at the same time."""
    batch, _, frames, height, width = shape
    tokens = frames * height * width
    length = 1 + STEP * (frames - 1)
    widest = batch * (length + 2) * (SIDE * height + 2) * (SIDE * width + 2) * vae.config.block_out_channels[1]
    return float(max(LARGEST_AT_ONCE * widest, MASK * batch * tokens**2))


@contextmanager
def tiled(vae: Any, tile: Tile) -> Iterator[None]:
    """Let the VAE encode or decode overlapping tiles and blend them."""
    side, stride = SIDE * tile.side, SIDE * tile.side * 3 // 4
    sizes = [f"tile_sample_{kind}_{axis}" for kind in ("min", "stride") for axis in ("height", "width", "num_frames")]
    with attributes_restored(vae, ("use_tiling", "use_framewise_decoding", *sizes)):
        vae.enable_tiling(
            tile_sample_min_height=side,
            tile_sample_min_width=side,
            tile_sample_stride_height=stride,
            tile_sample_stride_width=stride,
        )
        if tile.frames is not None:
            vae.use_framewise_decoding = True
            vae.tile_sample_min_num_frames = STEP * tile.frames
            vae.tile_sample_stride_num_frames = STEP * tile.frames * 3 // 4
        yield


TILING = Tiling(tiled=tiled, values=decoder_values, frames=(16, 8, 4))
"""The shortest have the 16 frames that diffusers always decodes at a time."""
CLIP_VAE = ClipVAE(shape=latent_shape, encode=encode_images, decode=decode_latents)
