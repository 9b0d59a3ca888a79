"""Random weights for full-size models: only their sizes matter."""

import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from sd_scripts.families.cards.family_card import DENOISER, FamilyCard
from sd_scripts.library.files.safetensors_io import save_model
from sd_scripts.library.files.state_dicts import State

DRAWN = 2**22 + 1
"""Numbers that are drawn and then repeated, since drawing billions takes minutes; odd, so that the rows of a matrix
differ."""
BRANCH_GAINS = {
    **dict.fromkeys((".to_out.0", ".to_add_out", "_attn.proj", ".out_proj", ".o_proj", ".SelfAttention.o"), 0.5),
    **dict.fromkeys((".ff.net.2", "_mlp.2", "_mlp.net.2", ".fc2", ".down_proj", ".wo", ".linear2", ".conv2"), 0.3),
}
"""Ends of names of the layers in which a residual branch ends -> size of its result, relative to what it is added to.
With 1, activations would grow from block to block, and gradients be mostly rounding."""
UNEVEN, BIASED = 0.1, 0.02
"""Standard deviations of the weights of norms, around 1, and of biases."""


def random_weights(module: nn.Module, dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    """Return a state dict for a module on the meta device. Matrices preserve the variance of activations, but for those
    in which a residual branch ends; norms are about 1 and biases about 0. Each tensor has numbers of its own."""
    noise = torch.randn(DRAWN, generator=torch.Generator().manual_seed(0)).repeat(2)

    def drawn(name: str, empty: Tensor, deviation: float) -> Tensor:
        """Take the numbers from a place on that the name decides, so that no two tensors are alike."""
        begin, count = zlib.crc32(name.encode()) % DRAWN, empty.numel()
        numbers = (noise[begin : begin + min(count, DRAWN)] * deviation).to(dtype)
        return numbers.repeat(-(-count // DRAWN))[:count].view(empty.shape)

    weights = {}
    for name, empty in module.state_dict().items():
        mean, deviation = mean_and_deviation(name, empty)
        numbers = drawn(name, empty, deviation)
        weights[name] = mean + numbers if mean else numbers
    return weights


def mean_and_deviation(name: str, empty: Tensor) -> tuple[float, float]:
    """Return the mean and the standard deviation of the random numbers of a weight."""
    layer, _, kind = name.rpartition(".")
    if empty.ndim >= 2:
        gain = next((gain for end, gain in BRANCH_GAINS.items() if layer.endswith(end)), 1.0)
        return 0.0, gain * float(empty[0].numel() ** -0.5)
    return (1.0, UNEVEN) if kind in ("weight", "scale") else (0.0, BIASED)


def write_components(
    card: FamilyCard,
    modules: Mapping[str, nn.Module],
    folder: Path,
    change: Callable[[str, State], State] = lambda name, weights: weights,
) -> dict[str, Path]:
    """Write random weights of these components, as `change` returns them for a component's name; return the files by
    the options that name them."""
    files = {}
    for component in card.files.components:
        if component.name in modules:
            files[component.option] = folder / f"{component.option}.safetensors"
            save_model(files[component.option], change(component.name, random_weights(modules[component.name])), {})
    return files


QUIET = 0.3
"""Scale of the weights of modulations, without which the activations of random blocks grow from block to block."""


def quieter(*words: str) -> Callable[[str, State], State]:
    """Return a change that makes the denoiser's weights with one of these words in their names smaller."""

    def change(name: str, weights: State) -> State:
        for key in weights if name == DENOISER else ():
            weights[key] *= QUIET if any(word in key for word in words) else 1.0
        return weights

    return change


Predict = Callable[[nn.Module, int, int], Tensor]
"""Calls a denoiser on the meta device for one image of this width and height in pixels."""


def operations_per_image(denoiser: nn.Module, predict: Predict, width: int, height: int, *, learns: bool) -> int:
    """Return the floating-point operations of a training step for each image: forward, and backward to the inputs, or
    with `learns` to the weights too. Adapters, and what checkpointing repeats, do not count."""
    denoiser.requires_grad_(learns)
    with FlopCounterMode(display=False) as counter:
        predict(denoiser, width, height).sum().backward()
    return int(counter.get_total_flops())


def unknown(*shape: int) -> Tensor:
    """Return an input on the meta device that has a gradient, as what adapted layers return."""
    return torch.empty(shape, device="meta", requires_grad=True)
