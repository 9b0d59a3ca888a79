"""What diffusion transformers have around their blocks: weights that are swapped, activations that are checkpointed."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, cast

import torch
from torch import Tensor, nn

from sd_scripts.library.diffusion.block_swap import SwapGroup
from sd_scripts.library.diffusion.checkpointing import Checkpoint, CheckpointOffload

_NOTHING = nullcontext()


class BlockTransformer(nn.Module):
    """A transformer of latents, which enter through `first_layer`, that calls its blocks by `run_block`."""

    def __init__(self) -> None:
        super().__init__()
        self.checkpoint: Checkpoint | None = None
        self.offload: CheckpointOffload | None = None
        self.swapper: SwapGroup | None = None

    @property
    def first_layer(self) -> nn.Module:
        """The layer that reads the latents; it is not in a block."""
        return cast(nn.Module, self.img_in)

    @property
    def dtype(self) -> torch.dtype:
        """The compute dtype; block weights may be stored in a narrower one."""
        return cast(Tensor, self.first_layer.weight).dtype

    @property
    def device(self) -> torch.device:
        return cast(Tensor, self.first_layer.weight).device

    def enable_gradient_checkpointing(self, checkpoint: Checkpoint, *, offload: bool = False) -> None:
        """Keep only the input of each block for backward; with `offload`, in main memory."""
        self.checkpoint = checkpoint
        self.offload = CheckpointOffload() if offload else None

    def run_block(self, block: nn.Module, hidden: tuple[Tensor, ...], *context: Any) -> tuple[Tensor, ...]:
        """Return a block's output for `hidden`. The swapper acts outside of compiled and checkpointed code."""
        if self.swapper:
            hidden = self.swapper.enter(block, *hidden)
        if self.checkpoint and torch.is_grad_enabled():
            with self.offload.saving(hidden) if self.offload else _NOTHING:
                out = self.checkpoint(block, *hidden, *context)
        else:
            out = block(*hidden, *context)
        hidden = out if isinstance(out, tuple) else (out,)
        return self.swapper.leave(block, *hidden) if self.swapper else hidden


def with_gradients(*hidden: Tensor) -> tuple[Tensor, ...]:
    """Let the inputs of the first block require gradients, so that it is like the others, and shares their graph."""
    if not torch.is_grad_enabled():
        return hidden
    return tuple(x if x.requires_grad else x.requires_grad_() for x in hidden)
