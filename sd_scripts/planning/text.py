"""The plan of a run as lines of text."""

from collections.abc import Iterator
from typing import Any

from sd_scripts.formats.words import counted, duration
from sd_scripts.planning.crops import Crop
from sd_scripts.planning.memory import GIB, MemoryPlan
from sd_scripts.planning.run_plan import BreakEven, Clips, RunPlan
from sd_scripts.planning.speeds import Estimate

MOST_BUCKETS = 12
WIDTH = 14


def lines(plan: RunPlan) -> list[str]:
    """Return the plan as a table of two columns, and notes below it."""
    table = [f"{name:<{WIDTH}}{text}" for name, text in rows(plan)]
    if plan.memory:
        table.append(f"{'':<{WIDTH}}{', '.join(f'{name} {_gib(used)}' for name, used in memory_parts(plan.memory))}")
    return [*table, *(f"Note: {warning}" for warning in notes(plan))]


def as_texts(plan: RunPlan) -> dict[str, Any]:
    """Return the texts of the plan for programs that show it."""
    parts = memory_parts(plan.memory) if plan.memory else []
    return {"headline": headline(plan), "rows": [*rows(plan)], "memory_parts": parts}


def headline(plan: RunPlan) -> str:
    """Return the plan in a few words: 2,400 steps, 31 graphs, 12 min."""
    graphs = plan.compile.graphs if plan.compile else None
    parts = (
        counted(plan.steps, "step"),
        counted(plan.images, "image"),
        counted(len(plan.buckets), "bucket"),
        counted(graphs, "graph") if graphs else "",
        f"about {duration(plan.total_time.seconds)}" if plan.total_time else "",
        _gib(plan.memory.in_use) if plan.memory else "",
    )
    return ", ".join(part for part in parts if part)


def rows(plan: RunPlan) -> Iterator[tuple[str, str]]:
    """Yield (name, text) for each fact of the plan."""
    held_out = f", and {plan.validation_images:,} for validation" if plan.validation_images else ""
    yield "Images", f"{plan.images:,} ({plan.images_per_epoch:,} per epoch with repeats){held_out}"
    if plan.clips:
        yield "Clips", _clips(plan.clips)
    yield "Buckets", _buckets(plan)
    yield "Cropped", _crops(plan)
    yield "Batch shapes", _shapes(plan)
    if plan.smaller_share:
        yield "High noise", f"{_percent(plan.smaller_share)} of the images at a smaller size, on average"
    yield "Steps", _steps(plan)
    if plan.choice:
        yield "Auto", plan.choice
    if plan.compile:
        yield "Graphs", _graphs(plan)
        yield "Compiling", _time(plan.compile_time, "not known until a run here has compiled")
    yield "Step", _time(plan.step_time, "not known until a run here has trained with these settings")
    if plan.total_time:
        yield "Training", _time(plan.total_time, "")
    if plan.break_even:
        yield "Pays off", pays(plan.break_even, plan.steps)
    elif plan.elsewhere:
        yield "Pays off", f"not known here; {plan.elsewhere}"
    if plan.memory:
        yield "Main memory", f"about {_gib(plan.memory.main_memory)} (estimated)"
    yield "GPU memory", _gpu_memory(plan)


def notes(plan: RunPlan) -> list[str]:
    return [*(plan.compile.advice if plan.compile else ()), *plan.warnings]


def pays(break_even: BreakEven, steps: int) -> str:
    """Return after which step a compiled run is ahead, and by how much at its end."""
    if not break_even.step:
        return "never: compiled steps are not faster here"
    if break_even.saved <= 0:
        loss = duration(-break_even.saved)
        return f"not in this run of {steps:,} steps: it would take {break_even.step:,}, and costs {loss} more"
    return f"after step {break_even.step:,} of {steps:,}; saves {duration(break_even.saved)}"


def _time(estimate: Estimate | None, unknown: str) -> str:
    if estimate is None:
        return unknown
    time = duration(estimate.seconds)
    if estimate.source == "remembered":
        return f"{time} (remembered: {estimate.basis})"
    return f"{time} (estimated: {estimate.basis})"


def memory_parts(memory: MemoryPlan) -> list[tuple[str, int]]:
    """Return (name, bytes) of all that a run has on the GPU at its peak."""
    return [*((part.name, part.bytes) for part in memory.parts), ("CUDA and reserve", memory.in_use - memory.peak)]


def _gpu_memory(plan: RunPlan) -> str:
    memory = plan.memory
    if not memory:
        text = "not known for a model of this size"
    elif memory.card:
        text = f"{_gib(memory.in_use)} of {_gib(memory.card)} while {memory.phase} (estimated)"
    else:
        text = f"{_gib(memory.in_use)} while {memory.phase} (estimated)"
    if not plan.measured_gpu_bytes:
        return text
    return f"{text}; the tensors of the last such run took {_gib(plan.measured_gpu_bytes)} (remembered)"


def _gib(bytes: int) -> str:
    return f"{bytes / GIB:.1f} GiB"


def _clips(clips: Clips) -> str:
    frames = f"{clips.shortest} to {clips.longest}" if clips.shortest < clips.longest else f"{clips.longest}"
    return f"{counted(clips.files, 'clip')} give {counted(clips.samples, 'sample')} of {frames} frames"


def _steps(plan: RunPlan) -> str:
    text = f"{plan.steps:,} ({counted(plan.epochs, 'epoch')} of {plan.steps_per_epoch:,} steps)"
    if plan.accumulation > 1:
        text = f"{text}, each {plan.accumulation} batches"
    return f"{text} in each of {plan.processes} processes" if plan.processes > 1 else text


def _buckets(plan: RunPlan) -> str:
    shown = [f"{bucket.size} ({bucket.per_epoch:,})" for bucket in plan.buckets[:MOST_BUCKETS]]
    more = len(plan.buckets) - MOST_BUCKETS
    return f"{len(plan.buckets)}: {', '.join(shown)}" + (f" and {more} more" if more > 0 else "")


def _crops(plan: RunPlan) -> str:
    crop = plan.crops.all
    ordinary = plan.crops.ordinary
    text = "none"
    if not _is_nothing(crop):
        text = f"{_percent(crop.mean)} of the image area on average, at most {_percent(crop.worst)} ({crop.file})"
    if ordinary:
        less = f"{_percent(ordinary.mean)}, at most {_percent(ordinary.worst)}"
        return f"{text}; ordinary buckets: {'none' if _is_nothing(ordinary) else less}"
    return text


def _is_nothing(crop: Crop) -> bool:
    return crop.worst < 0.0005  # less is rounding


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _shapes(plan: RunPlan) -> str:
    counts = {shape.tokens for shape in plan.shapes}
    tokens = f"{min(counts):,}" if len(counts) == 1 else f"{min(counts):,} to {max(counts):,}"
    return f"{len(plan.shapes)}, with {tokens} tokens per image"


def _graphs(plan: RunPlan) -> str:
    assert plan.compile
    kind = "graphs for each shape"
    if plan.compile.dynamic:
        kind = "graphs that take any shape"
    elif plan.compile.shapes < len(plan.shapes):
        kind = "graphs shared by shapes with the same number of tokens"
    if plan.compile.graphs is None:
        return f"{kind}; how many is not known for this model family"
    return f"{plan.compile.graphs} (estimated), {plan.compile.recompiles} of them recompiles; {kind}"
