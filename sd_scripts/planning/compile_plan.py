"""How many graphs torch.compile will make of the denoiser, and when."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from sd_scripts.data.plan.buckets import Extent
from sd_scripts.data.plan.epochs import BatchShape
from sd_scripts.families.cards.family_card import FamilyCard, GraphCounts
from sd_scripts.options.compile import CompileOptions

STATIC_SHAPES = 4
"""Up to this many shapes, compile_dynamic = auto compiles static graphs for each, which run faster."""


@dataclass(frozen=True, kw_only=True)
class CompilePlan:
    """What compiling the denoiser takes, without text encoders and VAE."""

    dynamic: bool
    """Whether the graphs take any shape."""
    shapes: int
    """Batch shapes that the blocks can distinguish."""
    graphs: int | None
    """None: not known for this family."""
    recompiles: int | None
    advice: tuple[str, ...] = ()


def seen_parts(card: FamilyCard, extent: Extent) -> tuple[Extent, ...]:
    """Return the parts of a sample that are tokens: a control clip is further channels of those of its sample."""
    return (extent.alone,) if card.has("control_clips") else extent.parts


def tokens_of(card: FamilyCard, shape: BatchShape) -> int:
    """Return the tokens of a sample and its control images."""
    return sum(card.plan.tokens(part.width, part.height, part.frames) for part in seen_parts(card, shape.extent))


def distinct_shapes(card: FamilyCard, shapes: Collection[BatchShape]) -> int:
    """Return how many of these shapes the compiled blocks can distinguish: some only see numbers of tokens."""
    return len(shapes) if not card.plan.graphs or card.plan.graphs.per_shape else len(_sequences(card, shapes))


def is_dynamic(card: FamilyCard, setting: str, shapes: Collection[BatchShape]) -> bool:
    """Return whether graphs take any shape with this compile_dynamic."""
    return setting == "true" or (setting == "auto" and distinct_shapes(card, shapes) > STATIC_SHAPES)


def plan_compile(
    options: CompileOptions, card: FamilyCard, shapes: Collection[BatchShape], filled: Collection[BatchShape]
) -> CompilePlan | None:
    """Return the cost of compiling for these batch shapes; None without torch.compile. `filled`: the shapes of the same
    data with short_batches = fill."""
    if not options.compile:
        return None
    setting = options.compile_dynamic
    graphs = expected_graphs(card, shapes, setting)
    recompiles = graphs - card.plan.graphs.kinds if card.plan.graphs and graphs else None
    return CompilePlan(
        dynamic=is_dynamic(card, setting, shapes),
        shapes=distinct_shapes(card, shapes),
        graphs=graphs,
        recompiles=recompiles,
        advice=(*_on_short_batches(card, shapes, filled, setting), *_on_buckets(card, filled, setting)),
    )


def expected_graphs(card: FamilyCard, shapes: Collection[BatchShape], setting: str) -> int | None:
    """Return the graphs that these shapes take with this compile_dynamic; None: not known for this family."""
    if not card.plan.graphs:
        return None
    if not is_dynamic(card, setting, shapes):
        return _static(card.plan.graphs, card, shapes)
    more = card.plan.graphs.dynamic[setting]
    total = more.sizes if len({shape.extent for shape in shapes}) > 1 else 0
    # PyTorch compiles batches of one image separately from all others
    for part in ([s for s in shapes if s.images == 1], [s for s in shapes if s.images > 1]):
        if part:
            total += _static(card.plan.graphs, card, part[:1]) + more.always
            total += more.tokens if len(_sequences(card, part)) > 1 else 0
            total += more.images if len({shape.images for shape in part}) > 1 else 0
    return total


def _static(counts: GraphCounts, card: FamilyCard, shapes: Collection[BatchShape]) -> int:
    return counts.per_shape * len(shapes) + counts.per_token_count * len(_sequences(card, shapes))


def _sequences(card: FamilyCard, shapes: Collection[BatchShape]) -> set[tuple[int, int]]:
    """Return the (tokens of an image, images in a batch) of these shapes."""
    return {(tokens_of(card, shape), shape.images) for shape in shapes}


def _on_short_batches(
    card: FamilyCard, shapes: Collection[BatchShape], filled: Collection[BatchShape], setting: str
) -> Iterator[str]:
    """Advise to fill short last batches where that leaves fewer graphs."""
    short = len(set(shapes) - set(filled))
    graphs = expected_graphs(card, shapes, setting)
    fewer = expected_graphs(card, filled, setting)
    if not short or graphs is None or fewer is None:
        return
    still = is_dynamic(card, setting, shapes) and not is_dynamic(card, setting, filled)
    if fewer >= graphs and not still:
        return
    gain = "graphs for each shape, which run faster" if still else f"{fewer} graphs instead of {graphs}"
    batches = (
        "the smaller last batch of a bucket counts as a shape of its own"
        if short == 1
        else f"the smaller last batches of {short} buckets count as shapes of their own"
    )
    yield f"short_batches: {batches}; fill or drop gives {gain}"


def _on_buckets(card: FamilyCard, shapes: Collection[BatchShape], setting: str) -> Iterator[str]:
    """Advise to use buckets with equal tokens where all shapes would then share graphs."""
    if not card.plan.graphs or card.plan.graphs.per_shape or setting == "true" or not is_dynamic(card, setting, shapes):
        return
    graphs = card.plan.graphs.per_token_count * len({shape.images for shape in shapes})
    yield (
        f"equal_token_buckets: gives {graphs} graphs for one shape, which run faster than graphs that take any, and "
        "crops images more"
    )
