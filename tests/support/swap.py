"""A small FLUX.1 transformer of random weights, with blocks enough to swap: with a LoRA on every Linear, or all of it
learning."""

import weakref
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from sd_scripts.families.cards.stream_memory import swap_counts
from sd_scripts.families.flux.model import FluxParams, FluxTransformer
from sd_scripts.library.diffusion.block_swap import BlockSwap, SwapGroup
from sd_scripts.networks.adapters.lora import LoraLinear
from sd_scripts.networks.layers import Dropouts

CPU = torch.device("cpu")
SHAPE = FluxParams(
    channels=8, width=64, heads=2, mlp_width=128, text_width=16, pooled_width=16, double_blocks=5, single_blocks=8
)
SWAP = 6
"""Three double and six single blocks."""


Update = Callable[[Iterable[nn.Parameter]], None]


def bare(swap: int, *, trainable: bool) -> FluxTransformer:
    torch.manual_seed(0)
    model = FluxTransformer(SHAPE).requires_grad_(trainable)
    for p in model.parameters():
        nn.init.normal_(p, std=0.1)
    if swap:
        double, single = swap_counts(swap)
        model.swapper = SwapGroup(
            [
                BlockSwap(model.double_blocks, double, CPU, trainable=trainable),
                BlockSwap(model.single_blocks, single, CPU, trainable=trainable),
            ]
        )
    return model


def transformer(swap: int = 0) -> FluxTransformer:
    """With a LoRA on every Linear, those before the blocks too."""
    model = bare(swap, trainable=False)
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


def updates(model: nn.Module, kind: str) -> Update:
    """An optimizer of each parameter by itself; the update uses up the gradients."""
    makes = {"SGD": lambda p: torch.optim.SGD([p], lr=0.1, momentum=0.9), "AdamW": lambda p: torch.optim.AdamW([p])}
    optimizers = {p: makes[kind](p) for p in model.parameters()}

    def update(parameters: Iterable[nn.Parameter]) -> None:
        for p in parameters:
            optimizers[p].step()
            p.grad = None

    return update


def swapped_blocks_of(model: nn.Module) -> list[nn.Module]:
    swapper = getattr(model, "swapper", None)
    return list(swapper._swap_of) if isinstance(swapper, SwapGroup) else []


def update_by_block(model: nn.Module, update: Update) -> None:
    """After backward: resident blocks immediately, then each swapped block while it is on the device."""
    blocks = swapped_blocks_of(model)
    of_moving = {p for block in blocks for p in block.parameters()}
    update(p for p in model.parameters() if p not in of_moving)
    for block in blocks:
        assert isinstance(model.swapper, SwapGroup)
        with model.swapper.resident(block):
            update(block.parameters())
            model.swapper.changed(block)


def update_in_backward(model: nn.Module, update: Update) -> None:
    """Each parameter as soon as it has its gradient, from now on and as long as the caller keeps both."""
    kept, weak = weakref.ref(model), weakref.ref(update)  # objects referenced by a parameter's hook are never collected
    block_of = {p: number for number, block in enumerate(swapped_blocks_of(model)) for p in block.parameters()}

    def hook(number: int | None) -> Callable[[Tensor], None]:
        def learned(p: Tensor) -> None:
            model, update = kept(), weak()
            assert model
            assert update
            assert isinstance(p, nn.Parameter)
            update([p])
            if number is not None:
                assert isinstance(model.swapper, SwapGroup)
                model.swapper.changed(swapped_blocks_of(model)[number])

        return learned

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(hook(block_of.get(p)))
