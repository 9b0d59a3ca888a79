"""The causal VAE of Wan 2.1 and Qwen-Image, and that of Wan 2.2: files' layouts, sizes from shapes, encoding, decoding.

It reads a clip in chunks of four frames after the first and keeps the last frames of every convolution for the next
chunk, so that memory does not grow with the length of the clip. An image is a clip of one frame.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from sd_scripts.data.caches.caching import LatentLayout
from sd_scripts.families.common.autoencoder import (
    FRAMES_AT_ONCE,
    LARGEST_AT_ONCE,
    Tile,
    Tiling,
    attributes_restored,
    vae_decode,
    vae_encode,
)
from sd_scripts.families.common.components import Components
from sd_scripts.library.files.state_dicts import Shapes, State, count

_RENAMED = (
    (r"conv1\.", "quant_conv."),
    (r"conv2\.", "post_quant_conv."),
    (r"(encoder|decoder)\.conv1\.", r"\1.conv_in."),
    (r"(encoder|decoder)\.head\.0\.", r"\1.norm_out."),
    (r"(encoder|decoder)\.head\.2\.", r"\1.conv_out."),
    (r"(encoder|decoder)\.middle\.0\.", r"\1.mid_block.resnets.0."),
    (r"(encoder|decoder)\.middle\.1\.", r"\1.mid_block.attentions.0."),
    (r"(encoder|decoder)\.middle\.2\.", r"\1.mid_block.resnets.1."),
    (r"encoder\.downsamples\.", "encoder.down_blocks."),
)
"""Beginning of a key of a single file, as a regular expression -> the same in diffusers."""
_IN_BLOCKS = (
    (".residual.0.", ".norm1."),
    (".residual.2.", ".conv1."),
    (".residual.3.", ".norm2."),
    (".residual.6.", ".conv2."),
    (".shortcut.", ".conv_shortcut."),
)


def vae_from_single_file(file: State) -> State:
    """Rename the VAE's tensors from the keys of official and ComfyUI's files to diffusers'; diffusers' keys stay
    unchanged."""
    if "encoder.conv_in.weight" in file:
        return file
    if any(key.startswith("encoder.downsamples.0.downsamples.") for key in file):
        return {_key_of_levels(key): tensor for key, tensor in file.items()}
    shapes = {key: tuple(tensor.shape) for key, tensor in file.items()}
    residual_blocks = count(shapes, r"decoder\.upsamples\.\d+\.residual\.2\.weight")
    levels = 1 + count(shapes, r"decoder\.upsamples\.\d+\.resample\.1\.weight")  # the last level has none
    return {_vae_key(key, residual_blocks // levels + 1): tensor for key, tensor in file.items()}


def _key_of_levels(key: str) -> str:
    """Rename a key of Wan 2.2's VAE, in which each level is a list of its own."""
    level = re.match(r"(encoder|decoder)\.(down|up)samples\.(\d+)\.(?:down|up)samples\.(\d+)\.(.+)", key)
    if not level:
        return _renamed(key)
    half, way, number, place, rest = level.groups()
    part = f"{way}sampler" if rest.startswith(("resample.", "time_conv.")) else f"resnets.{place}"
    return _renamed(f"{half}.{way}_blocks.{number}.{part}.{rest}")


def _renamed(key: str) -> str:
    for pattern, ours in _RENAMED:
        renamed, found = re.subn(f"^{pattern}", ours, key)
        if found:
            key = renamed
            break
    for theirs, ours in _IN_BLOCKS:
        key = key.replace(theirs, ours)
    return key


def _vae_key(key: str, per_level: int) -> str:
    """`per_level`: entries of `upsamples` in each level, the residual blocks and what makes the image larger."""
    key = _renamed(key)
    if found_level := re.match(r"decoder\.upsamples\.(\d+)\.(.+)", key):
        level, place = divmod(int(found_level[1]), per_level)
        part = "upsamplers.0" if place == per_level - 1 else f"resnets.{place}"
        key = f"decoder.up_blocks.{level}.{part}.{found_level[2]}"
    return key


