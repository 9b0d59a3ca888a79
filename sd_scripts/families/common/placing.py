"""Place a denoiser for training: its blocks one by one, quantized, some of them swapped; everything else together."""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import nn

from sd_scripts.families.common.components import Components
from sd_scripts.families.common.quantizing import Quantize, block_quantizer
from sd_scripts.formats.words import listed
from sd_scripts.library.diffusion.block_swap import SLOTS, BlockSwap, CopyStreams, SwapGroup, swapped_blocks
from sd_scripts.library.diffusion.block_transformer import BlockTransformer
from sd_scripts.library.diffusion.checkpointing import checkpoint_function
from sd_scripts.library.diffusion.idle_weights import IdleWeights
from sd_scripts.options.memory import MemoryOptions
from sd_scripts.options.networks.network import NetworkOptions
from sd_scripts.options.training import TrainingOptions
from sd_scripts.settings.quantization import Quantization, quantization_of
from sd_scripts.settings.settings import Settings

Kind = tuple[Sequence[nn.Module], int]
"""Blocks of about the same size in the order of the forward pass, and how many of them stay off the device."""


def blocks_to_swap(memory: MemoryOptions | None) -> int:
    """Return how many blocks a run with these options swaps."""
    return (memory.blocks_to_swap or 0) if memory else 0


@dataclass(frozen=True, kw_only=True)
class Placement:
    """How a run stores its denoiser."""

    swapped_blocks: int
    """How many blocks stay off the device."""
    quantization: Quantization
    offloads_idle: bool = False
    """Whether a second set of weights waits in main memory rather than on the device (experts.py)."""


def placement_of(settings: Settings) -> Placement:
    """Return how the options store the denoiser."""
    memory = settings.get(MemoryOptions)
    return Placement(
        swapped_blocks=blocks_to_swap(memory),
        quantization=quantization_of(settings),
        offloads_idle=bool(memory and memory.offload_inactive_dit),
    )


def swap_problems(memory: MemoryOptions | None, most: int, model: str) -> list[str]:
    """Return a problem if more than `most` blocks are to be swapped. `model`: "a model with 3 blocks"."""
    swap = blocks_to_swap(memory)
    if swap <= most:
        return []
    remedy = f"set {most} or less" if most else "leave it unset"
    return [f"blocks_to_swap: {swap} exceeds {most}, the most that {model} can swap; {remedy}"]


def place_blocks(
    denoiser: nn.Module, kinds: Iterable[Kind], device: torch.device, *, quantize: Quantize | None = None
) -> SwapGroup | None:
    """Move a denoiser to the device and return its block swap; None without one.

    Each block of `kinds` is quantized on the device as soon as it is there, so that they are never all on the device in
    full precision. Swapped blocks are copied back after a step if the denoiser's parameters require gradients by now.
    """
    lists = [(list(blocks), off) for blocks, off in kinds]
    _move_except({block for blocks, _ in lists for block in blocks}, denoiser, device)
    swaps = []
    streams = CopyStreams.of(device)
    trainable = any(p.requires_grad for p in denoiser.parameters())
    for blocks, off in lists:
        if quantize:
            swapped = swapped_blocks(len(blocks), off)
            for number, block in enumerate(blocks):
                block.to(device)  # where quantizing is quick
                quantize(block, number not in swapped)
                block.to("cpu" if number in swapped else device)
        swaps.append(BlockSwap(blocks, off, device, streams=streams, trainable=trainable))
    group = SwapGroup(swaps)
    return group if len(group) else None


