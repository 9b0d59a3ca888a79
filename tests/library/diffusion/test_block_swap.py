"""Swapped blocks compute and train like resident ones, eager, compiled and checkpointed."""

import functools
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

from sd_scripts.families.cards.stream_memory import swap_counts
from sd_scripts.families.common.family import Components
from sd_scripts.families.common.placing import placement_of
from sd_scripts.families.flux.load import BLOCK_LISTS
from sd_scripts.families.flux.model import FluxTransformer
from sd_scripts.library.diffusion import block_swap
from sd_scripts.library.diffusion.block_swap import BlockSwap, PeakHeadroom, SwapGroup, host_value, swapped_blocks
from sd_scripts.library.diffusion.checkpointing import checkpoint_function
from sd_scripts.options.networks.network import NetworkOptions
from sd_scripts.settings.settings import Settings
from tests.support.scripts import FLUX_FULL, FLUX_LORA
from tests.support.swap import (
    CPU,
    SHAPE,
    SWAP,
    bare,
    gradients,
    run,
    transformer,
    update_by_block,
    update_in_backward,
    updates,
)

CHECKPOINT = checkpoint_function(NetworkOptions())


def assert_equal(ours: tuple[Tensor, dict[str, Tensor]], wanted: tuple[Tensor, dict[str, Tensor]]) -> None:
    assert torch.equal(ours[0], wanted[0])
    assert ours[1].keys() == wanted[1].keys()
    assert all(torch.equal(ours[1][name], wanted[1][name]) for name in wanted[1])


@functools.cache
def resident(seed: int = 2) -> tuple[Tensor, dict[str, Tensor]]:
    """What resident blocks give. Do not change it."""
    return gradients(transformer(), seed)


pytestmark = [
    pytest.mark.run,
    pytest.mark.usefixtures("no_graphs"),
]


def test_flux_swaps_up_to_thirty_five_blocks() -> None:
    assert BLOCK_LISTS.most(19, 38) == 35
    assert swap_counts(35) == (17, 36)
    assert BLOCK_LISTS.most(2, 2) == 0
    assert BLOCK_LISTS.most(SHAPE.double_blocks, SHAPE.single_blocks) == SWAP


def test_moving_blocks_are_spread_evenly() -> None:
    assert swapped_blocks(38, 36) == list(range(38))
    assert swapped_blocks(19, 0) == []
    chosen = swapped_blocks(19, 9)
    assert len(chosen) == 11
    assert {b - a for a, b in pairwise(chosen)} == {1, 2}


@pytest.mark.parametrize("swap", [1, 3, SWAP])
def test_swapping_changes_neither_outputs_nor_gradients(swap: int) -> None:
    assert_equal(gradients(transformer(swap)), resident())


def test_a_slot_may_contain_a_different_block_until_one_is_requested() -> None:
    """That the tests above can fail: more blocks than places, and each place is one block's at a time."""
    model = transformer(SWAP)
    weights = [block.linear2.weight for block in model.single_blocks]
    assert len({w.data_ptr() for w in weights}) == len(weights) - 6
    stale = [w for w in weights if not torch.equal(w, host_value(w))]
    assert len(stale) == 6


@pytest.mark.parametrize("offload", [False, True])
def test_swapping_works_with_gradient_checkpointing(offload: bool) -> None:
    swapped = transformer(SWAP)
    swapped.enable_gradient_checkpointing(CHECKPOINT, offload=offload)
    assert_equal(gradients(swapped), resident())


def test_steps_images_and_failures_in_any_order() -> None:
    swapped, plain = transformer(SWAP), transformer()
    assert_equal(gradients(swapped), gradients(plain))
    with torch.no_grad():
        assert torch.equal(run(swapped), run(plain))
        assert torch.equal(run(swapped, 3), run(plain, 3))
    assert_equal(gradients(swapped, 4), gradients(plain, 4))
    run(swapped)  # whose backward never comes
    assert_equal(gradients(swapped, 5), gradients(plain, 5))
    middle = swapped.single_blocks[3]
    middle.forward, healthy = _fails, middle.forward
    with pytest.raises(RuntimeError, match="half-way"):
        run(swapped)
    middle.forward = healthy
    assert_equal(gradients(swapped, 6), gradients(plain, 6))


