"""The plan of a run: its images, buckets, steps, graphs and times, before anything is loaded and without torch."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

from sd_scripts.data.plan.buckets import Extent
from sd_scripts.data.plan.dataset import DataPlan, Item, plan_data
from sd_scripts.data.plan.epochs import BatchShape, batch_shapes
from sd_scripts.data.plan.trained_token import require_token_in_captions, trained_token
from sd_scripts.families.cards.family_card import FamilyCard
from sd_scripts.families.cards.registry import card_of
from sd_scripts.machine.measurements import Measurement, remembered
from sd_scripts.machine.nvidia import Gpu, first_gpu
from sd_scripts.options.compile import CompileOptions
from sd_scripts.options.dataset import DatasetOptions
from sd_scripts.options.generating.prompt_lines import SamplePrompt
from sd_scripts.options.generating.sampling import SampleOptions
from sd_scripts.options.launch import LaunchOptions, SlurmOptions
from sd_scripts.options.model import ModelOptions
from sd_scripts.options.networks.embedding import EmbeddingOptions
from sd_scripts.options.optimization.flow import FlowOptions
from sd_scripts.options.optimization.loss import NoiseOptions
from sd_scripts.options.training import TrainingOptions
from sd_scripts.planning.compile_choice import choose_compile
from sd_scripts.planning.compile_plan import CompilePlan, plan_compile, tokens_of
from sd_scripts.planning.crops import Crop, Crops, crop_of, crops_of
from sd_scripts.planning.memory import MemoryPlan, plan_memory
from sd_scripts.planning.memory_advice import memory_advice
from sd_scripts.planning.speeds import Estimate, Speeds, model_size, pays_elsewhere
from sd_scripts.planning.steps import plan_training
from sd_scripts.planning.trained_shapes import shapes_of, share_at_high_noise, smaller_share
from sd_scripts.settings.checks.model_files import model_variant
from sd_scripts.settings.launching.accelerate_command import processes_of
from sd_scripts.settings.preflight import prompt_file
from sd_scripts.settings.run_length import length_advice
from sd_scripts.settings.settings import Settings

Warn = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """The images of one size."""

    size: str
    """1024x1024, for clips with the number of frames."""
    images: int
    """Files."""
    per_epoch: int
    """With repeats."""
    crop: Crop


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A batch shape of the run."""

    size: str
    images: int
    """In a batch."""
    batches: int
    """Per epoch; on average with highnoise_resolution."""
    tokens: int
    """Of one image, in the longest sequence that attention sees."""


@dataclass(frozen=True, kw_only=True)
class Clips:
    """The clips among the training images."""

    files: int
    samples: int
    """Parts of clips, without repeats."""
    shortest: int
    """Frames of the shortest sample."""
    longest: int


