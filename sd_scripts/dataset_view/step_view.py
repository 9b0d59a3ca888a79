"""What one training step sees: the trainer's own batches, with the images and captions that they are made of.

This is the only part of the view that needs torch, since the trainer's reader does. With cached latents a step reads
what was encoded of the same pixels: options that vary them cannot be combined with caches.
"""

import base64
import dataclasses
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import cv2
import torch
from torch import Tensor

from sd_scripts.data.batch import Batch
from sd_scripts.data.plan.dataset import DataPlan
from sd_scripts.data.plan.epochs import PlannedBatch, plan_epoch, share_of_rank, with_noise_level
from sd_scripts.data.plan.items import Item
from sd_scripts.data.reader import BatchReader
from sd_scripts.data.sources.images import Pixels
from sd_scripts.dataset_view.view import Listings, View
from sd_scripts.families.common.family import family_of
from sd_scripts.options.dataset import CaptionOptions, DatasetOptions
from sd_scripts.options.training import TrainingOptions
from sd_scripts.planning.steps import TrainPlan


@dataclass(frozen=True, kw_only=True)
class Step:
    """The micro-batches of one step of the first process."""

    number: int
    """From 1."""
    epoch: int
    steps: int
    """Of the run."""
    plan: DataPlan
    read: list[tuple[PlannedBatch, Batch, list[str]]]
    """Each planned batch, what the trainer reads for it, and warnings."""


def step_of(view: View, number: int) -> Step:
    """Return a step of the run, counted from 1. Raises ValueError if there is no plan or no such step."""
    if view.plan is None:
        raise ValueError(view.refused[0])
    plan = view.plan
    train = view.length(plan)
    if not 1 <= number <= train.max_steps:
        raise ValueError(f"step: the run has steps 1 to {train.max_steps:,}; choose one of these")
    reader = BatchReader(plan, max_train_steps=train.max_steps)
    read = []
    for planned in planned_batches(plan, view, train, number):
        batch, remarks = reader[planned]
        if batch is None:
            raise ValueError(f"train_data_dir: none of the images of a bucket can be read: {remarks[-1]}")
        read.append((planned, batch, remarks))
    epoch = (number - 1) // train.steps_per_epoch + 1
    return Step(number=number, epoch=epoch, steps=train.max_steps, plan=plan, read=read)


def planned_batches(plan: DataPlan, view: View, train: TrainPlan, number: int) -> Iterator[PlannedBatch]:
    """Yield the batches of a step of the first process, in the order in which its loader yields them."""
    epoch, step = divmod(number - 1, train.steps_per_epoch)
    batches = plan_epoch(plan, epoch + 1, short_batches=view.settings[DatasetOptions].short_batches)
    numbers = share_of_rank(len(batches), 0, view.processes)
    at_high_noise = None
    if plan.smaller_buckets():  # else the family's code need not be loaded
        family = family_of(view.settings.script.family)
        at_high_noise = family.high_noise(family.objective_options(view.settings)).decides
    start = step * train.accumulation
    for place in range(start, min(start + train.accumulation, len(numbers))):
        batch = dataclasses.replace(batches[numbers[place] % len(batches)], step=number - 1)
        yield with_noise_level(batch, plan, place, at_high_noise) if at_high_noise else batch


def answer_of(view: View, number: int) -> dict[str, Any]:
    """Return a step as JSON: its `samples`, with image and mask as PNGs in Base64."""
    step = step_of(view, number)
    listings = Listings(view.settings[CaptionOptions].caption_extension)
    samples = [
        _sample(step.plan.items[item], batch, row, listings)
        for planned, batch, _ in step.read
        for row, (item, _) in enumerate(planned.picks)
    ]
    return {
        "step": number,
        "epoch": step.epoch,
        "steps": step.steps,
        "seed": step.plan.seed,
        "seed_is_set": view.settings[TrainingOptions].seed is not None,
        "batches": len(step.read),
        "samples": samples,
        "remarks": [remark for _, _, remarks in step.read for remark in remarks],
    }


def pixels_of(image: Tensor) -> Pixels:
    """Return the pixels (H, W, 3) of 8 bits from which (3, H, W) in -1..1 was made: nothing is lost. Of a clip
    (3, F, H, W) they are the first frame's."""
    image = image[:, 0] if image.ndim == 4 else image
    pixels: Pixels = image.add(1).mul(127.5).round().to(torch.uint8).permute(1, 2, 0).numpy()
    return pixels


def _sample(item: Item, batch: Batch, row: int, listings: Listings) -> Mapping[str, Any]:
    assert batch.pixels is not None, "no latents are cached here"
    mask = None
    if batch.mask is not None:
        mask = _png(batch.mask[row, 0].mul(255).round().to(torch.uint8).numpy())
    links = listings.next_to(item.path).facts(item.path, item.size)["links"]
    return {
        "path": str(item.path),
        "links": [*links, *([os.path.realpath(item.mask)] if item.mask else [])],
        "bucket": str(batch.extent.alone),
        "high_noise": bool(batch.high_noise),
        "frames": item.span.frames if item.span else 0,
        "written": item.caption,
        "caption": batch.captions[row].text,
        "separator": item.subset.captions.caption_separator,
        "loss_weight": float(batch.loss_weight[row]),
        "image": _png(pixels_of(batch.pixels[row])[..., ::-1]),
        "mask": mask,
    }


def _png(pixels: Pixels) -> str:
    _, encoded = cv2.imencode(".png", pixels, [cv2.IMWRITE_PNG_COMPRESSION, 1])
    return base64.b64encode(encoded.tobytes()).decode()