@pytest.mark.parametrize("room", [0, 300, 70_000, 10**9])
def test_prefetched_bytes_change_nothing(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever backward leaves free: nothing, a part of a block, several blocks, everything."""
    monkeypatch.setattr(block_swap, "CHUNK_BYTES", 256)
    swapped = transformer(SWAP)
    swaps = {id(swap): swap for swap, _ in swapped.swapper._swap_of.values()}.values()  # type: ignore[union-attr]
    first = next(iter(swaps))
    memory = iter([room, 0] * 1000)
    for swap in swaps:
        swap.headroom = PeakHeadroom(first, lambda: next(memory))
    for seed in (2, 3, 4):
        assert_equal(gradients(swapped, seed), resident(seed))
        prefetched = sum(len(chunk) for chunks in first._prefetched.values() for chunk in chunks)
        assert (prefetched > 0) == (room > 255)
    wanted, _ = resident()
    with torch.no_grad():
        assert torch.equal(run(swapped), wanted)


def _fails(*_: Any) -> Tensor:
    raise RuntimeError("half-way")


def test_gradients_of_several_batches_add_up() -> None:
    sums = []
    for model in (transformer(SWAP), transformer()):
        for seed in (2, 3):
            run(model, seed).square().mean().backward()
        sums.append({n: p.grad for n, p in model.named_parameters() if p.grad is not None})
    assert all(torch.equal(sums[0][name], sums[1][name]) for name in sums[1])


@pytest.mark.deep
@pytest.mark.parametrize(("checkpointing", "backend"), [(False, "aot_eager"), (True, "eager")])
def test_swapped_blocks_share_the_graphs_of_resident_ones(checkpointing: bool, backend: str) -> None:
    """AOTAutograd saves weights for the backward pass, unless blocks are computed again in it."""
    eager, compiled = transformer(), transformer(SWAP)
    for block in (*compiled.double_blocks, *compiled.single_blocks):
        block.compile(backend=backend, dynamic=False)
    for model in (eager, compiled) if checkpointing else ():
        model.enable_gradient_checkpointing(CHECKPOINT)
    for seed in (2, 3):
        ours, wanted = gradients(compiled, seed), gradients(eager, seed)
        torch.testing.assert_close(ours[0], wanted[0], rtol=1e-4, atol=1e-5)
        for name in wanted[1]:
            torch.testing.assert_close(ours[1][name], wanted[1][name], rtol=1e-3, atol=1e-6)
    assert counters["stats"]["unique_graphs"] == 2
    assert not counters["graph_break"]


def test_the_state_dict_has_every_blocks_own_weights() -> None:
    swapped, plain = transformer(SWAP).state_dict(), transformer().state_dict()
    assert swapped.keys() == plain.keys()
    assert all(torch.equal(swapped[name], plain[name]) for name in plain)


def test_only_frozen_weights_are_swapped() -> None:
    torch.manual_seed(0)
    blocks = [nn.Linear(4, 4) for _ in range(4)]
    for block in blocks:
        block.weight.requires_grad_(False)
    swap = BlockSwap(blocks, 2, CPU)
    assert len({block.weight.data_ptr() for block in swap.blocks}) == 2
    assert len({block.bias.data_ptr() for block in swap.blocks}) == 4


class Learner:
    """All of a small transformer in training. Fused: updated within backward."""

    def __init__(self, swap: int, kind: str = "AdamW", *, fused: bool, checkpointing: bool = False):
        self.model, self.fused = bare(swap, trainable=True), fused
        self.update = updates(self.model, kind)
        if checkpointing:
            self.model.enable_gradient_checkpointing(CHECKPOINT)
        if fused:
            update_in_backward(self.model, self.update)

    @property
    def swapper(self) -> SwapGroup:
        assert isinstance(self.model.swapper, SwapGroup)
        return self.model.swapper

    def step(self, *seeds: int) -> Tensor:
        """One update by the gradients of this many batches; returns the last one's output."""
        for seed in seeds:
            out = run(self.model, seed)
            out.square().mean().backward()
        if not self.fused:
            update_by_block(self.model, self.update)
        return out.detach()


def assert_same_weights(ours: FluxTransformer, wanted: FluxTransformer) -> None:
    mine, theirs = ours.state_dict(), wanted.state_dict()
    assert mine.keys() == theirs.keys()
    assert [name for name in theirs if not torch.equal(mine[name], theirs[name])] == []


@pytest.mark.parametrize(
    ("swap", "kind", "checkpointing", "fused"),
    [(1, "AdamW", False, False), (3, "SGD", True, True), (SWAP, "AdamW", True, False), (SWAP, "AdamW", False, True)],
)
def test_swapped_blocks_train_like_resident_ones(swap: int, kind: str, checkpointing: bool, fused: bool) -> None:
    """Bit for bit over several steps, with an image between."""
    ours, wanted = (Learner(s, kind, fused=fused, checkpointing=checkpointing) for s in (swap, 0))
    before = run(wanted.model)
    for seed in (2, 3):
        assert torch.equal(ours.step(seed), wanted.step(seed))
        with torch.no_grad():
            assert torch.equal(run(ours.model), run(wanted.model))
        assert_same_weights(ours.model, wanted.model)
    assert not torch.equal(run(wanted.model), before)


def test_gradients_of_several_batches_give_one_update() -> None:
    ours, wanted = Learner(SWAP, fused=False), Learner(0, fused=False)
    for seeds in ((2, 3), (4, 5, 6)):
        assert torch.equal(ours.step(*seeds), wanted.step(*seeds))
    assert_same_weights(ours.model, wanted.model)


@pytest.mark.deep
@pytest.mark.parametrize(("fused", "backend"), [(False, "eager"), (True, "aot_eager")])
def test_swapped_blocks_train_when_compiled(fused: bool, backend: str) -> None:
    """One graph for each kind of block, wherever it lies."""
    learners = [Learner(swap, "SGD", fused=fused) for swap in (SWAP, 0)]
    for learner in learners:
        for block in (*learner.model.double_blocks, *learner.model.single_blocks):
            block.compile(backend=backend, dynamic=False)
        for seed in (2, 3):
            learner.step(seed)
    assert_same_weights(learners[0].model, learners[1].model)
    assert counters["stats"]["unique_graphs"] == 2
    assert not counters["graph_break"]


def test_blocks_change_in_any_order_and_are_visible_immediately() -> None:
    ours, wanted = bare(SWAP, trainable=True), bare(0, trainable=True)
    swapper = ours.swapper
    assert isinstance(swapper, SwapGroup)
    assert len(swapper) == SHAPE.double_blocks + SHAPE.single_blocks
    for number in (7, 0, 3, 4, 2):
        block = ours.single_blocks[number]
        with swapper.resident(block), torch.no_grad():
            block.linear2.weight.mul_(number)
            swapper.changed(block)
            assert torch.equal(host_value(block.linear2.weight), block.linear2.weight)  # main memory has it already
        with torch.no_grad():
            wanted.single_blocks[number].linear2.weight.mul_(number)
    assert_same_weights(ours, wanted)


@pytest.mark.parametrize("trainable", [False, True])
def test_blocks_return_to_a_transformer_that_is_trained(trainable: bool) -> None:
    model = FluxTransformer(SHAPE).requires_grad_(trainable)
    settings = Settings((FLUX_FULL if trainable else FLUX_LORA), {"blocks_to_swap": SWAP})
    BLOCK_LISTS.place(
        Components(denoiser=model, vae=nn.Identity(), text_encoders=[], tokenizers=[], source=""),
        placement_of(settings),
        CPU,
    )
    assert isinstance(model.swapper, SwapGroup)
    assert len(model.swapper) == SHAPE.double_blocks + SHAPE.single_blocks
    assert len({block.linear2.weight.data_ptr() for block in model.single_blocks}) == 2
    block = model.double_blocks[4]
    with model.swapper.resident(block), torch.no_grad():
        block.img_mlp[0].weight.fill_(3.0)
        if trainable:
            model.swapper.changed(block)
    assert bool((model.state_dict()["double_blocks.4.img_mlp.0.weight"] == 3.0).all()) == trainable


def test_only_a_block_on_the_device_can_have_changed() -> None:
    swapper = bare(SWAP, trainable=True).swapper
    assert isinstance(swapper, SwapGroup)
    with pytest.raises(AssertionError, match="while it is resident"):
        swapper.changed(list(swapper._swap_of)[4])


def test_training_continues_from_values_written_into_main_memory() -> None:
    """As resuming does it, whatever lies on the device then."""
    ours, wanted = Learner(SWAP, "SGD", fused=False), Learner(0, "SGD", fused=False)
    wanted.step(2)
    ours.step(2)
    saved = {name: p.detach().clone() for name, p in wanted.model.named_parameters()}
    update_by_block(ours.model, _forgets)
    with torch.no_grad():
        assert not torch.equal(run(ours.model), run(wanted.model))
        for name, p in ours.model.named_parameters():
            host_value(p).copy_(saved[name])
    ours.swapper.refill()
    assert torch.equal(ours.step(3), wanted.step(3))
    assert_same_weights(ours.model, wanted.model)


@torch.no_grad()
def _forgets(parameters: Iterable[nn.Parameter]) -> None:
    for p in parameters:
        p.zero_()


def test_a_failed_backward_leaves_every_block_whole() -> None:
    """Blocks updated by then are new, the others old, and none is lost with its slot."""
    ours, wanted = Learner(SWAP, "SGD", fused=True), Learner(0, "SGD", fused=True)
    for learner in (ours, wanted):
        handle = learner.model.single_blocks[2].modulation.lin.weight.register_hook(_fails)
        with pytest.raises(RuntimeError, match="half-way"):
            learner.step(2)
        handle.remove()
        for p in learner.model.parameters():
            p.grad = None
    assert torch.equal(run(ours.model), run(wanted.model))
    assert_same_weights(ours.model, wanted.model)
    assert torch.equal(ours.step(3), wanted.step(3))
    assert_same_weights(ours.model, wanted.model)
