"""How many graphs torch.compile will make of the denoiser, and when."""

from collections.abc import Mapping
from dataclasses import dataclass

from sd_scripts.data.epochs import BatchShape
from sd_scripts.families.card import FamilyCard, GraphCounts
from sd_scripts.options.compile import CompileOptions

STATIC_SHAPES = 4
"""Up to this many shapes, compile_dynamic = auto compiles static graphs for each, which run faster."""


@dataclass(frozen=True, kw_only=True)
class CompilePlan:
    """What compiling the denoiser takes, without text encoders and VAE."""

    dynamic: bool
    """Whether the graphs take any shape."""
    graphs: int | None
    """None: not known for this family."""
    recompiles: int | None
    advice: tuple[str, ...] = ()


def tokens_of(card: FamilyCard, shape: BatchShape) -> int:
    extent = shape.extent
    return card.tokens(extent.width, extent.height, extent.frames)


def plan_compile(options: CompileOptions, card: FamilyCard, shapes: Mapping[BatchShape, int]) -> CompilePlan | None:
    """Return what compiling takes for these batch shapes; None without torch.compile."""
    if not options.compile:
        return None
    setting = options.compile_dynamic
    dynamic = setting == "true" or (setting == "auto" and len(shapes) > STATIC_SHAPES)
    graphs = expected_graphs(card, [*shapes], setting, dynamic=dynamic) if card.graphs else None
    recompiles = graphs - card.graphs.kinds if card.graphs and graphs else None
    return CompilePlan(
        dynamic=dynamic, graphs=graphs, recompiles=recompiles, advice=_advice(card, shapes, setting, graphs)
    )


def expected_graphs(card: FamilyCard, shapes: list[BatchShape], setting: str, *, dynamic: bool) -> int:
    """Return the graphs that these shapes take with this compile_dynamic."""
    assert card.graphs
    if dynamic:
        return _static(card.graphs, card, shapes[:1]) + (card.graphs.dynamic[setting] if len(shapes) > 1 else 0)
    return _static(card.graphs, card, shapes)


def _static(counts: GraphCounts, card: FamilyCard, shapes: list[BatchShape]) -> int:
    sequences = {(tokens_of(card, shape), shape.images) for shape in shapes}
    return counts.per_shape * len(shapes) + counts.per_token_count * len(sequences)


def _advice(card: FamilyCard, shapes: Mapping[BatchShape, int], setting: str, graphs: int | None) -> tuple[str, ...]:
    """Advise to fill short last batches where that leaves fewer graphs."""
    largest: dict[object, int] = {}
    for shape in shapes:
        largest[shape.extent] = max(largest.get(shape.extent, 0), shape.images)
    whole = [shape for shape in shapes if shape.images == largest[shape.extent]]
    short = len(shapes) - len(whole)
    if not short or not graphs:
        return ()
    dynamic = setting == "true" or (setting == "auto" and len(whole) > STATIC_SHAPES)
    fewer = expected_graphs(card, whole, setting, dynamic=dynamic)
    still = len(shapes) > STATIC_SHAPES >= len(whole) and setting == "auto"
    if fewer >= graphs and not still:
        return ()
    gain = "graphs for each shape, which run faster" if still else f"{fewer} graphs instead of {graphs}"
    batches = (
        "the smaller last batch of a bucket counts as a shape of its own"
        if short == 1
        else f"the smaller last batches of {short} buckets count as shapes of their own"
    )
    return (f"short_batches: {batches}; fill or drop gives {gain}",)
