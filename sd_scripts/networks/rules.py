"""What a family may say about each layer of a LoRA: its rank, its learning rate, its pieces."""

from typing import NamedTuple

from torch import nn


class Rank(NamedTuple):
    """`dim` 0 leaves the layer as it is; `alpha` 0 is the rank."""

    dim: int
    alpha: float


class Rate(NamedTuple):
    """A learning rate, and what the name of its group ends with: `_block4`."""

    lr: float
    suffix: str = ""


class Rules:
    """Every layer alike. Families that distinguish them override what they need; `name` is the layer's in files."""

    adapts_conv = False
    """Whether convolutions get ranks without conv_dim."""

    def check(self, model: nn.Module) -> None:
        """Raises ValueError where the rules speak of what this denoiser has not."""

    def rank(self, name: str, conv: bool, default: Rank) -> Rank:
        return default

    def rate(self, name: str, default: float) -> Rate | None:
        """None: the layer shall not learn, and is left out."""
        return Rate(default)

    def split_dims(self, name: str, layer: nn.Module) -> tuple[int, ...]:
        """How many outputs each piece has that gets a rank of its own; () is one for all."""
        return ()
