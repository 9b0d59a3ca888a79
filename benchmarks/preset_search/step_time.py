"""The time of a step that was not measured, put together from steps that were: to rank combinations, not to promise.

Constants are fitted to rows of benchmarks/results on one H100 or H200 (PyTorch 2.11); the sources are named.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from sd_scripts.families.cards.family_card import DENOISER, Speed
from sd_scripts.families.cards.memory_facts import MemoryFacts
from sd_scripts.options.compile import CompileMoreOptions, CompileOptions
from sd_scripts.options.full import FullOptions
from sd_scripts.options.memory import MemoryOptions
from sd_scripts.options.optimization.optimizer import OptimizerOptions
from sd_scripts.options.optimization.optimizer_table import optimizer_name
from sd_scripts.options.training import TrainingOptions
from sd_scripts.settings.quantization import BYTES, quantization_of
from sd_scripts.settings.recording import keeps_from_recording
from sd_scripts.settings.settings import Settings

BUS = 55e9
"""Bytes that swapped blocks and offloaded inputs move in a second: 10.4 GiB twice in 406 ms (2026-11-21_step_alone)."""
OVERLAP = 0.12
"""Share of the shorter of computing and copying that is not hidden by the other: FLUX.1 with 18 and 34 blocks, in bf16
and fp8, and Qwen-Image with 30, are within 3 %."""
WIDENING: Mapping[str, float] = {"fp8": 1.6e-12, "int8_weight_only": 1.6e-12, "int8": 1.2e-12, "nf4": 0.9e-12}
"""Seconds for each value of a quantized weight and each of its products (2026-11-26_flux,
2026-11-24_quantized_weights); int8's are mostly those of its activations."""
APART = 0.05
"""Share of a compiled step that a LoRA adds where it is not computed in the base product."""
IN_FP8 = 0.8
"""What fp8_compute leaves of a compiled step: 0.71 to 0.87 (2026-11-28_image_families)."""
UPDATE: Mapping[str, float] = {"AdamW": 4e-12, "AdamW8bit": 7e-12, "Adafactor": 5e-12}
"""Seconds for each trained value of a whole model (2026-11-25_full_training, 2026-11-28_adamw_8bit)."""
OTHER_UPDATES = 10e-12
LAUNCHING_COMPILED = 0.6
"""CPU time of a compiled step relative to an eager one, not recorded (2026-11-24_recorded_steps)."""
RECOMPUTED = {True: 1.45, False: 1.42}
"""With gradient_checkpointing, relative to without, compiled and eager, where the family's was not measured."""
HALF_KEPT = 0.4
"""What activation_memory_budget = 0.5 adds, relative to gradient_checkpointing: SDXL 72.0 ms of 61.5 to 84.1, FLUX.1
387 of 360 to 512."""
FORWARD_SHARE = 0.3
"""Of a full step: what gradient_checkpointing repeats."""
BACKWARD_OF_WEIGHTS = 1.4
"""A full step without its update, relative to a LoRA's, where the family's was not measured."""


@dataclass(frozen=True, kw_only=True)
class MeasuredSteps:
    """Measured steps of a family, batch 1 at 1024x1024, in seconds."""

    eager: float
    compiled: float
    checkpointed: float = 0.0
    """Eager, with gradient_checkpointing; 0: not measured."""
    compiled_checkpointed: float = 0.0
    full: float = 0.0
    compiled_full: float = 0.0
    per_image: float = 1.0
    """Time of each further image of a batch, relative to the first."""
    launching: float
    """CPU time of an eager step that is not recorded, on a usual CPU."""

    @classmethod
    def of(cls, speeds: tuple[Speed, ...], launching: float, per_image: float = 1.0) -> "MeasuredSteps":
        """Return the steps of a family's card."""

        def seconds(method: str, **options: object) -> float:
            known = (s.seconds for s in speeds if s.method == method and dict(s.options) == options)
            return next(known, 0.0)

        return cls(
            eager=seconds("lora"),
            compiled=seconds("lora", compile=True),
            checkpointed=seconds("lora", gradient_checkpointing=True),
            compiled_checkpointed=seconds("lora", gradient_checkpointing=True, compile=True),
            full=seconds("full", full_bf16=True),
            compiled_full=seconds("full", full_bf16=True, compile=True),
            per_image=per_image,
            launching=launching,
        )

    def repeated(self, *, compiled: bool) -> float:
        """Return how much longer a LoRA's step is with gradient_checkpointing."""
        plain = self.compiled if compiled else self.eager
        measured = self.compiled_checkpointed if compiled else self.checkpointed
        return measured / plain if measured else RECOMPUTED[compiled]


