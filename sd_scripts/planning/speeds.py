"""How long steps and compiling take: remembered from runs on this machine, else estimated from measured tables."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from sd_scripts.data.plan.buckets import Extent
from sd_scripts.data.plan.epochs import BatchShape
from sd_scripts.families.cards.family_card import FamilyCard, Speed
from sd_scripts.families.cards.registry import card_of
from sd_scripts.formats.models.safetensors_header import read_header
from sd_scripts.machine.compile_fingerprint import torch_version
from sd_scripts.machine.measurements import Measurement
from sd_scripts.machine.nvidia import Gpu
from sd_scripts.options.compile import CompileMoreOptions, CompileOptions
from sd_scripts.options.model import ModelOptions
from sd_scripts.options.optimization.loss import NoiseOptions
from sd_scripts.options.training import TrainingOptions
from sd_scripts.planning.compile_plan import expected_graphs
from sd_scripts.settings.family_options import each_option
from sd_scripts.settings.recording import keeps_from_recording
from sd_scripts.settings.settings import Script, Settings

COMPILING = tuple(
    each.name
    for group in (CompileOptions, CompileMoreOptions)
    for each in each_option(group)
    if each.name not in ("compile_auto", "compile_check_every")  # it stands for others; its time does not count
)
RECORDING = "record_steps"
DECIDING = (
    *("mixed_precision", "full_fp16", "full_bf16", "fp8_base", "fp8_base_unet", "fp8_compute", "quantize_base"),
    *("quantize_text_encoders", "blocks_to_swap"),
    *("gradient_checkpointing", "cpu_offload_checkpointing", "gradient_accumulation_steps", "train_batch_size"),
    *("network_module", "network_dim", "network_args", "network_train_unet_only", "network_train_text_encoder_only"),
    *("network_type", "conv_dim", "factor", "full_matrix", "dora_wd"),
    *("train_text_encoder", "optimizer_type", "fused_backward_pass", "fused_optimizer_groups"),
    *("blockwise_fused_optimizers", "cache_latents", "cache_text_encoder_outputs", "sdpa", "xformers", "use_ema"),
    *("train_blocks", "num_processes", "deterministic", RECORDING),
)
"""Options that decide the speed of a step, besides those of torch.compile."""
NEARLY_EQUAL = (
    *("mixed_precision", "network_module", "network_dim", "network_args", "network_train_unet_only"),
    *("optimizer_type", "cache_latents", "cache_text_encoder_outputs", "sdpa", "gradient_accumulation_steps"),
)
"""Options that a measured table need not agree in: as usually set, they change a step little."""
AGREEING = ("gradient_checkpointing", RECORDING)
"""Options that change what compiling gains."""
GPUS = ("H100", "H200")
"""The GPUs that steps were measured on; their times differ by up to 8 %."""
MEASURED_ON = " or ".join(GPUS)
MEASURED_PIXELS = 1024 * 1024
NEAR = 0.1
"""By how much an image may differ from MEASURED_PIXELS for a measured step to apply."""

Source = Literal["remembered", "estimated"]


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A time, and where it comes from."""

    seconds: float
    source: Source
    basis: str
    """Whose measurement it is, as the end of a sentence."""


def deciding(changed: Mapping[str, Any], names: Iterable[str] = (*DECIDING, *COMPILING)) -> dict[str, Any]:
    """Return the options of these names among those that differ from their defaults."""
    return {name: changed[name] for name in names if name in changed}


def conditions(settings: Settings, gpu: Gpu, *, compiled: bool) -> dict[str, Any]:
    """Return the fields of a Measurement that a run must agree with for its times to apply. `compiled`: whether the
    options of torch.compile are among them."""
    changed = settings.changed()
    return {
        "device": gpu.name,
        "driver": gpu.driver,
        "torch": torch_version(),
        "family": settings.script.family,
        "method": settings.script.method,
        "model_size": model_size(settings[ModelOptions]),
        "settings": deciding(changed) if compiled else deciding(changed, DECIDING),
    }


