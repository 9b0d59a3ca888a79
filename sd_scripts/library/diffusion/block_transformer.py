"""What diffusion transformers have around their blocks: weights that are swapped, activations that are checkpointed."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from sd_scripts.library.diffusion.block_swap import SwapGroup
from sd_scripts.library.diffusion.checkpointing import Checkpoint, CheckpointOffload

_NOTHING = nullcontext()


class BlockTransformer(nn.Module):
    """A transformer of packed latents, which enter through `img_in`, that calls its blocks by `run_block`."""

    img_in: nn.Linear

    def __init__(self) -> None:
        super().__init__()
        self.checkpoint: Checkpoint | None = None
        self.offload: CheckpointOffload | None = None
        self.swapper: SwapGroup | None = None

    @property
    def dtype(self) -> torch.dtype:
        """The compute dtype; block weights may be stored in a narrower one."""
        return self.img_in.weight.dtype

    @property
    def device(self) -> torch.device:
        return self.img_in.weight.device

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
