"""The batches of an epoch, in order: every picture as often as it shall be seen, whoever loads them."""

from collections import Counter
from dataclasses import dataclass
from random import Random
from typing import Literal

from sd_scripts.data.buckets import Size
from sd_scripts.data.dataset import DataPlan

ShortBatches = Literal["keep", "drop", "fill"]
"""What becomes of the pictures left over in a bucket: a smaller batch, nothing, or a batch filled with others of it."""


@dataclass(frozen=True, kw_only=True)
class PlannedBatch:
    """One batch by the places of its pictures in the plan."""

    dataset: int
    bucket: Size
    picks: tuple[tuple[int, int], ...]
    """(item, which of its repeats in this epoch)."""


@dataclass(frozen=True, kw_only=True, order=True)
class BatchShape:
    """What decides a graph: size in pixels, and how many pictures."""

    width: int
    height: int
    pictures: int


def plan_epoch(plan: DataPlan, epoch: int, *, short_batches: ShortBatches = "keep") -> list[PlannedBatch]:
    """The same for the same (plan, plan.seed, epoch). With "keep" and "fill" every repeat of every picture is there."""
    random = Random(f"{plan.seed}/order/{epoch}")
    batches = []
    for (dataset, bucket), items in plan.groups().items():
        size = plan.blueprint.datasets[dataset].batch_size
        picks = [(item.index, repeat) for item in items for repeat in range(item.repeats)]
        random.shuffle(picks)
        if short_batches == "fill":
            # a further repeat of a picture draws its own flip, crop and caption
            missing = -len(picks) % size
            picks += [(picks[turn % len(picks)][0], 1_000_000 + turn) for turn in range(missing)]
        batches += [
            PlannedBatch(dataset=dataset, bucket=bucket, picks=tuple(picks[start : start + size]))
            for start in range(0, len(picks), size)
            if short_batches != "drop" or start + size <= len(picks)
        ]
    random.shuffle(batches)
    return batches


def share_of_rank(batches: list[PlannedBatch], rank: int, world: int) -> list[PlannedBatch]:
    """Every world-th batch. All ranks get equally many: the first batches of the epoch are seen again where needed."""
    if not batches:
        return []
    padded = batches + [batches[turn % len(batches)] for turn in range(-len(batches) % world)]
    return padded[rank::world]


def batch_shapes(plan: DataPlan, *, short_batches: ShortBatches = "keep") -> dict[BatchShape, int]:
    """How many batches of each shape an epoch has: the same in every epoch, known before the first."""
    shapes: Counter[BatchShape] = Counter()
    for (dataset, (width, height)), items in plan.groups().items():
        size = plan.blueprint.datasets[dataset].batch_size
        full, rest = divmod(sum(item.repeats for item in items), size)
        if rest and short_batches == "keep":
            shapes[BatchShape(width=width, height=height, pictures=rest)] += 1
        full += bool(rest) and short_batches == "fill"
        if full:
            shapes[BatchShape(width=width, height=height, pictures=size)] += full
    return dict(sorted(shapes.items()))
