"""Weights of a LoRA's blocks (lbws)."""

from collections.abc import Callable

from sd_scripts.networks.targets import LoraBlocks
from sd_scripts.settings.tools.lora_tools import read_block_weights

Weigh = Callable[[str], float]
"""Name of a layer -> the weight of its block."""


def weigher(blocks: LoraBlocks, text: str) -> Weigh:
    """Return the weights that `lbws` gives. A block that it does not name keeps 1.

    Raises ValueError, one sentence, for a list of a length that the family does not define, or an unknown name.
    """
    if not text:
        return lambda name: 1.0
    given = read_block_weights(text)
    if isinstance(given, list):
        if len(given) not in blocks.lists:
            known = ", ".join(map(str, sorted(blocks.lists))) or "none"
            raise ValueError(
                f"lbws: {len(given)} weights given; lists for this model have {known}. Or write names, such as OUT=0.5"
            )
        given = dict(zip(blocks.lists[len(given)], given, strict=True))

    def weight(name: str) -> float:
        block = blocks.label(name)
        fitting = [part for part in given if block.upper().startswith(part) or (part == BASE and blocks.is_text(name))]
        return given[max(fitting, key=len)] if fitting else 1.0

    return weight


BASE = "BASE"
"""All text encoders."""