def step_seconds(settings: Settings, facts: MemoryFacts, measured: MeasuredSteps) -> float:
    """Return about how long a step takes at 1024x1024, with all batches that it accumulates."""
    training = settings[TrainingOptions]
    compiled = settings[CompileOptions].compile
    memory = settings.get(MemoryOptions)
    swap = (memory.blocks_to_swap or 0) if memory else 0
    full = settings.get(FullOptions) is not None
    computing = _full(settings, facts, measured) if full else _lora(settings, facts, measured)
    weight_format = quantization_of(settings).denoiser
    unfolded = compiled and not full and bool(facts.projections) and (weight_format or swap)
    computing *= 1 + APART * bool(unfolded)
    moved = 0.0
    if swap:
        moved += 2 * facts.swapped(swap) * BYTES.get(weight_format, 2.0)
    if training.cpu_offload_checkpointing:
        moved += 2 * facts.activations.block_inputs * facts.units(1024, 1024, 1, settings)
    if moved:
        copying = moved / BUS
        computing = max(computing, copying) + OVERLAP * min(computing, copying)
    if keeps_from_recording(settings.filled):
        launching = measured.launching * (1.5 if training.gradient_checkpointing else 1.0)
        computing = max(computing, launching * (LAUNCHING_COMPILED if compiled else 1.0))
    return computing * training.gradient_accumulation_steps


def _kept(settings: Settings, whole: float) -> float:
    """Return the share of `whole`, what gradient_checkpointing adds, that the chosen way to keep activations adds."""
    if settings[TrainingOptions].gradient_checkpointing:
        return whole
    budget = settings[CompileMoreOptions].activation_memory_budget if settings[CompileOptions].compile else 1.0
    if budget >= 0.5:
        return whole * HALF_KEPT * (1 - budget) / 0.5
    return whole * (HALF_KEPT + (1 - HALF_KEPT) * (0.5 - budget) / 0.5)


def _images(settings: Settings, measured: MeasuredSteps) -> float:
    return 1 + measured.per_image * (int(settings.value("train_batch_size")) - 1)


def _lora(settings: Settings, facts: MemoryFacts, measured: MeasuredSteps) -> float:
    compiled = settings[CompileOptions].compile
    repeats = _kept(settings, measured.repeated(compiled=compiled) - 1)
    seconds = (measured.compiled if compiled else measured.eager) * (1 + repeats) * _images(settings, measured)
    quantization = quantization_of(settings)
    if quantization.fp8_compute:
        return seconds * IN_FP8
    values, _ = facts.quantized.get(DENOISER, (0, 0))
    products = 2 + min(1.0, repeats * 3)
    return seconds + products * values * WIDENING.get(quantization.denoiser, 0.0)


def _full(settings: Settings, facts: MemoryFacts, measured: MeasuredSteps) -> float:
    compiled = settings[CompileOptions].compile
    trained = facts.values[DENOISER]
    lora = measured.compiled if compiled else measured.eager
    known = measured.compiled_full if compiled else measured.full
    seconds = known - trained * UPDATE["AdamW"] if known else lora * BACKWARD_OF_WEIGHTS
    seconds *= (1 + _kept(settings, FORWARD_SHARE)) * _images(settings, measured)
    name = optimizer_name(settings[OptimizerOptions].optimizer_type)
    return seconds + trained * UPDATE.get(name, OTHER_UPDATES)
