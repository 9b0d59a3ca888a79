"""Tensors whose values follow from their names, with which the official codes of several families were run."""

import zlib
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

SCALES = ("cap_embedder.0.weight",)
"""Scales of norms whose names do not reveal it."""


def formula(name: str, shape: tuple[int, ...]) -> Tensor:
    """Return values in -1..1."""
    numbers = np.arange(1, int(np.prod(shape)) + 1, dtype=np.uint64)
    x = (numbers * np.uint64(2654435761) + np.uint64(zlib.crc32(name.encode()) * 40503)) % np.uint64(2**32)
    x = ((x ^ (x >> np.uint64(15))) * np.uint64(2246822519)) % np.uint64(2**32)
    return torch.from_numpy((x ^ (x >> np.uint64(13))) / 2**31 - 1).float().view(shape)


def formula_weights(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return weights of these names and shapes: norms near 1, others with about the variance of their inputs."""
    weights = {}
    for name, tensor in state.items():
        values = formula(name, tuple(tensor.shape))
        scales = name.endswith(".scale") or "norm" in f".{name}".split(".")[-2] or name in SCALES
        small = 1 + 0.1 * values if scales else 0.1 * values
        weights[name] = values * (3 / tensor.shape[-1]) ** 0.5 if tensor.ndim > 1 else small
    return weights


def formula_input(name: str, shape: tuple[int, ...]) -> Tensor:
    return 1.7 * formula(f"input:{name}", shape)
