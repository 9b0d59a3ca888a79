"""Frozen blocks that take turns on the device: main memory keeps them, and each is brought in before it is needed.

Weights only ever go from main memory to the device, on a stream of their own. A block has one place on the device for
ever, which it shares with other blocks: addresses do not change, so what autograd and the compiler remember holds.
"""

from __future__ import annotations

import contextlib
import logging
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

logger = logging.getLogger(__name__)

SLOTS = 2
"""Places that moving blocks share: in one a block computes while the next one comes into the other."""
ALIGNMENT = 256
"""Bytes; what kernels ask of the start of a tensor."""

PIECE = 64 * 2**20
"""Bytes of a block that are sent ahead at once."""

Hidden = tuple[Tensor, ...]


def swap_counts(blocks_to_swap: int) -> tuple[int, int]:
    """How many double and single blocks stay off the device; two single blocks are as large as one double block."""
    double = blocks_to_swap // 2
    return double, (blocks_to_swap - double) * 2


def most_swapped(double: int, single: int) -> int:
    """The largest blocks_to_swap of a model with so many blocks: 35 for FLUX.1."""
    fits = (swap_counts(n) for n in range(double + single + 1))
    return max((n for n, (d, s) in enumerate(fits) if d <= double - SLOTS and s <= single - SLOTS), default=0)


