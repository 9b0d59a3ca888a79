"""The batch shapes of a run, with those of the smaller size at high noise."""

from collections.abc import Callable
from functools import partial

from sd_scripts.data.plan.buckets import Extent
from sd_scripts.data.plan.dataset import DataPlan
from sd_scripts.data.plan.epochs import BatchShape, ShortBatches, trained_shapes
from sd_scripts.families.cards.family_card import FamilyCard
from sd_scripts.families.cards.noise_levels import TIMESTEPS
from sd_scripts.options.dataset import DatasetOptions
from sd_scripts.options.optimization.flow import FlowOptions
from sd_scripts.options.optimization.loss import NoiseOptions
from sd_scripts.settings.settings import Settings


def shapes_of(
    settings: Settings, card: FamilyCard, plan: DataPlan, short_batches: ShortBatches | None = None
) -> dict[BatchShape, float]:
    """Return how many batches of each shape an epoch of the run has, on average with highnoise_resolution.
    `short_batches`: as the settings have it if None."""
    return trained_shapes(
        plan,
        partial(share_at_high_noise, settings.get(FlowOptions), settings[NoiseOptions], card),
        short_batches=short_batches or settings[DatasetOptions].short_batches,
    )


def smaller_share(plan: DataPlan, share: Callable[[Extent], float]) -> float:
    """Return the share of an epoch's images that are trained at their smaller size, on average. `share`: as
    share_at_high_noise of a bucket."""
    smaller = 0.0
    for (_, bucket), items in plan.groups.items():
        if items[0].smaller:
            smaller += share(bucket) * sum(item.repeats for item in items)
    return smaller / max(1, sum(item.repeats for item in plan.items))


def share_at_high_noise(flow: FlowOptions | None, noise: NoiseOptions, card: FamilyCard, bucket: Extent) -> float:
    """Return the share of a bucket's timesteps above highnoise_sigma."""
    assert flow, "only families of flow matching train a second size"
    tokens = card.plan.tokens(*bucket.size, bucket.frames)
    low, high = (noise.min_timestep or 0) / TIMESTEPS, (noise.max_timestep or TIMESTEPS) / TIMESTEPS

    def above(level: float) -> float:
        return card.plan.share_above(flow, tokens, level)

    if not low <= noise.highnoise_sigma < high:
        return float(low > noise.highnoise_sigma)
    if not flow.preserve_distribution_shape:
        return above((noise.highnoise_sigma - low) / (high - low))
    within = above(low) - above(high)
    return (above(noise.highnoise_sigma) - above(high)) / within if within > 0 else 0.0
