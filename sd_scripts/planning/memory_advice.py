"""What to change so that a run fits on the GPU: options that save memory, the cheapest first."""

from collections.abc import Callable, Collection, Iterator
from typing import Any

from sd_scripts.families.cards.registry import card_of
from sd_scripts.options.dataset import DatasetOptions
from sd_scripts.options.run import CudaOptions
from sd_scripts.planning.memory import GIB, MemoryPlan, usable_bytes
from sd_scripts.settings.reading import from_values
from sd_scripts.settings.settings import Script, Settings

SWAPS = 6
"""Values of blocks_to_swap that are tried, up to the largest."""


def memory_advice(
    settings: Settings, needed: MemoryPlan, needs: Callable[[Settings], MemoryPlan | None]
) -> tuple[str, ...]:
    """Return a sentence if the GPU is too small: how much is missing, and how to make the run fit.

    `needs` returns the memory of changed settings.
    """
    if needed.fits:
        return ()
    limited = needed.card == usable_bytes(settings[CudaOptions])
    has = f"{'gpu_memory_limit is' if limited else 'the GPU has'} {needed.card / GIB:.1f}"
    short = f"Memory: the run needs about {needed.in_use / GIB:.1f} GiB and {has}"
    changes: dict[str, Any] = {}
    lowest = needed
    for name, value in _savings(settings.script, settings.options, settings[DatasetOptions].train_batch_size):
        changed = from_values(settings.script, {**settings.changed(), **changes, name: value})
        memory = needs(changed)
        if changed.problems() != settings.problems() or not memory or memory.in_use >= lowest.in_use:
            continue
        changes[name] = value
        lowest = memory
        if memory.fits:
            return (f"{short}. It would fit, with about {memory.in_use / GIB:.1f} GiB, with {_spelled(changes)}",)
    if changes:
        return (f"{short}. {_spelled(changes).capitalize()} would lower it to {lowest.in_use / GIB:.1f} GiB",)
    return (short,)


def _savings(script: Script, options: Collection[str], batch: int) -> Iterator[tuple[str, Any]]:
    """Yield the options of a run that save memory, and values for them. `batch`: how many images a batch has now."""
    yield "cache_latents", True
    yield "cache_text_encoder_outputs", True
    yield "gradient_checkpointing", True
    if "full_bf16" in options and script.method == "full":
        yield "full_bf16", True
        yield "fused_backward_pass", True
    if "fp8_base" in options:
        yield "fp8_base", True
    facts = card_of(script.family).plan.memory
    if "blocks_to_swap" in options and facts:
        for number in range(1, SWAPS + 1):
            yield "blocks_to_swap", -(-number * facts.most_swapped // SWAPS)
    while batch > 1:
        batch //= 2
        yield "train_batch_size", batch


def _spelled(options: dict[str, Any]) -> str:
    return ", ".join(name if value is True else f"{name} = {value}" for name, value in options.items())