def model_size(model: ModelOptions) -> int:
    """Return how many values the base model's file has; 0 for a folder, a .ckpt and a model of Hugging Face."""
    name = model.pretrained_model_name_or_path
    with contextlib.suppress(OSError, ValueError):
        shapes = read_header(Path(name or "")).shapes.values() if str(name).endswith(".safetensors") else ()
        return sum(map(math.prod, shapes))
    return 0


@dataclass(frozen=True, kw_only=True)
class Speeds:
    """Known speeds of a run on this machine."""

    settings: Settings
    gpu: Gpu
    known: Sequence[Measurement]
    """All measurements of this machine, newest first."""
    anywhere: bool = False
    """Take the most similar measured step, for any GPU and image size: for comparisons, not for times."""

    def uncompiled(self) -> Speeds:
        """Return the speeds of the same run without torch.compile."""
        return replace(self, settings=self.settings.replaced({"compile": False}))

    def step(self, shapes: Mapping[BatchShape, float]) -> Estimate | None:
        """Return the mean seconds of a step; None if unknown. `shapes`: batches per epoch of each shape."""
        if measurement := self._remembered:
            return self._from_memory(measurement, shapes)
        return self._from_table(shapes)

    def compiling(self, shapes: Collection[BatchShape]) -> Estimate | None:
        """Return the seconds that the first step takes beyond a later one; None if unknown, or nothing is compiled."""
        options = self.settings[CompileOptions]
        if not options.compile:
            return None
        if measurement := self._remembered:
            beyond = measurement.first_seconds - min(measurement.seconds.values())
            return Estimate(seconds=max(beyond, 0.0), source="remembered", basis="the last such run on this machine")
        graphs = expected_graphs(self._card, shapes, options.compile_dynamic)
        if not graphs or not self._card.plan.graphs:
            return None
        seconds = graphs * self._card.plan.graphs.seconds
        return Estimate(seconds=seconds, source="estimated", basis=f"one {MEASURED_ON} with 16 CPU cores, empty cache")

    def total(self, shapes: Mapping[BatchShape, float], steps: int) -> Estimate | None:
        """Return the seconds of all steps, and of compiling if the run compiles; None if one of them is unknown."""
        step = self.step(shapes)
        compiling = self.compiling(shapes)
        if not step or (self.settings[CompileOptions].compile and not compiling):
            return None
        return replace(step, seconds=steps * step.seconds + (compiling.seconds if compiling else 0.0))

    def gpu_bytes(self, shapes: Iterable[BatchShape]) -> int:
        """Return the peak of all tensors on the GPU in such a run on this machine; 0 if unknown."""
        measurement = self._remembered
        return measurement.gpu_bytes if measurement and _timed_all(measurement, shapes) else 0

    @property
    def _card(self) -> FamilyCard:
        return card_of(self.settings.script.family)

    @cached_property
    def _conditions(self) -> dict[str, Any]:
        return conditions(self.settings, self.gpu, compiled=self.settings[CompileOptions].compile)

    @cached_property
    def _remembered(self) -> Measurement | None:
        run = self._conditions.items()
        return next((each for each in self.known if each.seconds and run <= vars(each).items()), None)

    def _from_memory(self, measurement: Measurement, shapes: Mapping[BatchShape, float]) -> Estimate:
        total = 0.0
        for shape, batches in shapes.items():
            total += _seconds(measurement, shape) * batches
        mean = total / max(sum(shapes.values()), 1)
        if _timed_all(measurement, shapes):
            return Estimate(seconds=mean, source="remembered", basis="the last such run on this machine")
        return Estimate(seconds=mean, source="estimated", basis="a run on this machine with other image sizes")

    def _from_table(self, shapes: Mapping[BatchShape, float]) -> Estimate | None:
        options = dict(self._conditions["settings"])
        if keeps_from_recording(self.settings.filled):
            options[RECORDING] = False
        speed = self._most_similar(options) if self.anywhere else self._same(options, shapes)
        if not speed:
            return None
        seconds = speed.seconds * self.settings[TrainingOptions].gradient_accumulation_steps
        if self.settings[NoiseOptions].highnoise_resolution:
            seconds *= _mean_work(shapes)
        return Estimate(seconds=seconds, source="estimated", basis=f"one {MEASURED_ON} (docs/performance.md)")

    def _same(self, options: Mapping[str, Any], shapes: Iterable[BatchShape]) -> Speed | None:
        """Return the step measured with these options, if it applies to this GPU and these image sizes."""
        largest = max(map(_pixels, shapes), default=0)
        smaller = self.settings[NoiseOptions].highnoise_resolution
        sizes = [shape for shape in shapes if not smaller or _pixels(shape) > largest * (1 - NEAR)]
        if not any(name in self.gpu.name for name in GPUS) or not all(_near(shape) for shape in sizes):
            return None
        return _measured(self.settings.script, {name: options[name] for name in options if name not in NEARLY_EQUAL})

    def _most_similar(self, options: Mapping[str, Any]) -> Speed | None:
        """Return the step measured with these compile options, for the most similar method and batch size that were
        measured uncompiled, so that all estimates compare."""

        def chosen(options: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
            return {name: options[name] for name in names if name in options}

        def distance(speed: Speed) -> tuple[bool, float]:
            other_method = speed.method != self.settings.script.method
            return other_method, abs(math.log2(_batch(speed.options) / _batch(options)))

        agreed = chosen(options, AGREEING)
        alike = [speed for speed in self._card.plan.speeds if chosen(speed.options, AGREEING) == agreed]
        plain = min((speed for speed in alike if not chosen(speed.options, COMPILING)), key=distance, default=None)
        if plain is None:
            return None
        for speed in alike:
            same_run = (speed.method, _batch(speed.options)) == (plain.method, _batch(plain.options))
            if same_run and chosen(speed.options, COMPILING) == chosen(options, COMPILING):
                return speed
        return None


def pays_elsewhere(script: Script, options: CompileOptions) -> str:
    """Return when compiling paid at batch size 1 where it was measured; empty if it was not measured in this mode."""
    graphs = card_of(script.family).plan.graphs
    mode = {} if options.compile_mode == "default" else {"compile_mode": options.compile_mode}
    plain = _measured(script, {})
    compiled = _measured(script, {"compile": True, **mode})
    if not (options.compile and graphs and plain and compiled):
        return ""
    gained = plain.seconds - compiled.seconds
    step = round(graphs.seconds * (graphs.per_shape + graphs.per_token_count) / gained, -1)
    return (
        f"at 1024x1024 on one NVIDIA H200, compiling paid after about {step:.0f} steps: {plain.seconds * 1000:.0f} ms "
        f"a step became {compiled.seconds * 1000:.0f}"
    )


def _measured(script: Script, options: Mapping[str, Any]) -> Speed | None:
    """Return the step measured with these options and no others."""
    speeds = card_of(script.family).plan.speeds
    return next((speed for speed in speeds if speed.method == script.method and speed.options == options), None)


def _batch(options: Mapping[str, Any]) -> int:
    return int(options.get("train_batch_size", 1))


def _shape(text: str) -> BatchShape:
    extent, _, images = text.rpartition("x")
    return BatchShape(extent=Extent.parse(extent), images=int(images))


def _timed_all(measurement: Measurement, shapes: Iterable[BatchShape]) -> bool:
    return all(str(shape) in measurement.seconds for shape in shapes)


def _seconds(measurement: Measurement, shape: BatchShape) -> float:
    """Return the seconds of a step; if its shape was not timed, the nearest size's, in proportion."""
    if str(shape) in measurement.seconds:
        return measurement.seconds[str(shape)]
    nearest = min(map(_shape, measurement.seconds), key=lambda timed: abs(_work(timed) - _work(shape)))
    return measurement.seconds[str(nearest)] * _work(shape) / _work(nearest)


def _mean_work(shapes: Mapping[BatchShape, float]) -> float:
    """Return the mean work of a step, relative to a step of the largest size."""
    largest = max(map(_pixels, shapes))
    return sum(_pixels(shape) / largest * count for shape, count in shapes.items()) / sum(shapes.values())


def _pixels(shape: BatchShape) -> int:
    return shape.extent.pixels


def _work(shape: BatchShape) -> int:
    return shape.extent.pixels * shape.images


def _near(shape: BatchShape) -> bool:
    return abs(shape.extent.pixels / MEASURED_PIXELS - 1) < NEAR
