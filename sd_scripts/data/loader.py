"""Load the batches of an epoch ahead of use; order and content do not depend on the number of workers."""

import math
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import torch
from torch.utils.data import DataLoader, Sampler

from sd_scripts.data.batch import Batch
from sd_scripts.data.plan.counted_warnings import Warn
from sd_scripts.data.plan.dataset import DataPlan
from sd_scripts.data.plan.epochs import (
    AtHighNoise,
    PlannedBatch,
    ShortBatches,
    batch_shapes,
    plan_epoch,
    share_of_rank,
    with_noise_level,
)
from sd_scripts.data.read_ahead import read_ahead
from sd_scripts.data.reader import REPLACED, BatchReader, Read

PREFETCH = 2
"""Batches that a worker reads ahead."""
PIXEL_BYTES, AHEAD_BYTES = 12, 8 * 2**30
"""Bytes of a pixel in a batch, and of all batches that workers read ahead."""
THREADS = 4
"""Threads that read ahead without worker processes; each is one batch ahead."""


class Threads:
    """Reads ahead in this process: fastest with cached latents, where passing tensors between processes dominates."""

    def __init__(self, reader: BatchReader, pin_memory: bool):
        self._reader = reader
        self._pin_memory = pin_memory
        device = torch.accelerator.current_device_index() if pin_memory else None
        self._pool = ThreadPoolExecutor(THREADS, initializer=_use_device, initargs=(device,))

    def read(self, batches: Iterable[PlannedBatch]) -> Iterator[Read]:
        """Yield the batches in this order."""
        return read_ahead(self._pool, self._one, batches, THREADS)

    def _one(self, planned: PlannedBatch) -> Read:
        batch, remarks = self._reader[planned]
        return batch.pin_memory() if batch is not None and self._pin_memory else batch, remarks


class Processes:
    """Reads in worker processes: decoding images needs more than one core."""

    def __init__(self, reader: BatchReader, pin_memory: bool, workers: int, persistent: bool):
        # not a reference back to this object: workers of a loader within a reference cycle take 5 s each to end
        self._sampler = _PlannedSampler()
        self._loader = DataLoader(
            reader,
            sampler=self._sampler,
            batch_size=None,
            num_workers=workers,
            persistent_workers=persistent,
            prefetch_factor=PREFETCH,
            pin_memory=pin_memory,
            generator=torch.Generator().manual_seed(0),  # or the loader would draw from the global generator
        )

    def read(self, batches: Iterable[PlannedBatch]) -> Iterator[Read]:
        """Yield the batches in this order."""
        self._sampler.batches = batches
        return iter(self._loader)


class _PlannedSampler(Sampler[PlannedBatch]):
    """Yields the batches to read in the current epoch."""

    def __init__(self) -> None:
        self.batches: Iterable[PlannedBatch] = ()

    def __iter__(self) -> Iterator[PlannedBatch]:
        return iter(self.batches)


class BatchLoader:
    """Loads the batches of one rank, epoch by epoch, starting at any batch.

    `accumulation` micro-batches form one step, the unit of token_warmup_step (the last step of an epoch may have
    fewer). `workers` processes decode images; `persistent` ones survive between epochs. With cached latents, or
    without workers, threads of this process read ahead. An unreadable image is reported once through `warn` and
    replaced by another of its bucket. `at_high_noise` decides which batches are trained at a smaller size.
    """

    def __init__(
        self,
        reader: BatchReader,
        *,
        warn: Warn,
        workers: int = 0,
        persistent: bool = True,
        rank: int = 0,
        world: int = 1,
        short_batches: ShortBatches = "keep",
        accumulation: int = 1,
        pin_memory: bool = False,
        at_high_noise: AtHighNoise | None = None,
    ):
        self.plan = reader.plan
        self._warn = warn
        self._rank, self._world = rank, world
        self._short_batches: ShortBatches = short_batches
        self._accumulation = accumulation
        self._at_high_noise = at_high_noise
        self._length = math.ceil(self._count_batches() / world)
        self._warned: set[str] = set()
        workers = 0 if reader.latents is not None else min(workers, os.cpu_count() or 1, self._length)
        workers = min(workers, _workers_for(self.plan))
        self._source: Threads | Processes = (
            Processes(reader, pin_memory, workers, persistent) if workers else Threads(reader, pin_memory)
        )

    def __len__(self) -> int:
        """Return the number of batches of this rank in an epoch."""
        return self._length

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """Yield the batches of an epoch (counted from 1), starting with batch `start` (counted from 0)."""
        for batch, remarks in self._source.read(self._planned(epoch, start)):
            for remark in remarks:
                if remark not in self._warned:
                    self._warned.add(remark)
                    self._warn(remark)
            if batch is None:
                last = remarks[-1].removesuffix(REPLACED)
                raise ValueError(f"train_data_dir: none of the images of a bucket can be read: {last}")
            yield batch

    def _count_batches(self) -> int:
        """Return the number of batches of all ranks in an epoch; warn about images that fill none."""
        shapes = batch_shapes(self.plan, short_batches=self._short_batches)
        if not shapes:
            raise ValueError("train_batch_size: no bucket has enough images for one batch; set it lower")
        seen = sum(shape.images * count for shape, count in shapes.items())
        planned = sum(self.plan.buckets().values())
        if seen < planned:
            self._warn(
                f"train_batch_size: {planned - seen} of {planned} images per epoch fill no batch and are skipped"
            )
        return sum(shapes.values())

    def _planned(self, epoch: int, start: int) -> Iterator[PlannedBatch]:
        """Yield this rank's batches of an epoch from `start` on, with the step that each belongs to."""
        batches = plan_epoch(self.plan, epoch, short_batches=self._short_batches)
        numbers = share_of_rank(len(batches), self._rank, self._world)
        first_step = (epoch - 1) * math.ceil(self._length / self._accumulation)
        for place in range(start, len(numbers)):
            batch = batches[numbers[place] % len(batches)]
            if self._at_high_noise:
                batch = with_noise_level(batch, self.plan, place, self._at_high_noise)
            yield replace(batch, step=first_step + place // self._accumulation)


def _workers_for(plan: DataPlan) -> int:
    """Return how many workers have room for the largest batches that they read ahead, at least one: a clip of 81 frames
    at 832x480 takes 390 MB."""
    batches = (
        extent.pixels * PIXEL_BYTES * plan.blueprint.datasets[dataset].batch_size for dataset, extent in plan.groups
    )
    return max(1, AHEAD_BYTES // (PREFETCH * max(batches, default=1)))


def _use_device(device: int | None) -> None:
    """Select the device of this thread: page-locked memory belongs to it, and the default is device 0."""
    if device is not None:
        torch.accelerator.set_device_index(device)
