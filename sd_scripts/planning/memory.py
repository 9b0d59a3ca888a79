"""How much memory a run takes on the GPU and in main memory, phase by phase, added up from the sizes of the model.

PyTorch could count in place of these sums: `torch.distributed._tools.mem_tracker` sees each tensor of a model built
under `FakeTensorMode`. Refused: importing torch and the tracker alone takes about 4 s of CPU time, a whole plan, which
the page makes again at each change of the form, 0.1 s. And the tracker follows eager steps: it does not see the
compiler's saved activations and the workspaces of kernels. Instead, tests count the sizes of the cards in the
real models on the meta device, and compare the sums with peaks measured on a GPU.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from sd_scripts.data.plan.epochs import BatchShape
from sd_scripts.families.cards.family_card import DENOISER, VAE
from sd_scripts.families.cards.memory_facts import PIXELS_AT_ONCE, Growing, MemoryFacts
from sd_scripts.families.cards.registry import card_of
from sd_scripts.options.compile import CompileMoreOptions, CompileOptions
from sd_scripts.options.dataset import CAPTIONS_AT_ONCE, CacheOptions
from sd_scripts.options.full import FullOptions, FusedOptions
from sd_scripts.options.generating.sampling import SAMPLE_MODEL, SampleOptions
from sd_scripts.options.memory import MemoryOptions
from sd_scripts.options.model import ModelOptions
from sd_scripts.options.networks.network import NetworkOptions
from sd_scripts.options.optimization.optimizer import OptimizerOptions
from sd_scripts.options.optimization.optimizer_table import known_optimizer, optimizer_name
from sd_scripts.options.run import CudaOptions
from sd_scripts.options.saving import EmaOptions
from sd_scripts.options.training import TrainingOptions
from sd_scripts.planning.adapter_memory import AdapterMemory
from sd_scripts.planning.compile_plan import seen_parts
from sd_scripts.settings.quantization import bytes_of, quantization_of
from sd_scripts.settings.settings import Settings

GIB = 2**30
FULL, HALF = 4, 2
"""Bytes of a value."""
TEMPORARY = 4
"""Float32 copies of a weight that an update computes with, in addition to the weight and its gradient."""
UNKNOWN_OPTIMIZER = 8.0
"""Bytes of state for each trained value, as Adam has them."""
TRAINING, LATENTS, TEXT = "training", "caching latents", "caching text"
IN_FULL = 1.6
"""How much more the VAE takes in float32 than in half precision, whose convolutions need other workspaces."""
CONTEXT = int(0.8 * GIB)
"""What CUDA and its libraries take; measured on one H200, as the next two."""
SPARE = 0.02
"""How much more PyTorch reserves than tensors need."""
RECOMPUTED, MOST_RECOMPUTED = 0.3, int(0.6 * GIB)
"""The same relative to the activations of checkpointed steps, whose blocks take and free memory over and over, and the
most of it: presets reserve 0.1 to 1.2 GiB more than their tensors need (benchmarks/results/2026-11-25_presets.md)."""
PROCESS, PINNED = int(2.1 * GIB), 1.4
"""Main memory of a training process without a model, and of swapped blocks for each of their bytes; measured too."""
OFFLOADED = 0.9
"""Share of the inputs of blocks that are in main memory at the start of backward: three blocks' are fetched ahead."""
TOLERANCE = 0.05
"""By how much the size of a model may differ from the full-size model's."""


@dataclass(frozen=True, kw_only=True)
class Part:
    name: str
    bytes: int


@dataclass(frozen=True, kw_only=True)
class MemoryPlan:
    """Peak memory of a run."""

    phase: str
    """The phase of the peak."""
    parts: tuple[Part, ...]
    """Of that phase, in all `peak` bytes."""
    phases: Mapping[str, int]
    """The peak of all tensors on the GPU in each phase."""
    peak: int
    in_use: int
    """The total that other programs see: with CUDA itself, and PyTorch's reserve beyond the tensors."""
    card: int
    """Bytes that the run may use of the GPU; 0 if unknown."""
    main_memory: int

    @property
    def fits(self) -> bool:
        return not self.card or self.in_use <= self.card


