"""Which presets fit this machine's GPU: the memory of a run with each, before a model or an image is chosen."""

from collections.abc import Mapping
from typing import Any

from sd_scripts.data.plan.blueprint import parse_resolution
from sd_scripts.data.plan.buckets import Extent
from sd_scripts.data.plan.epochs import BatchShape
from sd_scripts.families.cards.registry import card_of
from sd_scripts.machine.nvidia import first_gpu
from sd_scripts.options.clips import ClipOptions, frame_counts
from sd_scripts.options.dataset import DatasetOptions
from sd_scripts.planning.memory import plan_memory
from sd_scripts.settings.catalog import script_for
from sd_scripts.settings.reading import from_values


def fit(runs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the GPU, and the bytes that it needs for each run, which is described as in a saved file; None where they
    are not known. The sum is for a full-size model and batches of square images, each with a control image where the
    family reads some."""
    gpu = first_gpu()
    needed = {name: _bytes(run) for name, run in runs.items()}
    return {"gpu": gpu.name, "bytes": gpu.bytes, "needed": needed}


def _bytes(run: Mapping[str, Any]) -> int | None:
    settings = from_values(script_for(run["family"], run["method"]), run)
    dataset = settings[DatasetOptions]
    width, height = parse_resolution(dataset.resolution or "1024")
    clips = settings.get(ClipOptions)
    frames = max(frame_counts(clips.target_frames)) if clips and clips.target_frames else 1
    controls = ((width, height),) if card_of(settings.script.family).has("control_images") else ()
    extent = Extent(width, height, frames, controls)
    plan = plan_memory(settings, [BatchShape(extent=extent, images=dataset.train_batch_size)])
    return plan.in_use if plan else None
