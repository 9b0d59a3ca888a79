"""Latents with frames, of an autoencoder with a different factor, are cached, loaded and compared like those of
images."""

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from sd_scripts.data.caches.caching import CacheJob, LatentLayout
from sd_scripts.data.caches.latent_caching import cache_latents
from sd_scripts.data.loader import BatchLoader
from sd_scripts.data.plan.buckets import Extent
from sd_scripts.data.plan.dataset import DataPlan
from sd_scripts.data.reader import BatchReader
from sd_scripts.library.diffusion.losses import diffusion_loss
from sd_scripts.library.diffusion.noise import draw_noise, expand_to
from sd_scripts.options.optimization.loss import LossOptions, NoiseOptions
from tests.support.data import make_folder, plan_of

CLIPS = LatentLayout(suffix="clip", shape=lambda extent: (6, 3, extent.height // 16, extent.width // 16))


def encode(pixels: Tensor) -> Tensor:
    """Three frames for each image, each darker than the one before it: (B, 6, 3, H/16, W/16)."""
    small = torch.nn.functional.avg_pool2d(pixels.repeat(1, 2, 1, 1), 16)
    return torch.stack([small, small / 2, small / 4], dim=2).to(torch.float16)


def plan_of_two_sizes(root: Path, **values: object) -> DataPlan:
    make_folder(root / "train/1_cat", [(64, 64), (64, 64), (192, 64), (192, 64)])
    return plan_of(root / "train", train_batch_size=2, flip_aug=True, **values)


@pytest.mark.parametrize("to_disk", [True, False])
def test_latents_with_frames_are_cached_loaded_and_compared(tmp_path: Path, to_disk: bool) -> None:
    plan = plan_of_two_sizes(tmp_path)
    job = CacheJob(warn=pytest.fail, to_disk=to_disk, batch_size=2)
    latents = cache_latents(plan, encode, encoder_key="vae", layout=CLIPS, job=job)
    cached = list(BatchLoader(BatchReader(plan, latents=latents), warn=pytest.fail).epoch(1))
    fresh = list(BatchLoader(BatchReader(plan), warn=pytest.fail).epoch(1))
    assert sorted(tuple(batch.latents.shape) for batch in cached) == [(2, 6, 3, 2, 6), (2, 6, 3, 4, 4)]
    for batch, pixels in zip(cached, fresh, strict=True):
        assert torch.equal(batch.latents, encode(pixels.pixels))
        at = expand_to(torch.tensor([0.25, 0.75]), batch.latents)
        noise = draw_noise(batch.latents, NoiseOptions(), torch.Generator().manual_seed(1))
        noisy = (1 - at) * batch.latents + at * noise
        target = noise - batch.latents
        loss = diffusion_loss(noisy, target, at.flatten(), LossOptions(), loss_weight=batch.loss_weight)
        torch.testing.assert_close(loss, ((noisy - target) ** 2).flatten(1).mean(1))


def test_a_cache_file_names_frames_and_is_current_only_for_its_extent(tmp_path: Path) -> None:
    def count(pixels: Tensor) -> Tensor:
        encoded.append(len(pixels))
        return encode(pixels)

    plan, encoded = plan_of_two_sizes(tmp_path), list[int]()
    job = CacheJob(warn=pytest.fail, to_disk=True)
    for layout in (CLIPS, CLIPS, LatentLayout(suffix="clip", shape=lambda extent: (6, 2, *CLIPS.shape(extent)[2:]))):
        cache_latents(plan, count, encoder_key="vae", layout=layout, job=job)
    assert sum(encoded) == 8 + 8, "another number of frames is another entry"
    with safe_open(tmp_path / "train/1_cat/00_0064x0064_clip.safetensors", "pt") as file:
        assert set(file.keys()) >= {"latents_3x4x4", "latents_flipped_3x4x4"}


def test_an_extent_names_its_frames_where_there_are_several() -> None:
    assert (str(Extent(832, 480)), str(Extent(832, 480, 81))) == ("832x480", "832x480x81")
    assert Extent(64, 64) < Extent(64, 64, 2) < Extent(64, 96)
