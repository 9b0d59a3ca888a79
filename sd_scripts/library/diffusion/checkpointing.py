"""Gradient checkpointing of blocks: backward computes what a block keeps for it again."""

from collections.abc import Callable
from functools import partial
from typing import Any

from torch.utils.checkpoint import checkpoint

from sd_scripts.families.cards.registry import is_built_in_network
from sd_scripts.options.networks.network import NetworkOptions

Checkpoint = Callable[..., Any]
"""Calls its first argument with the others."""


def checkpoint_function(network: NetworkOptions | None) -> Checkpoint:
    """Return how blocks are checkpointed. The state of the random generators, which takes time to read and cannot be
    read while a CUDA graph is recorded, is kept only where a block draws numbers."""
    draws = network is not None and bool(network.draws or not is_built_in_network(network))
    return partial(checkpoint, use_reentrant=False, preserve_rng_state=draws)