def plan_memory(
    settings: Settings,
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
    card = card_of(settings.script.family).plan
    known = filter(None, (card.memory_named(settings), card.memory, *card.memory_of_others))
    facts = next((each for each in known if _is_full_size(each, model_values)), None)
    if facts is None:
        return None
    run = _Run(settings, facts, tuple(shapes), captions)
    by_phase = run.phases()
    phases = {
        name: [Part(name=part, bytes=int(size)) for part, size in parts.items()] for name, parts in by_phase.items()
    }
    peaks = {name: sum(part.bytes for part in parts) for name, parts in phases.items()}
    phase = max(peaks, key=lambda name: peaks[name])
    peak = peaks[phase]
    return MemoryPlan(
        phase=phase,
        parts=tuple(part for part in phases[phase] if part.bytes),
        phases=peaks,
        peak=peak,
        in_use=CONTEXT + int(max(peaks[name] + run.spare(name, parts) for name, parts in by_phase.items())),
        card=usable_bytes(settings[CudaOptions], gpu_bytes),
        main_memory=run.main_memory(),
    )


def usable_bytes(cuda: CudaOptions, gpu_bytes: int = 0) -> int:
    """Return the GPU memory that a run may use; 0 if neither the GPU's nor a limit is known."""
    limit = int((cuda.gpu_memory_limit or 0) * GIB)
    return min(filter(None, (gpu_bytes, limit)), default=0)


def _is_full_size(facts: MemoryFacts, values: int) -> bool:
    """Return whether a file with this many values is the full-size denoiser, alone or with the other components."""
    sizes = (facts.values[DENOISER], sum(facts.values.values()))
    return not values or any(abs(values / size - 1) <= TOLERANCE for size in sizes)


class _Run:
    """Adds up the bytes of a run, as `training/` and the family's `place` allocate them."""

    def __init__(self, settings: Settings, facts: MemoryFacts, shapes: Sequence[BatchShape], captions: int):
        self.settings, self.facts, self.shapes, self.captions = settings, facts, shapes, captions
        self.card = card_of(settings.script.family)
        self.training = settings[TrainingOptions]
        self.cache = settings[CacheOptions]
        self.compiles = settings[CompileOptions].compile
        self.quantization = quantization_of(settings)
        memory, fused = settings.get(MemoryOptions), settings.get(FusedOptions)
        self.swap = (memory.blocks_to_swap or 0) if memory else 0
        self.fused = bool(fused and fused.chosen)
        self.full = settings.get(FullOptions)
        """None: the base model stays unchanged, and an adapter or embeddings are trained."""
        self.network = settings.get(NetworkOptions)
        self.compute = FULL if self.training.mixed_precision == "no" else HALF
        """Bytes of a value that the model computes with."""
        self.held = HALF if self.training.full_bf16 or self.training.full_fp16 else FULL
        """Bytes of a value in which full training stores its weights."""
        optimizer = settings[OptimizerOptions]
        self.optimizer = known_optimizer(optimizer.optimizer_type)
        self.is_adamw = optimizer_name(optimizer.optimizer_type) == "AdamW"
        self.encoders = [name for name in facts.values if name not in (DENOISER, VAE)]
        rate = optimizer.learning_rate
        self.trained_encoders = [name for name in self.encoders if self._trains_encoder(name, rate)]
        self.adapter = self._adapter(self.network) if self.network else None
        self.trained = self.adapter.trained if self.adapter else 0  # of embeddings, which are few
        """How many values are trained."""
        if self.full:
            self.trained = sum(facts.values[name] for name in (DENOISER, *self.trained_encoders))

    def phases(self) -> dict[str, dict[str, float]]:
        """Return the bytes of each part, by phase."""
        phases: dict[str, dict[str, float]] = {}
        if self.cache.caches_latents:
            phases[LATENTS] = {"VAE": self._vae(), "encoding": self._encoding(self.cache.vae_batch_size)}
        if self.cache.caches_text:
            captions = min(self.cache.text_encoder_batch_size or CAPTIONS_AT_ONCE, self.captions)
            phases[TEXT] = {
                "text encoders": sum(map(self._component, self.encoders)),
                "encoding": self.facts.caption * captions * self.compute / HALF,
            }
        phases[TRAINING] = {**self._static(), **self._largest_in_a_step()}
        if self.settings[SampleOptions].sample_prompts:
            phases["sampling"] = {**self._static(), "VAE": self._vae() + self._encoding(1)}
        return phases

    def spare(self, phase: str, parts: Mapping[str, float]) -> float:
        """Return the bytes that PyTorch reserves in a phase beyond these parts."""
        reserved = SPARE * sum(parts.values())
        if phase == TRAINING and self.training.gradient_checkpointing:
            return max(reserved, min(RECOMPUTED * parts["activations"], MOST_RECOMPUTED))
        return reserved

    def main_memory(self) -> int:
        """Return the peak of the process: text encoders as they are read, or blocks that are swapped."""
        encoders = 0.0
        if not self.cache.cache_text_encoder_outputs_to_disk:
            encoders = sum(self.facts.values[name] * HALF + self._quantized(name)[1] for name in self.encoders)
        idle = self._second() - self._idle_on_device() + self._for_samples()
        return PROCESS + int(idle + max(encoders, self._swapped() * PINNED, self.facts.values[VAE] * FULL))

    # components

    def _quantized(self, name: str) -> tuple[int, float]:
        """Return how many values of a component are quantized, and their bytes."""
        weight_format = self.quantization.denoiser if name == DENOISER else self.quantization.encoders
        if not weight_format or name not in self.facts.quantized:
            return 0, 0.0
        values, rows = self.facts.quantized[name]
        return values, bytes_of(weight_format, values, rows)

    def _component(self, name: str) -> float:
        """Return the bytes of the denoiser or a text encoder."""
        values, quantized = self._quantized(name)
        return (self.facts.values[name] - values) * self.compute + quantized

    def _swapped(self) -> float:
        """Return the bytes of the denoiser that are off the device."""
        values, quantized = self._quantized(DENOISER)
        return self.facts.swapped(self.swap) * (quantized / values if values else self.compute)

    def _second(self) -> float:
        """Return the bytes of a second set of the denoiser's weights."""
        return self._component(DENOISER) if self.card.plan.trains_two(self.settings) else 0.0

    def _for_samples(self) -> float:
        """Return the bytes of the weights that samples are made with, if they are not the trained ones."""
        samples = self.settings[SampleOptions]
        waits = samples.sample_model and samples.sample_prompts and self.card.has(SAMPLE_MODEL)
        return self._component(DENOISER) if waits else 0.0

    def _idle_on_device(self) -> float:
        """Return those of them that wait on the device."""
        memory = self.settings.get(MemoryOptions)
        waits_there = self._second() and not (memory and memory.offload_inactive_dit)
        return self._second() - self._swapped() if waits_there else 0.0

    def _bytes_of_vae(self) -> int:
        """Return the bytes of a value of the VAE."""
        return FULL if self.settings[ModelOptions].no_half_vae and self.card.has("own_vae") else self.compute

    def _vae(self) -> int:
        return self.facts.values[VAE] * self._bytes_of_vae()

    def _encoding(self, images: int) -> float:
        """Return the VAE's bytes besides its weights."""
        pixels = max((shape.extent.width * shape.extent.height for shape in self.shapes), default=0)
        at_once = max(pixels, min(images * pixels, PIXELS_AT_ONCE))
        return self.facts.encode * at_once * (IN_FULL if self._bytes_of_vae() == FULL else 1.0)

    # what is trained

    def _trains_encoder(self, name: str, learning_rate: float) -> bool:
        number = self.encoders.index(name)
        if self.network:
            adapts = not self.network.network_train_unet_only and name in self.facts.lora
            return adapts and self.network.rate_of_encoder(number, learning_rate) != 0
        if self.full:
            trains = self.full.train_text_encoder and self.card.has("trains_text")
            return trains and self.full.rate_of_encoder(number, learning_rate) != 0
        return False

    def _adapter(self, network: NetworkOptions) -> AdapterMemory:
        return AdapterMemory(
            network=network,
            facts=self.facts,
            encoders=self.trained_encoders,
            plain=not self.quantization.denoiser,
            compiled=self.compiles,
            checkpointed=self.training.gradient_checkpointing,
            swaps=self.swap > 0,
        )

    def _bytes_of_state(self) -> float:
        """Return the optimizer's bytes for each trained value."""
        if self.full and self.held == HALF and self.is_adamw:
            return 2 * HALF  # our AdamW keeps its moments in half precision
        if self.full and self.optimizer.factored:
            return self.facts.factored_state
        return UNKNOWN_OPTIMIZER if self.optimizer.state_bytes is None else self.optimizer.state_bytes

    # training

    def _static(self) -> dict[str, float]:
        """Return the parts that are in memory in all steps."""
        masters = float(self.trained * FULL)
        if self.full:
            masters = self.trained * self.held if self.held != self.compute else 0.0
        if self.adapter:
            masters += self.adapter.held * self.compute
        ema = self.settings[EmaOptions]
        in_steps = self.trained_encoders if self.cache.caches_text else self.encoders
        vae = 0 if self.cache.caches_latents else self._vae()
        return {
            "weights": self._component(DENOISER) - self._swapped(),
            "idle weights": self._idle_on_device(),
            "master weights" if self.full else "adapter": masters,
            "optimizer": self.trained * self._bytes_of_state(),
            "EMA": self.trained * FULL if ema.use_ema and ema.ema_device == "gpu" else 0,
            "text encoders and VAE": vae + sum(map(self._component, in_steps)),
        }

    def _largest_in_a_step(self) -> dict[str, float]:
        """Return gradients and activations where they are largest: while images are encoded, at the start of backward,
        or at its end. The gradients of an earlier batch are there from the start."""
        activations, encoding = self._activations(), 0.0
        if not self.cache.caches_latents:
            encoding = self._encoding(max((shape.images for shape in self.shapes), default=1))
        earlier = 0
        if self.training.gradient_accumulation_steps > 1:
            earlier = self.trained * (self.held if self.full else FULL)
        moments: tuple[tuple[float, float], ...] = (
            (earlier, encoding),
            (earlier, activations),
            (self._gradients_at_end(), self._activations_at_end(activations)),
        )
        gradients, activations = max(moments, key=sum)
        return {"gradients": gradients, "activations": activations}

    def _gradients_at_end(self) -> float:
        """Return the bytes of gradients, and of float32 copies of half-precision weights, before the update."""
        if not self.full:
            return self.trained * FULL
        copies = temporary = 0
        if self.held == HALF and not (self.optimizer.updates_halves or self.optimizer.factored):
            copies = 2 * FULL  # weight and gradient, of one block at a time
            temporary = TEMPORARY * FULL * self.facts.largest_weight
        if self.optimizer.one_rate:
            return self.trained * (self.compute + copies) + temporary
        if self.fused:
            return self.facts.largest_block * (self.compute + copies) + temporary
        reads_copies = self.optimizer.updates_halves and self.training.mixed_precision != "fp16"
        of_value = self.compute if reads_copies or self.held == self.compute else FULL
        return self.trained * of_value + self.facts.largest_block * copies + temporary

    def _activations_at_end(self, activations: float) -> float:
        """Return the activations that are left when the gradients are largest."""
        fixed = self._growing().fixed
        if not self.full or not (self.fused or self.training.gradient_checkpointing):
            return fixed
        return (activations - fixed) * self.facts.activations.left + fixed

    def _activations(self) -> float:
        units = max(map(self._units, self.shapes), default=0.0)
        of_adapter = self.adapter.kept if self.adapter else 0.0
        return self._growing()(units * self.compute / HALF) + units * of_adapter * self.compute

    def _growing(self) -> Growing:
        facts = self.facts.activations
        if self.training.gradient_checkpointing:
            growing = facts.compiled_checkpointed if self.compiles else facts.checkpointed
            if self.training.cpu_offload_checkpointing:
                return replace(growing, per_unit=growing.per_unit - OFFLOADED * facts.block_inputs)
            return growing
        if self.compiles:
            budget = self.settings[CompileMoreOptions].activation_memory_budget
            return _at(budget, {**facts.budgets, 1.0: facts.compiled})
        if self.settings[CudaOptions].float32_norms and self.compute == HALF:
            return replace(facts.eager, per_unit=facts.eager.per_unit + facts.float32_norms)
        return facts.eager

    def _units(self, shape: BatchShape) -> float:
        parts = seen_parts(self.card, shape.extent)
        units = sum(self.facts.units(part.width, part.height, part.frames, self.settings) for part in parts)
        text = self.facts.units(0, 0, 1, self.settings)  # which a sample has once, however many control images
        return shape.images * (units - text * (len(parts) - 1))


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
