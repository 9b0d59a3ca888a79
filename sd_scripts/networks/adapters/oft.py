"""OFT and BOFT: a layer's outputs are rotated in blocks, instead of adding to its weight.

Qiu et al. 2023, https://arxiv.org/abs/2306.07280; Liu et al. 2023, https://arxiv.org/abs/2311.06243. A rotation is the
Cayley transform R = (I + Q)(I - Q)^-1 of Q = B - B', where B is trained. W' = R W is the same as rotating W x, which
needs no copy of W. Keys in files are LyCORIS'.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from sd_scripts.library.kernels.block_inverse import inverse_of_blocks
from sd_scripts.library.quantization.quantized import compute_dtype
from sd_scripts.networks.adapter import Adapter, LayerPlan, Tensors, TrainedTensor, register
from sd_scripts.networks.layers import AdaptedConv2d, AdaptedLinear, Dropouts
from sd_scripts.networks.lokr_sizes import factors
from sd_scripts.networks.updates import dropped_channels, exact
from sd_scripts.options.networks.layer_rules import Rank

BLOCKS, RESCALE = "oft_blocks", "rescale"


class Rotation(nn.Module):
    """Rotations of the outputs of a layer, and with `rescale` a factor for each of them."""

    def __init__(self, blocks: Tensor, rescale: Tensor | None, constraint: float):
        """blocks: B, (k, n, n) for one rotation of k blocks, or (m, k, n, n) for m of them, each between outputs that
        are further apart (BOFT). constraint: the largest norm of all Q together; 0 is none."""
        super().__init__()
        self.constraint = constraint
        self.blocks = blocks if isinstance(blocks, nn.Parameter) else nn.Parameter(blocks, requires_grad=False)
        self.rescale = None if rescale is None else nn.Parameter(rescale)

    def shrinking(self) -> Tensor:
        """Return the factor by which Q is shrunk to keep the constraint."""
        norm = (self.blocks - self.blocks.mT).norm() + 1e-8
        return (self.constraint / norm).clamp(max=1.0)

    def changes(self) -> Tensor:
        """Return R - I of all blocks."""
        skew = self.blocks - self.blocks.mT
        if self.constraint:
            skew = skew * self.shrinking()
        eye = torch.eye(skew.shape[-1], dtype=skew.dtype, device=skew.device)
        return 2 * (inverse_of_blocks(eye - skew) - eye)

    def forward(self, z: Tensor) -> Tensor:
        """Return the rotation's change of z, (..., out)."""
        changes = self.changes().to(z.dtype)
        flat = z.flatten(0, -2)
        added = _turned(flat, changes.mT) if changes.ndim == 3 else self._butterfly(flat, changes)
        added = added.unflatten(0, z.shape[:-1])
        if self.rescale is None:
            return added
        return added + (self.rescale.flatten() - 1).to(z.dtype) * (z + added)

    @staticmethod
    def _butterfly(z: Tensor, changes: Tensor) -> Tensor:
        added = torch.zeros_like(z)
        for stage, change in enumerate(changes):
            reach = 2**stage * change.shape[-1] // 2
            mixed = z.unflatten(1, (-1, 2, reach)).transpose(2, 3).flatten(1)  # neighbours are `reach` apart in z
            step = _turned(mixed, change).unflatten(1, (-1, reach, 2)).transpose(2, 3).flatten(1)
            z, added = z + step, added + step
        return added


def _turned(z: Tensor, blocks: Tensor) -> Tensor:
    """Multiply z (M, k·n) by a matrix of blocks (k, n, n) on its diagonal."""
    parts = z.unflatten(1, blocks.shape[:2]).transpose(0, 1)  # (k, M, n)
    return torch.bmm(parts, blocks.mT).transpose(0, 1).flatten(1)


class RotatedLinear(AdaptedLinear):
    """y = R (W x) + b"""

    def __init__(self, base: nn.Linear, rotation: Rotation, dropouts: Dropouts):
        super().__init__(base, dropouts)
        self.rotation = rotation

    def forward(self, x: Tensor) -> Tensor:
        y = self.base(x)
        added = self.rotation(y if self.bias is None else y - self.bias)
        return y + (self.dropouts(added) if self.training and self.dropouts.any() else added)


class RotatedConv2d(AdaptedConv2d):
    """y = R conv(x) + b, over channels"""

    def __init__(self, base: nn.Conv2d, rotation: Rotation, dropouts: Dropouts):
        super().__init__(base, dropouts)
        self.rotation = rotation

    def forward(self, x: Tensor) -> Tensor:
        y = self._conv_forward(x, self.weight, None)
        added = self.rotation(y.movedim(1, -1)).movedim(-1, 1)
        if self.training and self.dropouts.any():
            added = dropped_channels(added, self.dropouts)
        y = y + added
        return y if self.bias is None else y + self.bias[:, None, None]