@dataclass(frozen=True, kw_only=True)
class BlockLists:
    """The lists of blocks of a transformer, which take turns on the device if some are swapped."""

    names: Mapping[str, str]
    """Attribute of the transformer -> what its blocks are called in front of "blocks"."""
    counts: Callable[[int], tuple[int, ...]] = lambda blocks_to_swap: (blocks_to_swap,)
    """blocks_to_swap -> how many blocks of each list stay off the device."""
    few_tokens: type[nn.Module] | tuple[()] = ()
    """As in block_quantizer."""

    @property
    def weights(self) -> re.Pattern[str]:
        """Names of the blocks' weights, which can be quantized."""
        return re.compile(rf"({'|'.join(self.names)})\..*\.weight")

    def of(self, transformer: nn.Module) -> list[list[nn.Module]]:
        """Return the blocks by list, in model order."""
        return [list(transformer.get_submodule(name).children()) for name in self.names]

    def place(self, components: Components, placement: Placement, device: torch.device) -> None:
        """Move the denoiser to the device, quantized and with swapped blocks as the options specify."""
        self.place_model(cast(BlockTransformer, components.denoiser), placement, device)

    def place_model(self, transformer: BlockTransformer, placement: Placement, device: torch.device) -> None:
        kinds = zip(self.of(transformer), self.counts(placement.swapped_blocks), strict=True)
        quantize = block_quantizer(placement.quantization, transformer.dtype, device, few_tokens=self.few_tokens)
        transformer.swapper = place_blocks(transformer, kinds, device, quantize=quantize)

    def let_wait(
        self, other: BlockTransformer, denoiser: BlockTransformer, placement: Placement, option: str, *, offload: bool
    ) -> IdleWeights:
        """Return the weights of `other`, which is in main memory, ready to change places with those of the placed
        denoiser; they are quantized alike. `offload` as in IdleWeights. Raises ValueError, one sentence that names
        `option`, if the two are stored differently."""
        device = denoiser.device
        quantize = block_quantizer(placement.quantization, denoiser.dtype, device, few_tokens=self.few_tokens)
        lists = self.of(other)
        for blocks, off in zip(lists, self.counts(placement.swapped_blocks), strict=True):
            swapped = swapped_blocks(len(blocks), off)
            for number, block in enumerate(blocks if quantize else ()):
                assert quantize
                quantize(block.to(device), number not in swapped)
                block.to("cpu")
        try:
            return IdleWeights(denoiser, other, [block for blocks in lists for block in blocks], offload=offload)
        except ValueError as error:
            raise ValueError(
                f"{option}: its file and the model's store weights in different formats; choose files of the same "
                "precision, or set quantize_base"
            ) from error

    def most(self, *blocks: int) -> int:
        """Return the largest blocks_to_swap of a model with this many blocks in each list."""
        off = (self.counts(swap) for swap in range(sum(blocks) + 1))
        fits = (all(n <= count - SLOTS for n, count in zip(each, blocks, strict=True)) for each in off)
        return max((swap for swap, fit in enumerate(fits) if fit), default=0)

    def swap_problems(self, transformer: nn.Module, memory: MemoryOptions | None) -> list[str]:
        """Return a problem if more blocks are to be swapped than the transformer can do without."""
        blocks = [len(each) for each in self.of(transformer)]
        lists = zip(blocks, self.names.values(), self.counts(sum(blocks)), strict=True)
        words = listed(f"{count} {name}".strip() for count, name, swapped in lists if swapped)
        return swap_problems(memory, self.most(*blocks), f"a model with {words} blocks")


def checkpoint_gradients(transformer: nn.Module, training: TrainingOptions, network: NetworkOptions | None) -> None:
    """Enable gradient checkpointing of a transformer as the options specify."""
    assert isinstance(transformer, BlockTransformer)
    transformer.enable_gradient_checkpointing(checkpoint_function(network), offload=training.cpu_offload_checkpointing)


def _move_except(blocks: Collection[nn.Module], module: nn.Module, device: torch.device) -> None:
    """Move everything in `module` but the blocks to the device."""
    if not any(part in blocks for part in module.modules()):
        module.to(device)
        return
    for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
        tensor.data = tensor.data.to(device)
    for child in module.children():
        if child not in blocks:
            _move_except(blocks, child, device)