def vae_config(shapes: Shapes) -> dict[str, Any]:
    """Return the arguments of diffusers' AutoencoderKLQwenImage, from shapes under its keys; Wan 2.1's class calls
    `input_channels` in_channels. The statistics of the latents are the defaults. Raises KeyError if a needed key is
    missing."""
    base, channels = shapes["encoder.conv_in.weight"][:2]
    widths, residuals, temporal = [0], 0, []
    number = 0
    while True:
        block = f"encoder.down_blocks.{number}"
        if f"{block}.conv1.weight" in shapes:
            widths[-1] = shapes[f"{block}.conv1.weight"][0]
            residuals += len(widths) == 1
        elif f"{block}.resample.1.weight" in shapes:
            temporal.append(f"{block}.time_conv.weight" in shapes)
            widths.append(0)
        else:
            break
        number += 1
    return {
        "base_dim": base,
        "z_dim": shapes["post_quant_conv.weight"][0],
        "dim_mult": [width // base for width in widths],
        "num_res_blocks": residuals,
        "temperal_downsample": temporal,
        "input_channels": channels,
    }


LEVELS = "encoder.down_blocks.0.resnets.0.conv1.weight"
"""A key that only Wan 2.2's VAE has, in diffusers' layout."""


def levels_config(shapes: Shapes) -> dict[str, Any]:
    """Return the arguments of diffusers' AutoencoderKLWan for Wan 2.2's VAE, without the statistics of its latents,
    from shapes under its keys. Raises KeyError if a needed key is missing."""
    base, channels = shapes["encoder.conv_in.weight"][:2]
    levels = count(shapes, r"encoder\.down_blocks\.\d+\.resnets\.0\.conv1\.weight")
    widths = [shapes[f"encoder.down_blocks.{level}.resnets.0.conv1.weight"][0] for level in range(levels)]
    patch = 2 if channels == 3 * 4 else 1
    return {
        "base_dim": base,
        "decoder_base_dim": shapes["decoder.norm_out.gamma"][0] // (widths[0] // base),
        "z_dim": shapes["post_quant_conv.weight"][0],
        "dim_mult": [width // base for width in widths],
        "num_res_blocks": count(shapes, r"encoder\.down_blocks\.0\.resnets\.\d+\.conv1\.weight"),
        "temperal_downsample": [
            f"encoder.down_blocks.{level}.downsampler.time_conv.weight" in shapes for level in range(levels - 1)
        ],
        "is_residual": True,
        "patch_size": patch,
        "in_channels": channels,
        "out_channels": channels,
        "scale_factor_spatial": patch * 2 ** (levels - 1),
    }


def encode_clip(vae: Any, pixels: Tensor) -> Tensor:
    """Encode (B, 3, F, H, W) in -1..1, F = 1 + 4n -> latents (B, C, 1 + n, h, w) float32, normalised by channel, on the
    VAE's device.

    Raises ValueError if they are not finite.
    """
    latents = vae_encode(vae, pixels).float()  # scaling in half precision would round
    if torch.isfinite(latents).all():
        mean, std = statistics(vae, latents.device)
        return (latents - mean) / std
    if vae.dtype == torch.float16:
        raise ValueError("mixed_precision: the VAE overflowed in fp16; set mixed_precision = bf16 or no_half_vae")
    raise ValueError("vae: the VAE produces non-finite values; download its file again or choose another")


def encode_clips(components: Components, pixels: Tensor) -> Tensor:
    """The same of components' VAE."""
    return encode_clip(components.vae, pixels)


def decode_clips(components: Components, latents: Tensor) -> Tensor:
    """Decode latents as decode_clip does, with the components' VAE."""
    return decode_clip(components.vae, latents)


def image_latents(suffix: str) -> LatentLayout:
    """Return how the latents of images are cached in files with this suffix."""
    return LatentLayout(suffix=suffix, shape=lambda extent: (16, extent.height // 8, extent.width // 8))


def encode_images(components: Components, pixels: Tensor) -> Tensor:
    """Encode (B, 3, H, W) in -1..1 -> latents (B, 16, H/8, W/8) float32, normalised by channel, on the VAE's device.

    Raises ValueError if they are not finite.
    """
    return encode_clip(components.vae, pixels[:, :, None]).squeeze(2)


def decode_images(components: Components, latents: Tensor) -> Tensor:
    """Decode latents (B, 16, h, w), normalised -> images (B, 3, 8h, 8w) float32 in 0..1."""
    return decode_clip(components.vae, latents[:, :, None]).squeeze(2)


def decode_clip(vae: Any, latents: Tensor) -> Tensor:
    """Decode latents (B, C, f, h, w), normalised -> frames (B, 3, 1 + 4 (f - 1), H, W) float32 in 0..1."""
    mean, std = statistics(vae, latents.device)
    return vae_decode(vae, latents * std + mean, TILING)


def statistics(vae: Any, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return mean and deviation of the latents, (1, C, 1, 1, 1) float32."""
    mean, std = (torch.tensor(vae.config[f"latents_{name}"], device=device) for name in ("mean", "std"))
    return mean.view(1, -1, 1, 1, 1), std.view(1, -1, 1, 1, 1)


def decoder_values(vae: Any, shape: tuple[int, ...]) -> float:
    """Return how many values the decoder keeps at its peak for latents of this shape. One latent frame is decoded at a
    time, so that only the finished frames grow with the length of the clip."""
    batch, _, frames, height, width = shape
    base = vae.config.get("decoder_base_dim") or vae.config.base_dim
    read = 3 if frames == 1 else 2 + FRAMES_AT_ONCE + 2  # by a causal convolution, and kept for the next chunk
    pixels = 64 * batch * height * width
    return float(
        pixels * (LARGEST_AT_ONCE * 2 * base * read + 2 * FRAMES_AT_ONCE * frames * vae.config.get("out_channels", 3))
    )


@contextmanager
def tiled(vae: Any, tile: Tile) -> Iterator[None]:
    pixels = vae.config.get("scale_factor_spatial", 8)
    side, stride = pixels * tile.side, pixels * tile.side * 3 // 4
    sizes = (f"tile_sample_{kind}_{axis}" for kind in ("min", "stride") for axis in ("height", "width"))
    with attributes_restored(vae, ("use_tiling", *sizes)):
        vae.enable_tiling(side, side, stride, stride)
        yield


TILING = Tiling(tiled=tiled, values=decoder_values)
