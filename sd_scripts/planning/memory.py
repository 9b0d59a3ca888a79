"""How much memory a run takes on the GPU and in main memory, phase by phase, added up from the sizes of the model."""

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sd_scripts.data.plan.epochs import BatchShape
from sd_scripts.families.cards.family_card import DENOISER, VAE, FamilyCard
from sd_scripts.families.cards.memory_facts import PIXELS_AT_ONCE, Growing, MemoryFacts
from sd_scripts.options.compile import CompileMoreOptions, CompileOptions
from sd_scripts.options.dataset import CAPTIONS_AT_ONCE, CacheOptions
from sd_scripts.options.full import FullOptions, FusedOptions
from sd_scripts.options.generating.sampling import SampleOptions
from sd_scripts.options.memory import MemoryOptions
from sd_scripts.options.model import ModelOptions
from sd_scripts.options.networks.network import NetworkOptions
from sd_scripts.options.optimization.optimizer import OptimizerOptions
from sd_scripts.options.optimization.optimizer_table import known_optimizer, optimizer_name
from sd_scripts.options.run import CudaOptions
from sd_scripts.options.saving import EmaOptions
from sd_scripts.options.training import TrainingOptions
from sd_scripts.planning.adapter_memory import AdapterMemory
from sd_scripts.settings.quantization import Quantization, bytes_of, quantization_of
from sd_scripts.settings.settings import Settings

GIB = 2**30
FULL, HALF = 4, 2
"""Bytes of a value."""
TEMPORARY = 4
"""Float32 copies of a weight that an update computes with, beside the weight and its gradient."""
UNKNOWN_OPTIMIZER = 8.0
"""Bytes of state for each trained value, as Adam has them."""
TRAINING, LATENTS, TEXT = "training", "caching latents", "caching text"
IN_FULL = 1.6
"""How much more the VAE takes in float32 than in half precision, whose convolutions need other workspaces."""
CONTEXT, SPARE = int(0.8 * GIB), 1.02
"""What CUDA and its libraries take, and how much more PyTorch reserves than tensors need; measured on one H200."""
PROCESS, PINNED = int(2.1 * GIB), 1.4
"""Main memory of a training process without a model, and of swapped blocks for each of their bytes; measured too."""
TOLERANCE = 0.05
"""By how much the size of a model may differ from that of the full-size model."""


@dataclass(frozen=True, kw_only=True)
class Part:
    name: str
    bytes: int


@dataclass(frozen=True, kw_only=True)
class MemoryPlan:
    """What a run takes at its peak."""

    phase: str
    """The phase of the peak."""
    parts: tuple[Part, ...]
    """Of that phase, in all `peak` bytes."""
    phases: Mapping[str, int]
    """The peak of all tensors on the GPU in each phase."""
    peak: int
    in_use: int
    """What other programs see: with CUDA itself, and what PyTorch reserves beyond the tensors."""
    card: int
    """Bytes that the run may use of the GPU; 0 if unknown."""
    main_memory: int

    @property
    def fits(self) -> bool:
        return not self.card or self.in_use <= self.card


def plan_memory(
    settings: Settings,
    card: FamilyCard,
    shapes: Iterable[BatchShape],
    *,
    captions: int = CAPTIONS_AT_ONCE,
    model_values: int = 0,
    gpu_bytes: int = 0,
) -> MemoryPlan | None:
    """Return the memory of a run; None if it is not known for a model of this size.

    `captions`: how many there are. `model_values`: values in the base model's file, 0 if unknown. `gpu_bytes`: memory
    of the GPU, 0 if unknown; gpu_memory_limit may leave less of it to the run.
    """
    facts = card.plan.memory
    if facts is None or not _is_full_size(facts, model_values):
        return None
    run = _Run(settings=settings, card=card, facts=facts, shapes=tuple(shapes), captions=captions)
    phases = {name: parts for name, parts in run.phases().items() if parts}
    peaks = {name: sum(part.bytes for part in parts) for name, parts in phases.items()}
    phase = max(peaks, key=lambda name: peaks[name])
    peak = peaks[phase]
    return MemoryPlan(
        phase=phase,
        parts=tuple(part for part in phases[phase] if part.bytes),
        phases=peaks,
        peak=peak,
        in_use=int(peak * SPARE) + CONTEXT,
        card=usable_bytes(settings[CudaOptions], gpu_bytes),
        main_memory=run.main_memory(),
    )


