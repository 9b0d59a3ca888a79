"""A small FLUX.1 transformer of random weights, with blocks enough to swap; a LoRA on every Linear."""

import torch
from torch import Tensor, nn

from sd_scripts.families.flux.model import FluxShape, FluxTransformer
from sd_scripts.library.block_swap import BlockSwap, SwapGroup, swap_counts
from sd_scripts.networks.layers import Dropouts, LoraLinear

CPU = torch.device("cpu")
SHAPE = FluxShape(
    channels=8, width=64, heads=2, mlp_width=128, text_width=16, pooled_width=16, double_blocks=5, single_blocks=8
)
SWAP = 6
"""Three double and six single blocks."""


def transformer(swap: int = 0) -> FluxTransformer:
    """With a LoRA on every Linear, those before the blocks too."""
    torch.manual_seed(0)
    model = FluxTransformer(SHAPE).requires_grad_(False)
    for p in model.parameters():
        nn.init.normal_(p, std=0.1)
    if swap:
        double, single = swap_counts(swap)
        model.swapper = SwapGroup(
            [BlockSwap(model.double_blocks, double, CPU), BlockSwap(model.single_blocks, single, CPU)]
        )
    torch.manual_seed(1)
    for path, layer in list(model.named_modules()):
        if type(layer) is nn.Linear:
            lora = LoraLinear(layer, 2, Dropouts())
            for p in (lora.lora_down, lora.lora_up):
                nn.init.normal_(p, std=0.1)
            parent, _, name = path.rpartition(".")
            setattr(model.get_submodule(parent), name, lora)
    return model


def run(model: FluxTransformer, seed: int = 2) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return model(
        torch.randn(2, 12, 8, generator=g),
        torch.randn(2, 5, 16, generator=g),
        torch.randn(2, 16, generator=g),
        torch.tensor([0.2, 0.7]),
        torch.tensor([1.0, 3.5]),
        (3, 4),
    )


def gradients(model: FluxTransformer, seed: int = 2) -> tuple[Tensor, dict[str, Tensor]]:
    """Output, and the gradient of each LoRA matrix."""
    out = run(model, seed)
    out.square().mean().backward()
    grads = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    for p in model.parameters():
        p.grad = None
    return out.detach(), grads