@register
class Oft(Adapter):
    """Rotations of blocks of `rank` outputs, or of `block_count` blocks."""

    kind = "oft"
    endings = (BLOCKS, RESCALE)
    forms = ((BLOCKS,),)
    dimensions = 3

    @classmethod
    def shape(cls, name: str, out: int, rank: int, block_count: int | None) -> tuple[int, ...]:
        """Return the shape of the blocks of a layer with `out` outputs."""
        if not block_count:
            size, count = factors(out, rank)
            return count, size, size
        if out % block_count:
            raise ValueError(
                f"network_args: block_count={block_count} does not divide the {out} outputs of {name}; choose another"
            )
        return block_count, out // block_count, out // block_count

    @classmethod
    def check(cls, name: str, layer: nn.Module, rank: int, options: Mapping[str, Any]) -> None:
        if "shape" not in options:
            cls.shape(name, len(layer.weight), rank, options.get("block_count"))  # type: ignore[arg-type]

    def __init__(self, plan: LayerPlan, base: nn.Module, dropouts: Dropouts):
        super().__init__(plan, base, dropouts)
        assert isinstance(base, nn.Linear | nn.Conv2d)
        out = len(base.weight)
        options = plan.options
        dtype = exact(compute_dtype(base))
        shape = options.get("shape") or self.shape(plan.name, out, plan.rank, options.get("block_count"))
        blocks = nn.Parameter(base.weight.new_empty(shape, dtype=dtype))
        rescale = base.weight.new_ones((out, *[1] * (base.weight.ndim - 1)), dtype=dtype)
        rotation = Rotation(blocks, rescale if options.get("rescaled") else None, options.get("constraint", 0.0) * out)
        layer_class: Any = RotatedLinear if isinstance(base, nn.Linear) else RotatedConv2d
        self.layer = layer_class(base, rotation, dropouts)
        self.rotation = rotation
        parts = [blocks] if rotation.rescale is None else [blocks, rotation.rescale]
        self.tensors = [TrainedTensor(copy=part, exact=True) for part in parts]

    def initialize(self, generator: torch.Generator) -> None:
        """Set factors to 1; blocks of 0 rotate nothing."""
        for rescale in self.masters[1:]:
            rescale.fill_(1.0)

    def file_tensors(self) -> Tensors:
        """Return blocks that keep the constraint by themselves: programs read the constraint, alpha, differently."""
        blocks = self.masters[0].detach()
        if self.rotation.constraint:
            blocks = blocks * Rotation(blocks, None, self.rotation.constraint).shrinking()
        tensors: Tensors = {"alpha": torch.tensor(0.0, dtype=torch.float64), BLOCKS: blocks}
        return tensors if len(self.masters) == 1 else {**tensors, RESCALE: self.masters[1].detach()}

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        blocks = tensors[BLOCKS]
        masters = self.masters
        if blocks.shape != masters[0].shape:
            raise ValueError(
                f"network_weights: {self.name} has blocks of {tuple(blocks.shape)} in the file and of "
                f"{tuple(masters[0].shape)} here; set network_dim to the size of the file's blocks or turn on "
                "dim_from_weights"
            )
        if RESCALE in tensors and len(masters) == 1:
            raise ValueError(f"network_weights: {self.name} has {RESCALE} in the file; turn on rescaled")
        masters[0].copy_(blocks)
        if constraint := _constraint(tensors, len(self.layer.weight)):  # type: ignore[arg-type]
            masters[0].mul_(Rotation(masters[0].clone(), None, constraint).shrinking())
        if RESCALE in tensors:
            masters[1].copy_(tensors[RESCALE].view(masters[1].shape))

    @classmethod
    def reads(cls, tensors: Mapping[str, Tensor]) -> bool:
        return super().reads(tensors) and tensors[BLOCKS].ndim == cls.dimensions

    @classmethod
    def rank_in_file(cls, tensors: Mapping[str, Tensor], split_dims: tuple[int, ...]) -> tuple[Rank, tuple[int, ...]]:
        size = tensors[BLOCKS].shape[-1]
        return Rank(size, float(size)), ()

    @classmethod
    def options_in_file(cls, tensors: Mapping[str, Tensor]) -> Mapping[str, Any]:
        return {
            "shape": tuple(tensors[BLOCKS].shape),
            "rescaled": RESCALE in tensors,
            "constraint": float(tensors.get("alpha", 0.0)),
        }

    @classmethod
    def sizes_in_file(cls, tensors: Mapping[str, Tensor]) -> tuple[int, int | None]:
        *_, count, rows, columns = tensors[BLOCKS].shape
        out = count * rows
        rescale = tensors.get(RESCALE)
        if rows != columns:
            raise ValueError(f"{BLOCKS} of {tuple(tensors[BLOCKS].shape)}, which are not square")
        if rescale is not None and rescale.numel() != out:
            raise ValueError(f"{RESCALE} of {tuple(rescale.shape)} for {out} outputs")
        return out, None

    @classmethod
    def delta(cls, tensors: Mapping[str, Tensor], weight: Tensor, strength: float = 1.0) -> Tensor:
        parts = {ending: tensor.to(weight.device).float() for ending, tensor in tensors.items()}
        rotation = Rotation(parts[BLOCKS], parts.get(RESCALE), _constraint(tensors, len(weight)))
        return rotation(weight.float().flatten(1).t()).t() * strength

    def norm(self) -> Tensor:
        """Return the norm of the blocks, as LyCORIS limits it: a rotation does not change the norm of a weight."""
        return self.masters[0].norm()

    def scale_update(self, root: Tensor) -> None:
        self.masters[0].mul_(root)


def _constraint(tensors: Mapping[str, Tensor], out: int) -> float:
    """Return the constraint of a file's layer, which LyCORIS and sd-scripts multiply by the number of outputs."""
    return float(tensors["alpha"]) * out if "alpha" in tensors else 0.0


@register
class Boft(Oft):
    """Several rotations in turn, whose blocks reach twice as far each time, so that every output meets every other."""

    kind = "boft"
    dimensions = 4

    @classmethod
    def shape(cls, name: str, out: int, rank: int, block_count: int | None) -> tuple[int, ...]:
        sizes = [size for size in range(2, out + 1, 2) if out % size == 0 and (out // size).bit_count() == 1]
        if not sizes or sizes[0] > rank:
            remedy = f"set it to at least {sizes[0]}" if sizes else "choose another network_type"
            raise ValueError(f"network_dim: {rank} is too small for BOFT on the {out} outputs of {name}; {remedy}")
        size = max(size for size in sizes if size <= rank)
        return (out // size).bit_length(), out // size, size, size