def usable_bytes(cuda: CudaOptions, gpu_bytes: int = 0) -> int:
    """Return the GPU memory that a run may use; 0 if neither the GPU's nor a limit is known."""
    limit = int((cuda.gpu_memory_limit or 0) * GIB)
    return min(filter(None, (gpu_bytes, limit)), default=0)


def _is_full_size(facts: MemoryFacts, values: int) -> bool:
    """Return whether a file with so many values is the full-size denoiser, alone or with the other components."""
    sizes = (facts.values[DENOISER], sum(facts.values.values()))
    return not values or any(abs(values / size - 1) <= TOLERANCE for size in sizes)


@dataclass(frozen=True, kw_only=True)
class _Run:
    """Adds up the bytes of a run, as `training/` and the family's `place` hold them."""

    settings: Settings
    card: FamilyCard
    facts: MemoryFacts
    shapes: tuple[BatchShape, ...]
    captions: int

    @property
    def training(self) -> TrainingOptions:
        return self.settings[TrainingOptions]

    @property
    def network(self) -> NetworkOptions | None:
        return self.settings.get(NetworkOptions)

    @property
    def frozen(self) -> bool:
        """Whether the base model stays as it is, and an adapter or embeddings are trained."""
        return FullOptions not in self.settings.filled

    @property
    def compute(self) -> int:
        """Bytes of a value that the model computes with."""
        return FULL if self.training.mixed_precision == "no" else HALF

    @property
    def held(self) -> int:
        """Bytes of a value in which full training holds its weights."""
        return HALF if self.training.full_bf16 or self.training.full_fp16 else FULL

    def phases(self) -> dict[str, tuple[Part, ...]]:
        """Return the parts of each phase."""
        cache = self.settings[CacheOptions]
        phases = {
            LATENTS: self._caching_latents() if cache.caches_latents else (),
            TEXT: self._caching_text() if cache.caches_text else (),
            TRAINING: self._training(),
        }
        if self._samples():
            phases["sampling"] = (*self._static(), Part(name="VAE", bytes=self._vae() + self._encoding(1)))
        return phases

    def main_memory(self) -> int:
        """Return the peak of the process: text encoders as they are read, or blocks that are swapped."""
        encoders = float(sum(self._values_of_encoders().values()) * HALF)  # as in their files
        chosen = self._quantization.encoders
        encoders += sum(self._quantized_bytes(name, chosen) for name in self._values_of_encoders())
        off = self.facts.swapped(self._swap) * self._bytes_of_blocks() * PINNED
        cached = self.settings[CacheOptions]
        read = 0 if cached.cache_text_encoder_outputs_to_disk else encoders
        return PROCESS + int(max(read, off, self.facts.values[VAE] * FULL))

    # what is in memory in all steps

    def _static(self) -> tuple[Part, ...]:
        trained, state = self._trained(), self._bytes_of_state()
        own = 0.0
        if self.frozen:
            own = trained * FULL  # masters
            own += self._adapter.held * self.compute if self.network else 0.0
        elif self.held != self.compute:
            own = trained * self.held
        ema = self.settings[EmaOptions]
        return (
            Part(name="weights", bytes=int(self._weights())),
            Part(name="adapter" if self.frozen else "master weights", bytes=int(own)),
            Part(name="optimizer", bytes=int(trained * state)),
            Part(name="EMA", bytes=trained * FULL if ema.use_ema and ema.ema_device == "gpu" else 0),
            Part(name="text encoders and VAE", bytes=int(self._used_by_steps())),
        )

    def _weights(self) -> float:
        """Return the bytes of the denoiser on the device."""
        off = self.facts.swapped(self._swap)
        return self._bytes_of_component(DENOISER, self._quantization.denoiser) - off * self._bytes_of_blocks()

    def _bytes_of_blocks(self) -> float:
        """Return the bytes of a value of the blocks."""
        chosen = self._quantization.denoiser
        values = self.facts.quantized.get(DENOISER, (0, 0))[0]
        return self._quantized_bytes(DENOISER, chosen) / values if chosen and values else float(self.compute)

    def _bytes_of_component(self, name: str, weight_format: str) -> float:
        """Return the bytes of a component; `weight_format` is empty if its weights are not quantized."""
        values = self.facts.values[name]
        quantized = self.facts.quantized.get(name, (0, 0))[0] if weight_format else 0
        return (values - quantized) * self.compute + self._quantized_bytes(name, weight_format)

    def _quantized_bytes(self, name: str, weight_format: str) -> float:
        return bytes_of(weight_format, *self.facts.quantized.get(name, (0, 0))) if weight_format else 0.0

    @functools.cached_property
    def _quantization(self) -> Quantization:
        return quantization_of(self.settings)

    @property
    def _swap(self) -> int:
        memory = self.settings.get(MemoryOptions)
        return (memory.blocks_to_swap or 0) if memory else 0

    def _trained(self) -> int:
        """Return how many values learn."""
        if not self.frozen:
            return sum(self.facts.values[name] for name in (DENOISER, *self._trained_encoders()))
        if not self.network:  # a few embeddings
            return 0
        return self._adapter.trained

    @property
    def _adapter(self) -> AdapterMemory:
        assert self.network is not None
        return AdapterMemory(
            network=self.network,
            facts=self.facts,
            encoders=self._trained_encoders(),
            plain=not self._quantization.denoiser,
            compiled=self.settings[CompileOptions].compile,
            checkpointed=self.training.gradient_checkpointing,
            swaps=self._swap > 0,
        )

    def _trained_encoders(self) -> list[str]:
        names = [name for name in self.facts.values if name not in (DENOISER, VAE)]
        base = self.settings[OptimizerOptions].learning_rate
        if self.network:
            trains = not self.network.network_train_unet_only
            rates = [self.network.rate_of_encoder(number, base) for number in range(len(names))]
            return [
                name for name, rate in zip(names, rates, strict=True) if trains and rate and name in self.facts.lora
            ]
        if self.frozen:
            return []
        full = self.settings[FullOptions]
        trains = full.train_text_encoder and self.card.has("trains_text")
        return [name for number, name in enumerate(names) if trains and full.rate_of_encoder(number, base)]

    def _bytes_of_state(self) -> float:
        """Return the optimizer's bytes for each trained value."""
        known = known_optimizer(optimizer_name(self.settings[OptimizerOptions].optimizer_type))
        if self._rounds_itself:
            return 2 * HALF
        if known.factored and not self.frozen:
            return self.facts.factored_state
        return UNKNOWN_OPTIMIZER if known.state_bytes is None else known.state_bytes

    @property
    def _rounds_itself(self) -> bool:
        """Whether our AdamW trains weights in half precision, with moments in half precision."""
        return not self.frozen and self.held == HALF and self._is_adamw

    @property
    def _is_adamw(self) -> bool:
        return optimizer_name(self.settings[OptimizerOptions].optimizer_type) == "AdamW"

    def _used_by_steps(self) -> float:
        """Return the bytes of the VAE and of text encoders, as far as steps call them."""
        cache = self.settings[CacheOptions]
        vae = 0.0 if cache.caches_latents else self._vae()
        called = self._trained_encoders() if cache.caches_text else self._values_of_encoders()
        return vae + sum(self._bytes_of_encoder(name) for name in called)

    # phases

    def _training(self) -> tuple[Part, ...]:
        """Return the parts where they are largest: while images are encoded, at the start of backward, or at its end.

        The gradients of an earlier batch are there from the start."""
        static, activations = self._static(), self._activations()
        first, encoding = self._gradients_at_start(), 0
        if not self.settings[CacheOptions].caches_latents:
            encoding = self._encoding(max((shape.images for shape in self.shapes), default=1))
        moments = (
            (first, float(encoding)),
            (first, activations),
            (self._gradients_at_end(), self._left_at_end(activations)),
        )
        gradients, kept = max(moments, key=sum)
        return (
            *static,
            Part(name="gradients", bytes=int(gradients)),
            Part(name="activations", bytes=int(kept)),
        )

    def _gradients_at_start(self) -> float:
        accumulates = self.training.gradient_accumulation_steps > 1
        if not accumulates:
            return 0.0
        return self._trained() * float(FULL if self.frozen or self.held == FULL else HALF)

    def _gradients_at_end(self) -> float:
        """Return the bytes of gradients, and of float32 copies of half-precision weights, before the update."""
        if self.frozen:
            return self._trained() * float(FULL)
        known = known_optimizer(self.settings[OptimizerOptions].optimizer_type)
        fused, surrogate, temporary = self.settings[FusedOptions].chosen, 0, 0
        if self.held == HALF and not (self._is_adamw or known.factored):
            surrogate = 2 * FULL  # weight and gradient, of one block at a time
            temporary = TEMPORARY * FULL * self.facts.largest_weight
        if known.one_rate:
            return self._trained() * float(self.compute + surrogate) + temporary
        largest = self.facts.largest_block
        if fused:
            return largest * float(self.compute + surrogate) + temporary
        reads_copies = self._is_adamw and self.training.mixed_precision != "fp16"
        each = self.compute if reads_copies or self.held == self.compute else FULL
        return self._trained() * float(each) + largest * float(surrogate) + temporary

    def _left_at_end(self, activations: float) -> float:
        """Return the activations that are left when the gradients are largest."""
        fixed = self._growing().fixed
        in_blocks = self.settings[FusedOptions].chosen or self.training.gradient_checkpointing
        if self.frozen or not in_blocks:
            return fixed
        return (activations - fixed) * self.facts.activations.left + fixed

    def _activations(self) -> float:
        units = max((self._units(shape) for shape in self.shapes), default=0.0)
        of_adapter = self._adapter.kept if self.network else 0.0
        return self._growing()(units * self.compute / HALF) + units * of_adapter * self.compute

    def _growing(self) -> Growing:
        facts, compiled = self.facts.activations, self.settings[CompileOptions]
        if self.training.gradient_checkpointing:
            return facts.compiled_checkpointed if compiled.compile else facts.checkpointed
        if not compiled.compile:
            wide = self.settings[CudaOptions].float32_norms and self.compute == HALF
            return Growing(facts.eager.per_unit + facts.float32_norms * wide, facts.eager.fixed)
        budget = self.settings[CompileMoreOptions].activation_memory_budget
        return _at(budget, {**facts.budgets, 1.0: facts.compiled})

    def _units(self, shape: BatchShape) -> float:
        parts = shape.extent.parts
        units = sum(self.facts.units(part.width, part.height, part.frames, self.settings) for part in parts)
        text = self.facts.units(0, 0, 1, self.settings)  # which a sample has once, however many control images
        return shape.images * (units - text * (len(parts) - 1))

    def _caching_latents(self) -> tuple[Part, ...]:
        batch = self.settings[CacheOptions].vae_batch_size
        return (
            Part(name="VAE", bytes=int(self._vae())),
            Part(name="encoding", bytes=int(self._encoding(batch))),
        )

    def _caching_text(self) -> tuple[Part, ...]:
        encoders = sum(self._bytes_of_encoder(name) for name in self._values_of_encoders())
        at_once = self.settings[CacheOptions].text_encoder_batch_size or CAPTIONS_AT_ONCE
        work = self.facts.caption * min(at_once, self.captions) * self.compute / HALF
        return (Part(name="text encoders", bytes=int(encoders)), Part(name="encoding", bytes=int(work)))

    def _encoding(self, images: int) -> int:
        """Return the bytes that the VAE takes beside its weights."""
        pixels = max((shape.extent.width * shape.extent.height for shape in self.shapes), default=0)
        at_once = max(pixels, min(images * pixels, PIXELS_AT_ONCE))
        return int(self.facts.encode * at_once * (IN_FULL if self._bytes_of_vae() == FULL else 1.0))

    def _vae(self) -> int:
        return self.facts.values[VAE] * self._bytes_of_vae()

    def _bytes_of_vae(self) -> int:
        wide = self.settings[ModelOptions].no_half_vae and self.card.has("own_vae")
        return FULL if wide else self.compute

    def _values_of_encoders(self) -> dict[str, int]:
        return {name: values for name, values in self.facts.values.items() if name not in (DENOISER, VAE)}

    def _bytes_of_encoder(self, name: str) -> float:
        return self._bytes_of_component(name, self._quantization.encoders)

    def _samples(self) -> bool:
        return bool(self.settings[SampleOptions].sample_prompts)


def _at(budget: float, known: Mapping[float, Growing]) -> Growing:
    """Return the bytes for a budget; between two that were measured in proportion."""
    below = max((each for each in known if each <= budget), default=min(known))
    above = min((each for each in known if each >= budget), default=max(known))
    if above == below:
        return known[below]
    share = (budget - below) / (above - below)
    low, high = known[below], known[above]
    fixed = low.fixed + share * (high.fixed - low.fixed)
    return Growing(low.per_unit + share * (high.per_unit - low.per_unit), fixed)
