"""How long steps and compiling take: remembered from runs on this machine, else estimated from measured tables."""

import contextlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sd_scripts.data.plan.buckets import Extent
from sd_scripts.data.plan.epochs import BatchShape
from sd_scripts.families.cards.family_card import FamilyCard, Speed
from sd_scripts.formats.models.safetensors_header import read_header
from sd_scripts.machine.compile_fingerprint import torch_version
from sd_scripts.machine.measurements import Measurement
from sd_scripts.machine.nvidia import Gpu
from sd_scripts.options.compile import CompileMoreOptions, CompileOptions
from sd_scripts.options.model import ModelOptions
from sd_scripts.settings.family_options import each_option
from sd_scripts.settings.recording import keeps_from_recording
from sd_scripts.settings.settings import Settings

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


def deciding(settings: Settings, names: Iterable[str] = (*DECIDING, *COMPILING)) -> dict[str, Any]:
    """Return the options of these names that differ from their defaults."""
    changed = settings.changed()
    return {name: changed[name] for name in names if name in changed}


def model_size(model: ModelOptions) -> int:
    """Return how many values the base model's file has; 0 for a folder, a .ckpt and a model of Hugging Face."""
    name = model.pretrained_model_name_or_path
    with contextlib.suppress(OSError, ValueError):
        shapes = read_header(Path(name or "")).shapes.values() if str(name).endswith(".safetensors") else ()
        return sum(_product(shape) for shape in shapes)
    return 0


def _product(shape: Iterable[int]) -> int:
    product = 1
    for side in shape:
        product *= side
    return product


@dataclass(frozen=True, kw_only=True)
class Speeds:
    """What is known of the speed of a run on this machine."""

    card: FamilyCard
    method: str
    settings: Settings
    gpu: Gpu
    known: Sequence[Measurement]
    """All measurements of this machine, newest first."""
    accumulation: int = 1
    anywhere: bool = False
    """Take the most similar measured step, for any GPU and image size: for comparisons, not for times."""

    def step(self, shapes: Mapping[BatchShape, int], *, compiled: bool) -> Estimate | None:
        """Return the mean seconds of a step, as the run is set but with or without torch.compile; None if unknown."""
        if found := self._remembered(compiled=compiled):
            return self._from_memory(found, shapes)
        return self._from_table(shapes, compiled=compiled)

    def compiling(self, graphs: int | None, *, compiled: bool = True) -> Estimate | None:
        """Return the seconds that the first step takes beyond a later one."""
        if found := self._remembered(compiled=compiled):
            beyond = found.first_seconds - min(found.seconds.values(), default=0.0)
            return Estimate(seconds=max(beyond, 0.0), source="remembered", basis="the last such run on this machine")
        if not graphs or not self.card.plan.graphs:
            return None
        seconds = graphs * self.card.plan.graphs.seconds
        return Estimate(seconds=seconds, source="estimated", basis=f"one {MEASURED_ON} with 16 CPU cores, empty cache")

    def gpu_bytes(self, shapes: Iterable[BatchShape], *, compiled: bool) -> int:
        """Return the peak of all tensors on the GPU in such a run on this machine; 0 if unknown."""
        found = self._remembered(compiled=compiled)
        return found.gpu_bytes if found and all(str(shape) in found.seconds for shape in shapes) else 0

    def _remembered(self, *, compiled: bool) -> Measurement | None:
        wanted = self._wanted(compiled=compiled)
        size = model_size(self.settings[ModelOptions])
        for found in self.known:
            own = (self.gpu.name, self.gpu.driver, self.card.name, self.method)
            same = (found.device, found.driver, found.family, found.method) == own
            if (
                same
                and found.torch == torch_version()
                and found.model_size == size
                and dict(found.settings) == wanted
                and found.seconds
            ):
                return found
        return None

    def _wanted(self, *, compiled: bool) -> dict[str, Any]:
        plain = deciding(self.settings, DECIDING)
        return {**plain, **deciding(self.settings, COMPILING), "compile": True} if compiled else plain

    def _from_memory(self, found: Measurement, shapes: Mapping[BatchShape, int]) -> Estimate:
        total, exact = 0.0, True
        for shape, batches in shapes.items():
            seconds = found.seconds.get(str(shape))
            if seconds is None:  # of the nearest size, in proportion
                nearest = min(map(_shape, found.seconds), key=lambda each: abs(_work(each) - _work(shape)))
                seconds = found.seconds[str(nearest)] * _work(shape) / _work(nearest)
                exact = False
            total += seconds * batches
        mean = total / max(sum(shapes.values()), 1)
        if exact:
            return Estimate(seconds=mean, source="remembered", basis="the last such run on this machine")
        return Estimate(seconds=mean, source="estimated", basis="a run on this machine with other image sizes")

    def _from_table(self, shapes: Mapping[BatchShape, int], *, compiled: bool) -> Estimate | None:
        given = self._wanted(compiled=compiled)
        if keeps_from_recording(self.settings.filled):
            given[RECORDING] = False
        if self.anywhere:
            return self._similar(given)
        if not any(name in self.gpu.name for name in GPUS) or not all(_near(shape) for shape in shapes):
            return None
        wanted = {name: value for name, value in given.items() if name not in NEARLY_EQUAL}
        for speed in self.card.plan.speeds:
            if speed.method == self.method and dict(speed.options) == wanted:
                seconds = speed.seconds * self.accumulation
                return Estimate(seconds=seconds, source="estimated", basis=f"one {MEASURED_ON} (docs/performance.md)")
        return None

    def _similar(self, given: Mapping[str, Any]) -> Estimate | None:
        """Return the step measured with these compile options, for the most similar method and batch size that were
        measured uncompiled, so that all estimates compare."""

        def chosen(options: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
            return {name: options[name] for name in names if name in options}

        def distance(speed: Speed) -> tuple[bool, float]:
            return speed.method != self.method, abs(math.log2(_batch(speed.options) / _batch(given)))

        agreed = chosen(given, AGREEING)
        alike = [speed for speed in self.card.plan.speeds if chosen(speed.options, AGREEING) == agreed]
        plain = min((s for s in alike if not chosen(s.options, COMPILING)), key=distance, default=None)
        if plain is None:
            return None
        for speed in alike:
            same = (speed.method, _batch(speed.options)) == (plain.method, _batch(plain.options))
            if same and chosen(speed.options, COMPILING) == chosen(given, COMPILING):
                seconds = speed.seconds * self.accumulation
                return Estimate(seconds=seconds, source="estimated", basis=f"one {MEASURED_ON}")
        return None


def measured_pair(card: FamilyCard, method: str, options: CompileOptions) -> tuple[Speed, Speed] | None:
    """Return the measured steps without and with compiling at batch size 1 in this mode; None if not measured."""
    mode = {} if options.compile_mode == "default" else {"compile_mode": options.compile_mode}
    by_options = {tuple(sorted(speed.options.items())): speed for speed in card.plan.speeds if speed.method == method}
    plain, compiled = by_options.get(()), by_options.get(tuple(sorted({"compile": True, **mode}.items())))
    return (plain, compiled) if plain and compiled else None


def _batch(options: Mapping[str, Any]) -> int:
    return int(options.get("train_batch_size", 1))


def _shape(text: str) -> BatchShape:
    extent, _, images = text.rpartition("x")
    return BatchShape(extent=Extent.parse(extent), images=int(images))


def _work(shape: BatchShape) -> int:
    return shape.extent.pixels * shape.images


def _near(shape: BatchShape) -> bool:
    return abs(shape.extent.pixels / MEASURED_PIXELS - 1) < NEAR