@dataclass(frozen=True, kw_only=True)
class BreakEven:
    """When compiling pays."""

    step: int
    """The step after which the compiled run is ahead."""
    saved: float
    """Seconds that the whole run saves; negative: it loses them."""


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    family: str
    """Its title."""
    method: str
    device: str
    images: int
    images_per_epoch: int
    """With repeats."""
    validation_images: int
    clips: Clips | None
    """None: all are images."""
    buckets: tuple[Bucket, ...]
    crops: Crops
    shapes: tuple[Shape, ...]
    smaller_share: float
    """Share of the images that are trained at a smaller size at high noise, on average."""
    batches_per_epoch: int
    """Of one process."""
    accumulation: int
    processes: int
    steps_per_epoch: int
    epochs: int
    steps: int
    choice: str
    """What compile_auto chooses, and why; empty without it."""
    compile: CompilePlan | None
    step_time: Estimate | None
    compile_time: Estimate | None
    total_time: Estimate | None
    """All steps and compiling, without loading, caching, sampling and saving."""
    break_even: BreakEven | None
    elsewhere: str
    """When compiling paid elsewhere, if it is not known for this machine; else empty."""
    memory: MemoryPlan | None
    """None: not known for a model of this size."""
    measured_gpu_bytes: int
    """Peak of all tensors on the GPU in such a run on this machine; 0 if there was none."""
    warnings: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def plan_run(settings: Settings, gpu: Gpu | None = None, known: Iterable[Measurement] | None = None) -> RunPlan:
    """Return the plan of a run. Raises ValueError, one sentence that begins with an option's name, if its data cannot
    be planned. `gpu`: this machine's if None. `known`: measurements, by default those of this machine."""
    card, options = card_of(settings.script.family), settings[TrainingOptions]
    gpu = gpu or first_gpu()
    warnings: list[str] = []
    data = plan_data(settings, card, seed=options.seed or 0, warn=warnings.append)
    require_token_in_captions(trained_token(settings.get(EmbeddingOptions), card), data, warnings.append)
    warnings += _cut_texts(settings, card, data)
    shapes = shapes_of(settings, card, data)
    processes = processes_of(settings.get(LaunchOptions), settings.get(SlurmOptions))
    counts = batch_shapes(data, short_batches=settings[DatasetOptions].short_batches)
    batches = -(-sum(counts.values()) // processes)
    if not batches:
        raise ValueError("short_batches: drop leaves no batch; choose keep or fill, or a smaller train_batch_size")
    train_plan = plan_training(options, batches)
    speeds = Speeds(settings=settings, gpu=gpu, known=[*(remembered() if known is None else known)])
    choice = None
    if settings[CompileOptions].compile and settings[CompileOptions].compile_auto:
        choice = choose_compile(speeds, shapes, train_plan.max_steps)
        settings = settings.replaced(choice.changes)
        speeds = dataclasses.replace(speeds, settings=settings)
    filled = shapes_of(settings, card, data, "fill")
    compile_plan = plan_compile(settings[CompileOptions], card, shapes.keys(), filled.keys())
    break_even = _break_even(speeds, shapes, train_plan.max_steps)
    images = len({item.path for item in data.items})
    images_per_epoch = sum(item.repeats for item in data.items)
    images_seen = images_per_epoch * train_plan.max_steps / train_plan.steps_per_epoch
    repeats = settings[DatasetOptions].num_repeats
    advice = length_advice(options.max_train_epochs, repeats, train_plan.max_steps, images_seen)

    needs = partial(
        plan_memory,
        shapes=shapes,
        captions=images,
        model_values=model_size(settings[ModelOptions]),
        gpu_bytes=gpu.bytes,
    )
    memory = needs(settings)
    return RunPlan(
        family=card.title,
        method=settings.script.method,
        device=gpu.name,
        images=images,
        images_per_epoch=images_per_epoch,
        validation_images=len(data.validation.items) if data.validation else 0,
        clips=_clips(data),
        buckets=_buckets(data),
        crops=crops_of(data),
        shapes=_shapes(card, shapes),
        smaller_share=smaller_share(
            data, partial(share_at_high_noise, settings.get(FlowOptions), settings[NoiseOptions], card)
        ),
        batches_per_epoch=batches,
        accumulation=train_plan.accumulation,
        processes=processes,
        steps_per_epoch=train_plan.steps_per_epoch,
        epochs=train_plan.epochs,
        steps=train_plan.max_steps,
        choice=str(choice or ""),
        compile=compile_plan,
        step_time=speeds.step(shapes),
        compile_time=speeds.compiling(shapes),
        total_time=speeds.total(shapes, train_plan.max_steps),
        break_even=break_even,
        elsewhere="" if break_even else pays_elsewhere(settings.script, settings[CompileOptions]),
        memory=memory,
        measured_gpu_bytes=speeds.gpu_bytes(shapes),
        warnings=(
            *warnings,
            *(advice if settings.script.method == "lora" else ()),
            *(memory_advice(settings, memory, needs) if memory else ()),
        ),
    )


def _cut_texts(settings: Settings, card: FamilyCard, data: DataPlan) -> Iterator[str]:
    """Yield a remark about captions, and one about sample prompts, that the text encoders cut."""
    if not card.text_limit:
        return
    limit = card.text_limit(settings, model_variant(settings[ModelOptions]))
    prompts: list[SamplePrompt] = []
    if file := prompt_file(settings):
        with contextlib.suppress(ValueError):  # listed with what keeps the run from starting
            prompts = file.prompts(card.defaults_of_samples(settings[SampleOptions].sample_model))
    texts = chain.from_iterable((each.prompt, each.negative_prompt if each.scale != 1 else "") for each in prompts)
    yield from filter(None, (limit.caption_remark(data.whole_captions()), limit.prompt_remark(texts)))


def _clips(data: DataPlan) -> Clips | None:
    parts = [item for item in data.items if item.span]
    if not parts:
        return None
    frames = [item.fit.bucket.frames for item in parts]
    files = len({item.path for item in parts})
    return Clips(files=files, samples=len(parts), shortest=min(frames), longest=max(frames))


def _buckets(data: DataPlan) -> tuple[Bucket, ...]:
    by_extent: dict[Extent, list[Item]] = {}
    for item in data.items:
        by_extent.setdefault(item.fit.bucket, []).append(item)
    return tuple(
        Bucket(size=str(extent), images=len(by_extent[extent]), per_epoch=count, crop=crop_of(by_extent[extent]))
        for extent, count in data.buckets().items()
    )


def _shapes(card: FamilyCard, shapes: Mapping[BatchShape, float]) -> tuple[Shape, ...]:
    return tuple(
        Shape(size=str(shape.extent), images=shape.images, batches=round(count), tokens=tokens_of(card, shape))
        for shape, count in shapes.items()
    )


def _break_even(speeds: Speeds, shapes: Mapping[BatchShape, float], steps: int) -> BreakEven | None:
    """Return when compiling pays; None without torch.compile, or if a time is unknown."""
    step = speeds.step(shapes)
    plain = speeds.uncompiled().step(shapes)
    compiling = speeds.compiling(shapes)
    if not (step and plain and compiling):
        return None
    gained = plain.seconds - step.seconds
    paid_at = int(compiling.seconds / gained) + 1 if gained > 0 else 0
    return BreakEven(step=paid_at, saved=gained * steps - compiling.seconds)
