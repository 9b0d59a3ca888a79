"""What decides the memory of a model family at full size, without torch; the plan of a run adds it up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from sd_scripts.options.spec import OptionValues

PIXELS_AT_ONCE = 4 * 1024 * 1024
"""Pixels of a batch above which it passes through the VAE's encoder, whose activations are large, in slices."""


@dataclass(frozen=True)
class Growing:
    """Bytes that grow with the samples."""

    per_unit: float
    fixed: float = 0.0
    """Bytes that do not grow: workspaces, the largest temporary copies."""

    def __call__(self, units: float) -> float:
        return self.per_unit * units + self.fixed


@dataclass(frozen=True, kw_only=True)
class Activations:
    """Memory for the backward pass at its start, by the units of all samples, in half precision.

    Measured on one NVIDIA H200 (docs/performance.md); the number of layers and their widths decide it, not the GPU.
    """

    eager: Growing
    compiled: Growing
    float32_norms: float = 0.0
    """What float32_norms adds for each unit to eager steps, as counted in the model."""
    checkpointed: Growing
    """With gradient_checkpointing: the inputs of all blocks, and the activations that one of them recomputes."""
    compiled_checkpointed: Growing
    block_inputs: float = 0.0
    """The part of them for each unit that are inputs of blocks, as counted: what cpu_offload_checkpointing moves."""
    budgets: Mapping[float, Growing] = field(default_factory=dict)
    """activation_memory_budget -> the same for compiled blocks."""
    left: float = 0.5
    """Share of the checkpointed ones that is left when the first of the largest blocks is updated within backward."""


@dataclass(frozen=True, kw_only=True)
class Projection:
    """Linear layers that read one input, and compute in one product where folded (networks/folded/folding.py)."""

    inputs: int
    outputs: tuple[int, ...]
    """Of each of the layers."""
    count: int
    """How many there are of them in the denoiser."""
    rows: float = 0.0
    """Rows of their input for each unit of a sample; 0 for text rows, which are few."""
    kept: bool = True
    """Whether what follows keeps their outputs until the backward pass."""
    swappable: bool = False
    """Whether they are in blocks that blocks_to_swap can take off the device."""


def units_of(tokens: Callable[[int, int, int], int], text: int = 0) -> Callable[[int, int, int, OptionValues], float]:
    """Return `MemoryFacts.units` of a model whose units are the tokens of a sample and this many of its text."""
    return lambda width, height, frames, settings: float(tokens(width, height, frames) + text)


def image_tokens(width: int, height: int, frames: int) -> int:
    """Return the tokens of an image, 16x16 pixels each."""
    return width // 16 * (height // 16) * frames


@dataclass(frozen=True, kw_only=True)
class MemoryFacts:
    """Sizes of a family's full-size model."""

    values: Mapping[str, int]
    """Component -> number of values."""
    largest_block: int
    """Values of the largest repeated block."""
    largest_weight: int
    """Values of the largest weight of that block."""
    lora: Mapping[str, int]
    """Component -> values of a LoRA of rank 1 on all of its Linear layers that are adapted by default."""
    lora_conv: int = 0
    """The same of the denoiser's convolutions, with conv_dim."""
    projections: tuple[Projection, ...] = ()
    """All Linear layers of the denoiser that are adapted by default, if their adapters are folded."""
    folded_kinds: tuple[str, ...] = ("lora",)
    """Kinds of adapters that are folded (networks/targets.py)."""
    measured_rank: int = 0
    """Rank of the LoRA with which the activations were measured."""
    factored_state: float = 0.02
    """Bytes that a factored optimizer keeps for each value of the denoiser."""
    quantized: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Component -> values, and rows, of the weights that are quantized where that is chosen."""
    swapped: Callable[[int], int] = lambda blocks_to_swap: 0
    """blocks_to_swap -> values of the denoiser that are off the device."""
    most_swapped: int = 0
    """The largest blocks_to_swap."""
    units: Callable[[int, int, int, OptionValues], float]
    """Width and height in pixels, frames, settings -> units of a sample, to which its activations are proportional."""
    activations: Activations
    encode: float
    """Bytes that the VAE's encoder takes for each pixel, in half precision."""
    caption: float = 0.0
    """Bytes that the text encoders take for each caption of a batch, in half precision."""
