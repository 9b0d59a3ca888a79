"""Plan the batches of an epoch, in order, independently of who loads them: each image with its repeats."""

from array import array
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from random import Random
from typing import Literal

from sd_scripts.data.plan.buckets import Extent
from sd_scripts.data.plan.dataset import DataPlan
from sd_scripts.library.seeds import seed_from

AtHighNoise = Callable[[Extent, int], bool]
"""Bucket of a batch, seed of its draw -> whether the batch is trained at high noise."""
ShortBatches = Literal["keep", "drop", "fill"]
"""What happens to a bucket's incomplete last batch: keep it smaller, drop it, or fill it with images repeated."""


@dataclass(frozen=True, kw_only=True)
class PlannedBatch:
    """A batch to read, with all that its random draws depend on, so that workers keep no state."""

    dataset: int
    bucket: Extent
    picks: tuple[tuple[int, int], ...]
    """(index of the item in the plan, which of its repeats in this epoch)."""
    epoch: int
    step: int = 0
    high_noise: bool | None = None
    """Whether all its timesteps are above highnoise_sigma, at which images are smaller; None: it has no smaller size,
    and its timesteps are drawn from the whole range."""


@dataclass(frozen=True, kw_only=True, order=True)
class BatchShape:
    """The shape that a graph is compiled for: extent of each sample, and number of samples."""

    extent: Extent
    images: int

    def __str__(self) -> str:
        return f"{self.extent}x{self.images}"


@dataclass(frozen=True, kw_only=True)
class _Group:
    """The shuffled images of a bucket in one epoch; a pick is an index among all repeats of all images."""

    dataset: int
    bucket: Extent
    epoch: int
    size: int
    """Images in a batch."""
    items: Sequence[int]
    ends: Sequence[int]
    """Where the repeats of each image end."""
    order: "array[int]"
    filled: int
    """Picks added to complete the last batch."""

    def __len__(self) -> int:
        return -(-(len(self.order) + self.filled) // self.size)

    def batch(self, number: int) -> PlannedBatch:
        start = number * self.size
        stop = min(start + self.size, len(self.order) + self.filled)
        picks = tuple(self._pick(place) for place in range(start, stop))
        return PlannedBatch(dataset=self.dataset, bucket=self.bucket, picks=picks, epoch=self.epoch)

    def _pick(self, place: int) -> tuple[int, int]:
        number = self.order[place % len(self.order)]
        owner = bisect_right(self.ends, number)
        if place >= len(self.order):
            # an added repeat gets its own random flip, crop and caption
            return self.items[owner], 1_000_000 + place - len(self.order)
        return self.items[owner], number - (self.ends[owner - 1] if owner else 0)


class Epoch:
    """The batches of an epoch, built on access: a full list would grow with the repeats."""

    def __init__(self, groups: Sequence[_Group], random: Random):
        self._groups = groups
        self._ends = list(accumulate(len(group) for group in groups))
        self._order = array("q", range(self._ends[-1] if groups else 0))
        random.shuffle(self._order)

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, index: int) -> PlannedBatch:
        number = self._order[index]
        owner = bisect_right(self._ends, number)
        return self._groups[owner].batch(number - (self._ends[owner - 1] if owner else 0))


def plan_epoch(plan: DataPlan, epoch: int, *, short_batches: ShortBatches = "keep") -> Epoch:
    """Return the batches of an epoch, a function of (plan, plan.seed, epoch) alone. "keep" and "fill" include every
    repeat of every image."""
    random = Random(f"{plan.seed}/order/{epoch}")
    groups = []
    for (dataset, bucket), items in plan.groups.items():
        size = plan.blueprint.datasets[dataset].batch_size
        ends = list(accumulate(item.repeats for item in items))
        order = array("q", range(ends[-1]))
        random.shuffle(order)
        if short_batches == "drop":
            order = order[: len(order) // size * size]
        group = _Group(
            dataset=dataset,
            bucket=bucket,
            epoch=epoch,
            size=size,
            items=[item.index for item in items],
            ends=ends,
            order=order,
            filled=-len(order) % size if short_batches == "fill" else 0,
        )
        groups.append(group)
    return Epoch(groups, random)


def with_noise_level(batch: PlannedBatch, plan: DataPlan, place: int, at_high_noise: AtHighNoise) -> PlannedBatch:
    """Return a batch, the `place`-th of its rank in its epoch, with its high_noise. All ranks draw the same random
    number, so that they train a step at the same size and none waits for another."""
    if not plan.groups[batch.dataset, batch.bucket][0].smaller:
        return batch
    number = seed_from(plan.seed, "high_noise", batch.epoch, place)
    return replace(batch, high_noise=at_high_noise(batch.bucket, number))


def share_of_rank(count: int, rank: int, world: int) -> Sequence[int]:
    """Return the indices of a rank's batches among `count`: every world-th. All ranks get the same number; indices past
    the end wrap around to the first batches."""
    return range(rank, -(-count // world) * world, world) if count else range(0)


def batch_shapes(plan: DataPlan, *, short_batches: ShortBatches = "keep") -> dict[BatchShape, int]:
    """Return how many batches of each shape an epoch has; it is the same in every epoch. All are of the size of their
    bucket."""
    shapes: Counter[BatchShape] = Counter()
    for _, shape, count in _shapes_of_groups(plan, short_batches):
        shapes[shape] += count
    return dict(sorted(shapes.items()))


def trained_shapes(
    plan: DataPlan, share: Callable[[Extent], float], *, short_batches: ShortBatches = "keep"
) -> dict[BatchShape, float]:
    """Return how many batches of each shape an epoch has on average, with those of highnoise_resolution. `share`:
    bucket -> the share of its batches at high noise."""
    smaller = plan.smaller_buckets()
    shapes: defaultdict[BatchShape, float] = defaultdict(float)
    for dataset, shape, count in _shapes_of_groups(plan, short_batches):
        if extent := smaller.get((dataset, shape.extent)):
            high = share(shape.extent)
            shapes[replace(shape, extent=extent)] += high * count
            shapes[shape] += (1 - high) * count
        else:
            shapes[shape] += count
    return dict(sorted(shapes.items()))


def _shapes_of_groups(plan: DataPlan, short_batches: ShortBatches) -> Iterator[tuple[int, BatchShape, int]]:
    """Yield dataset, shape and number of the batches of each group."""
    for (dataset, extent), items in plan.groups.items():
        size = plan.blueprint.datasets[dataset].batch_size
        full, rest = divmod(sum(item.repeats for item in items), size)
        if rest and short_batches == "keep":
            yield dataset, BatchShape(extent=extent, images=rest), 1
        full += bool(rest) and short_batches == "fill"
        if full:
            yield dataset, BatchShape(extent=extent, images=size), full
