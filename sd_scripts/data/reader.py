"""Turn a planned batch into tensors, in any process or thread: all random draws derive from the request."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset

from sd_scripts.data.batch import Batch, stack_by_name, stack_pixels
from sd_scripts.data.caches.latent_store import LatentStore
from sd_scripts.data.caches.text_caching import TextStore
from sd_scripts.data.plan.buckets import Extent
from sd_scripts.data.plan.dataset import DataPlan, Item
from sd_scripts.data.plan.epochs import PlannedBatch
from sd_scripts.data.preparing import prepare
from sd_scripts.data.sources.captions import Caption, process_caption
from sd_scripts.data.sources.images import Pixels, UnreadableImage, draw_flip, prepare_mask

Conditioning = Callable[[Item, bool], dict[str, Tensor]]
"""Item, whether it is flipped -> the family's further inputs besides latents and text."""
Read = tuple[Batch | None, list[str]]
"""A batch and warnings about it."""
REPLACED = "; another image of its bucket is used instead"
"""Suffix of a warning about an unreadable image."""


@dataclass(kw_only=True)
class Sample:
    """One image or clip of a batch, flipped if the sample is."""

    caption: Caption
    pixels: Pixels | None
    """(H, W, 3), or (F, H, W, 3) for a family of clips."""
    latents: Tensor | None
    text: Mapping[str, Tensor]
    conditioning: dict[str, Tensor]
    controls: tuple[Tensor, ...]
    """Of each control image or clip, pixels (3, *S) float32 in -1..1, or latents."""
    loss_weight: float
    mask: Pixels | None
    """(H, W)"""


class BatchReader(TorchDataset[Read]):
    """Reads planned batches; stateless, so that any number of threads and processes may share it.

    Without `latents` batches contain pixels, without `text` captions alone.
    """

    def __init__(
        self,
        plan: DataPlan,
        *,
        max_train_steps: int = 0,
        latents: LatentStore | None = None,
        text: TextStore | None = None,
        conditioning: Conditioning | None = None,
    ):
        self.plan = plan
        self.max_train_steps = max_train_steps
        self.latents = latents
        self.text = text
        self.conditioning = conditioning
        self.wants_masks = plan.wants_masks
        self.groups = plan.groups

    def __getitem__(self, batch: PlannedBatch) -> Read:
        """Return the batch, and a warning for each unreadable image that was replaced.

        The batch is None if no image of its bucket is readable: an exception from a worker would reach the user wrapped
        in a traceback.
        """
        remarks: list[str] = []
        samples = [self._readable(item, repeat, batch, remarks) for item, repeat in batch.picks]
        found = [sample for sample in samples if sample is not None]
        return self._stack(found, batch) if len(found) == len(samples) else None, remarks

    def _readable(self, item: int, repeat: int, batch: PlannedBatch, remarks: list[str]) -> Sample | None:
        """Return the sample, or the sample of the next readable image of the bucket, so that shapes stay as planned."""
        for candidate in self._candidates(self.plan.items[item], batch):
            try:
                return self._sample(candidate.at(high_noise=batch.high_noise), repeat, batch)
            except UnreadableImage as error:
                remarks.append(f"{error}{REPLACED}")
        return None

    def _candidates(self, item: Item, batch: PlannedBatch) -> Iterator[Item]:
        yield item
        group = self.groups[batch.dataset, batch.bucket]
        place = group.index(item)
        yield from group[place + 1 :]
        yield from group[:place]

    def _sample(self, item: Item, repeat: int, batch: PlannedBatch) -> Sample:
        key = f"{self.plan.seed}/{batch.epoch}/{item.index}/{repeat}"
        random = Random(f"{key}/picture")  # a different word would change the draws
        text = process_caption(
            item.caption,
            item.subset.captions,
            Random(f"{key}/caption"),
            epoch=batch.epoch,
            step=batch.step,
            max_train_steps=self.max_train_steps,
        )
        augmentation = item.subset.augmentation
        flipped = draw_flip(augmentation, random)
        caption = self.plan.caption(item, text, flipped=flipped)
        conditioning = self.conditioning(item, flipped) if self.conditioning is not None else {}
        pixels, latents = None, None
        if self.latents is not None:
            cached = self.latents.read(item, flipped=flipped)
            latents, mask = cached.latents, cached.opacity
            conditioning = conditioning | cached.conditions
            if item.mask is not None or (mask is None and augmentation.alpha_mask):
                mask = prepare_mask(item.path, item.mask, item.fit, augmentation)
        else:
            pixels, mask = prepare(item, random, has_frames=self.plan.has_frames)
            pixels = _mirrored(pixels) if flipped else pixels
        if flipped and mask is not None:
            mask = mask[:, ::-1]
        return Sample(
            caption=caption,
            pixels=pixels,
            latents=latents,
            text=self.text.read(item, caption) if self.text is not None else {},
            conditioning=conditioning,
            controls=tuple(self._control(control, flipped=flipped) for control in item.controls),
            loss_weight=item.loss_weight,
            mask=mask,
        )

    def _control(self, control: Item, *, flipped: bool) -> Tensor:
        if self.latents is not None:
            return self.latents.read(control, flipped=flipped).latents
        pixels, _ = prepare(control, Random(0), has_frames=self.plan.has_frames)
        return stack_pixels([_mirrored(pixels) if flipped else pixels])[0]

    def _stack(self, samples: Sequence[Sample], batch: PlannedBatch) -> Batch:
        item, _ = batch.picks[0]
        extent = self.plan.items[item].at(high_noise=batch.high_noise).fit.bucket
        pixels = [each.pixels for each in samples if each.pixels is not None]
        latents = [each.latents for each in samples if each.latents is not None]
        return Batch(
            extent=extent,
            bucket=batch.bucket,
            high_noise=batch.high_noise,
            captions=[each.caption for each in samples],
            pixels=stack_pixels(pixels) if pixels else None,
            latents=torch.stack(latents) if latents else None,
            text=stack_by_name([each.text for each in samples]),
            conditioning=stack_by_name([each.conditioning for each in samples]),
            controls=tuple(map(torch.stack, zip(*(each.controls for each in samples), strict=True))),
            loss_weight=torch.tensor([each.loss_weight for each in samples], dtype=torch.float32),
            mask=_stack_masks(samples, extent) if self.wants_masks else None,
        )


def _mirrored(pixels: Pixels) -> Pixels:
    """Return an image (..., H, W, 3) flipped left to right."""
    return pixels[..., ::-1, :]


def _stack_masks(samples: Sequence[Sample], extent: Extent) -> Tensor:
    """Return (B, 1, H, W) float32 in 0..1; an image without a mask gets ones."""
    full = np.full((extent.height, extent.width), 255, dtype=np.uint8)
    masks = np.stack([full if each.mask is None else each.mask for each in samples])
    return torch.from_numpy(masks).unsqueeze(1).to(torch.float32).div_(255)