def moving(blocks: int, count: int, slots: int = SLOTS) -> list[int]:
    """Which blocks take turns so that `count` are always off the device: evenly spread, so that others compute
    while they travel."""
    if not count:
        return []
    turns = count + slots
    assert turns <= blocks, f"{count} of {blocks} blocks cannot be off the device"
    return [(2 * i + 1) * blocks // (2 * turns) for i in range(turns)]


@dataclass(frozen=True, kw_only=True)
class _Layout:
    """The frozen tensors of a block as bytes, one after the other."""

    places: list[tuple[Tensor, int]]
    """Tensor, where it begins."""
    size: int

    @classmethod
    def of(cls, block: nn.Module) -> _Layout:
        places, end = [], 0
        for tensor in (*block.parameters(), *block.buffers()):
            if not tensor.requires_grad:
                places.append((tensor, end))
                end += -(-tensor.numel() * tensor.element_size() // ALIGNMENT) * ALIGNMENT
        return cls(places=places, size=end)

    @torch.no_grad()
    def copied(self, device: torch.device) -> Tensor:
        """The block's bytes in main memory; each tensor remembers its value there."""
        host = _host_bytes(self.size, device)
        for tensor, start in self.places:
            tensor.held_value = _part(host, start, tensor)  # type: ignore[attr-defined]
            tensor.held_value.copy_(tensor)  # type: ignore[attr-defined]
        return host

    def lie_in(self, slot: Tensor) -> None:
        """Make the block's tensors views of `slot`, for ever."""
        for tensor, start in self.places:
            tensor.data = _part(slot, start, tensor)


def held_value(tensor: Tensor) -> Tensor:
    """What a weight is: of a moving block's the values in main memory, else the tensor itself."""
    return getattr(tensor, "held_value", tensor)


def _complete(block: nn.Module, state: dict[str, Tensor], prefix: str, _: object) -> None:
    """state_dict() gives what main memory holds: on the device another block may lie there."""
    for name, tensor in (*block.named_parameters(), *block.named_buffers()):
        if prefix + name in state:
            state[prefix + name] = held_value(tensor).detach()


class BlockSwap:
    """The blocks of one kind. `count` of them are off the device at any time; the others lie there."""

    def __init__(
        self,
        blocks: Sequence[nn.Module],
        count: int,
        device: torch.device,
        slots: int = SLOTS,
        stream: torch.cuda.Stream | None = None,
    ):
        chosen = moving(len(blocks), count, slots)
        self.blocks = [blocks[i] for i in chosen]
        self.stream = stream or (torch.cuda.Stream(device) if device.type == "cuda" else None)
        size = max((_Layout.of(block).size for block in self.blocks), default=0)
        self._slots = [torch.empty(size, dtype=torch.uint8, device=device) for _ in self.blocks[:slots]]
        self._held: list[Tensor] = []
        """Each block's bytes in main memory."""
        for number, block in enumerate(self.blocks):
            layout = _Layout.of(block)
            self._held.append(layout.copied(device))
            layout.lie_in(self._slots[number % slots])
            block.register_state_dict_post_hook(_complete)
        for number, block in enumerate(blocks):
            if number not in chosen:  # what moves lies in its slot, and must not be copied out of it
                block.to(device)
        if self.stream:
            self._left = [torch.cuda.Event() for _ in self._slots]
            self._come = [torch.cuda.Event() for _ in self._slots]
        self._waiting: dict[int, list[Tensor]] = {}
        """What lies on the device already of blocks that have no slot yet, from their first byte on."""
        self.spare: Spare | None = None
        self._within: list[int | None] = [None] * len(self._slots)
        for number in range(len(self._slots)):
            self._load(number)

    def bring(self, number: int) -> None:
        """What is computed from now on finds the weights of moving block `number`."""
        slot = number % len(self._slots)
        if self._within[slot] != number:
            self._load(number)
        if self.stream:
            torch.cuda.current_stream(self.stream.device).wait_event(self._come[slot])

    def done(self, number: int, then: int) -> None:
        """What was computed so far was the last use of block `number` for now; let `then` take its place."""
        if 0 <= then < len(self._held) and self._within[then % len(self._slots)] != then:
            self._load(then)

    def _load(self, number: int) -> None:
        """Copy a block's weights into its slot as soon as the work queued so far has left it."""
        slot, host = number % len(self._slots), self._held[number]
        target = self._slots[slot][: len(host)]
        self._within[slot] = number
        if self.stream:
            self._left[slot].record(torch.cuda.current_stream(self.stream.device))
            self.stream.wait_event(self._left[slot])
        with torch.cuda.stream(self.stream):
            begin = 0
            for piece in self._waiting.pop(number, ()):
                target[begin : begin + len(piece)].copy_(piece, non_blocking=True)
                begin += len(piece)
            target[begin:].copy_(host[begin:], non_blocking=True)
            if self.stream:
                self._come[slot].record(self.stream)

    def send_ahead(self, room: int) -> None:
        """Bring bytes of the blocks that the next forward loads first onto the device, into memory that is free now.

        A forward takes less than half of the time of a step with checkpointing, but half of the copies: they would be
        late there, while they have time in backward.
        """
        for number in range(len(self._slots), len(self._held)):
            if self._within[number % len(self._slots)] == number:
                continue
            pieces, host = self._waiting.setdefault(number, []), self._held[number]
            begin = sum(len(piece) for piece in pieces)
            while begin < len(host):
                piece = host[begin : begin + PIECE]
                if len(piece) > room:
                    return
                pieces.append(self._on_device(piece))
                begin, room = begin + len(piece), room - len(piece)

    def _on_device(self, piece: Tensor) -> Tensor:
        there = torch.empty_like(piece, device=self._slots[0].device)
        if self.stream:  # whoever had this memory before may still be at work
            self.stream.wait_stream(torch.cuda.current_stream(self.stream.device))
            there.record_stream(self.stream)
        with torch.cuda.stream(self.stream):
            return there.copy_(piece, non_blocking=True)

    def enter(self, number: int, hidden: Hidden) -> Hidden:
        """Before block `number` computes; in backward this is the last of it."""
        self.bring(number)
        return _Enter.apply(self, number, *hidden) if _learns(hidden) else hidden

    def leave(self, number: int, hidden: Hidden) -> Hidden:
        """After block `number`; in backward this comes first. The last blocks stay where backward will follow."""
        after, learns = number + len(self._slots), _learns(hidden)
        if not learns and after >= len(self._held):
            after = number % len(self._slots)  # the next forward begins with it
        self.done(number, after)
        return _Leave.apply(self, number, *hidden) if learns else hidden


def _learns(hidden: Hidden) -> bool:
    return torch.is_grad_enabled() and any(h.requires_grad for h in hidden)


def _same(hidden: Hidden) -> Hidden:
    """The same values as tensors of their own; a view would cost compiled blocks behind it another graph."""
    return tuple(torch.ops.aten._unsafe_view(h, h.shape) for h in hidden)


class _Beside(torch.autograd.Function):
    """Identity beside block `number`, to be called in backward."""

    @staticmethod
    def forward(ctx: Any, swap: BlockSwap, number: int, *hidden: Tensor) -> Hidden:  # type: ignore[override]
        ctx.swap, ctx.number = swap, number
        ctx.set_materialize_grads(False)
        return _same(hidden)


class _Enter(_Beside):
    """Identity; its backward comes when the block's is done."""

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        ctx.swap.done(ctx.number, ctx.number - len(ctx.swap._slots))
        if ctx.swap.spare:
            ctx.swap.spare.use()
        return None, None, *grads


class _Leave(_Beside):
    """Identity; its backward comes before the block's."""

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        if ctx.swap.spare:
            ctx.swap.spare.look()
        ctx.swap.bring(ctx.number)
        return None, None, *grads


class Spare:
    """Memory that a step has at its peak and not at its end: there the next forward's first blocks can wait."""

    def __init__(self, first: BlockSwap, allocated: Callable[[], int]):
        self._first, self._allocated, self._most = first, allocated, 0
        """`first` are the blocks that a forward begins with."""

    def look(self) -> None:
        """Before a block's backward: how much is held now, checkpoints of the blocks before it and all."""
        self._most = max(self._most, self._allocated())

    def use(self) -> None:
        """After it, when what it needed is given back."""
        self._first.send_ahead(self._most - self._allocated())


class SwapGroup:
    """Several BlockSwaps as the one swapper of a model, in the order of its forward."""

    def __init__(self, swaps: Iterable[BlockSwap]):
        swaps = list(swaps)
        first = next((swap for swap in swaps if swap.blocks), None)
        if first and (stream := first.stream):
            spare = Spare(first, lambda: torch.cuda.memory_allocated(stream.device))
            for swap in swaps:
                swap.spare = spare
        self._turns = {block: (swap, number) for swap in swaps for number, block in enumerate(swap.blocks)}

    def __len__(self) -> int:
        return len(self._turns)

    def enter(self, block: nn.Module, *hidden: Tensor) -> Hidden:
        swap, number = self._turns.get(block, (None, 0))
        return swap.enter(number, hidden) if swap else hidden

    def leave(self, block: nn.Module, *hidden: Tensor) -> Hidden:
        swap, number = self._turns.get(block, (None, 0))
        return swap.leave(number, hidden) if swap else hidden


def _part(flat: Tensor, start: int, like: Tensor) -> Tensor:
    """The bytes from `start` on, as a tensor of the shape and dtype of `like`."""
    return flat[start : start + like.numel() * like.element_size()].view(like.dtype).view(like.shape)


_unpinned = False


def _host_bytes(size: int, device: torch.device) -> Tensor:
    """Main memory that the device can read by itself. Registered rather than taken from PyTorch's pinned memory, which
    rounds up to powers of two."""
    global _unpinned
    buffer = torch.empty(size, dtype=torch.uint8)
    if device.type != "cuda" or not size:
        return buffer
    cudart: Any = torch.cuda.cudart()
    cudart.cudaHostRegister(buffer.data_ptr(), size, 1)  # for every device
    if buffer.is_pinned():
        weakref.finalize(buffer, cudart.cudaHostUnregister, buffer.data_ptr()).atexit = False
    elif not _unpinned:
        _unpinned = True
        with contextlib.suppress(RuntimeError):
            torch.zeros(1, device=device)  # takes note of the error, which is mended here
        logger.warning("blocks_to_swap: main memory cannot be pinned, so that blocks come slowly; is there enough?")
    return buffer
