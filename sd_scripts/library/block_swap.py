"""Blocks that take turns on the device: main memory keeps them, and each is brought in before it is needed.

Frozen weights only ever go from main memory to the device, on a stream of their own; those that learn come back on
another. A block has one place on the device for ever, which it shares with other blocks: addresses do not change, so
what autograd and the compiler remember holds.
"""

from __future__ import annotations

import contextlib
import logging
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

logger = logging.getLogger(__name__)

SLOTS = 2
"""Places that moving blocks share: in one a block computes while the next one comes into the other."""
ALIGNMENT = 256
"""Bytes; what kernels ask of the start of a tensor."""

CHUNK_BYTES = 64 * 2**20
"""Bytes of a block that are sent ahead at once."""

Hidden = tuple[Tensor, ...]


def swap_counts(blocks_to_swap: int) -> tuple[int, int]:
    """How many double and single blocks stay off the device; two single blocks are as large as one double block."""
    double = blocks_to_swap // 2
    return double, (blocks_to_swap - double) * 2


def max_blocks_to_swap(double: int, single: int) -> int:
    """The largest blocks_to_swap of a model with so many blocks: 35 for FLUX.1."""
    fits = (swap_counts(n) for n in range(double + single + 1))
    return max((n for n, (d, s) in enumerate(fits) if d <= double - SLOTS and s <= single - SLOTS), default=0)


def swapped_blocks(blocks: int, count: int, slots: int = SLOTS) -> list[int]:
    """Which blocks take turns so that `count` are always off the device: evenly spread, so that others compute
    while they travel."""
    if not count:
        return []
    turns = count + slots
    assert turns <= blocks, f"{count} of {blocks} blocks cannot be off the device"
    return [(2 * i + 1) * blocks // (2 * turns) for i in range(turns)]


@dataclass(frozen=True, kw_only=True)
class CopyStreams:
    """A stream for each direction, so that they do not wait for each other; on the CPU copies are made at once."""

    to_device: torch.cuda.Stream | None = None
    to_host: torch.cuda.Stream | None = None

    @classmethod
    def of(cls, device: torch.device) -> CopyStreams:
        return (
            cls(to_device=torch.cuda.Stream(device), to_host=torch.cuda.Stream(device))
            if device.type == "cuda"
            else cls()
        )


class _Slot:
    """A place on the device that blocks share, and the copies into it and out of it."""

    def __init__(self, size: int, device: torch.device, streams: CopyStreams):
        self.bytes = torch.empty(size, dtype=torch.uint8, device=device)
        self.block_number: int | None = None
        """Which block lies there, or is on its way."""
        self.changed = False
        """Whether that block is newer here than in main memory."""
        self._streams, self._host = streams, self.bytes[:0]
        if streams.to_device:
            self._last_use, self._loaded, self._written_back = (torch.cuda.Event() for _ in range(3))

    def load(self, number: int, host: Tensor, chunks: Sequence[Tensor] = ()) -> None:
        """Copy a block in as soon as the work queued so far has left it. `chunks`: its first bytes, where they lie on
        the device already."""
        self.write_back()
        self.block_number, self._host = number, host
        target, to_device = self.bytes[: len(host)], self._streams.to_device
        if to_device:
            self._last_use.record(torch.cuda.current_stream(to_device.device))
            to_device.wait_event(self._last_use)
            to_device.wait_event(self._written_back)
        with torch.cuda.stream(to_device):
            begin = 0
            for chunk in chunks:
                target[begin : begin + len(chunk)].copy_(chunk, non_blocking=True)
                begin += len(chunk)
            target[begin:].copy_(host[begin:], non_blocking=True)
            if to_device:
                self._loaded.record(to_device)

    def wait(self) -> None:
        """What is computed from now on finds the block."""
        if to_device := self._streams.to_device:
            torch.cuda.current_stream(to_device.device).wait_event(self._loaded)

    def write_back(self) -> None:
        """Send what the work queued so far has changed to main memory."""
        if not self.changed:
            return
        self.changed, to_host = False, self._streams.to_host
        if to_host:
            to_host.wait_stream(torch.cuda.current_stream(to_host.device))
        with torch.cuda.stream(to_host):
            self._host.copy_(self.bytes[: len(self._host)], non_blocking=True)
            if to_host:
                self._written_back.record(to_host)

    def synchronize(self) -> None:
        """Wait until main memory holds whatever changed here."""
        self.write_back()
        if self._streams.to_host:
            self._written_back.synchronize()


@dataclass(frozen=True, kw_only=True)
class _HostCopy:
    """A tensor's value in main memory, and the slot that changes it."""

    value: Tensor
    slot: _Slot


@dataclass(frozen=True, kw_only=True)
class _Layout:
    """The tensors of a block that move, as bytes, one after the other."""

    offsets: list[tuple[Tensor, int]]
    """Tensor, where it begins."""
    size: int

    @classmethod
    def of(cls, block: nn.Module, trainable: bool) -> _Layout:
        offsets, end = [], 0
        for tensor in (*block.parameters(), *block.buffers()):
            if trainable or not tensor.requires_grad:
                offsets.append((tensor, end))
                end += -(-tensor.numel() * tensor.element_size() // ALIGNMENT) * ALIGNMENT
        return cls(offsets=offsets, size=end)

    @torch.no_grad()
    def move_to_host(self, slot: _Slot) -> Tensor:
        """Copy the block's bytes to main memory, and make its tensors views of the slot for ever. Each remembers
        where its value is."""
        host = _host_bytes(self.size, slot.bytes.device)
        for tensor, start in self.offsets:
            value = _view_of(host, start, tensor).copy_(tensor)
            tensor.data = _view_of(slot.bytes, start, tensor)
            tensor.host_copy = _HostCopy(value=value, slot=slot)  # type: ignore[attr-defined]
        return host


def host_value(tensor: Tensor) -> Tensor:
    """What a weight is: of a moving block's the values in main memory, else the tensor itself.

    Waits for what has changed on the device. Who writes into it calls `refill` of the swapper then.
    """
    host_copy: _HostCopy | None = getattr(tensor, "host_copy", None)
    if host_copy is None:
        return tensor
    host_copy.slot.synchronize()
    return host_copy.value


def _state_dict_hook(block: nn.Module, state: dict[str, Tensor], prefix: str, _: object) -> None:
    """state_dict() gives what main memory holds: on the device another block may lie there."""
    for name, tensor in (*block.named_parameters(), *block.named_buffers()):
        if prefix + name in state:
            state[prefix + name] = host_value(tensor).detach()


class BlockSwap:
    """The blocks of one kind. `count` of them are off the device at any time; the others lie there.

    Where a block `trainable`, all of its tensors move, and what an optimizer changed in it comes back (`changed`);
    otherwise tensors that require a gradient, such as those of a LoRA, stay.
    """

    def __init__(
        self,
        blocks: Sequence[nn.Module],
        count: int,
        device: torch.device,
        slots: int = SLOTS,
        streams: CopyStreams | None = None,
        *,
        trainable: bool = False,
    ):
        chosen = swapped_blocks(len(blocks), count, slots)
        self.blocks, self.trainable = [blocks[i] for i in chosen], trainable
        self.streams = streams or CopyStreams.of(device)
        layouts = [_Layout.of(block, trainable) for block in self.blocks]
        size = max((layout.size for layout in layouts), default=0)
        self._slots = [_Slot(size, device, self.streams) for _ in self.blocks[:slots]]
        self._host_copies: list[Tensor] = []
        """Each block's bytes in main memory."""
        for number, (block, layout) in enumerate(zip(self.blocks, layouts, strict=True)):
            self._host_copies.append(layout.move_to_host(self._slot(number)))
            block.register_state_dict_post_hook(_state_dict_hook)
        for number, block in enumerate(blocks):
            if number not in chosen:  # what moves lies in its slot, and must not be copied out of it
                block.to(device)
        self._prefetched: dict[int, list[Tensor]] = {}
        """What lies on the device already of blocks that have no slot yet, from their first byte on."""
        self.headroom: PeakHeadroom | None = None
        for number in range(len(self._slots)):
            self._load(number)

    def _slot(self, number: int) -> _Slot:
        return self._slots[number % len(self._slots)]

    def _load(self, number: int) -> None:
        self._slot(number).load(number, self._host_copies[number], self._prefetched.pop(number, ()))

    def load(self, number: int) -> None:
        """What is computed from now on finds the weights of moving block `number`."""
        if self._slot(number).block_number != number:
            self._load(number)
        self._slot(number).wait()

    def release(self, number: int, next_number: int) -> None:
        """What was computed so far was the last use of block `number` for now; let `next_number` take its place."""
        self._slot(number).write_back()
        if 0 <= next_number < len(self._host_copies) and self._slot(next_number).block_number != next_number:
            self._load(next_number)

    def changed(self, number: int) -> None:
        """An optimizer has changed block `number`, which lies on the device: main memory will have it so too."""
        assert self._slot(number).block_number == number, "a block changes only while it lies on the device"
        self._slot(number).changed = True

    @contextlib.contextmanager
    def resident(self, number: int) -> Iterator[None]:
        """Block `number` lies on the device meanwhile; cheapest where they come in the order of forward."""
        self.load(number)
        yield
        self.release(number, self._next_number(number))

    def synchronize(self) -> None:
        """Wait until main memory holds every block as it is."""
        for slot in self._slots:
            slot.synchronize()

    def refill(self) -> None:
        """Fill the slots anew: main memory has other values now."""
        self._prefetched.clear()
        for slot in self._slots:
            assert slot.block_number is not None
            self._load(slot.block_number)

    def _next_number(self, number: int) -> int:
        """The block that takes its place on the way through all of them, which ends where the next forward begins."""
        after = number + len(self._slots)
        return after if after < len(self._host_copies) else number % len(self._slots)

    def prefetch(self, room: int) -> None:
        """Bring bytes of the blocks that the next forward loads first onto the device, into memory that is free now.

        A forward takes less than half of the time of a step with checkpointing, but half of the copies: they would be
        late there, while they have time in backward.
        """
        for number in range(len(self._slots), len(self._host_copies)):
            if self._slot(number).block_number == number:
                continue
            chunks, host = self._prefetched.setdefault(number, []), self._host_copies[number]
            begin = sum(len(chunk) for chunk in chunks)
            while begin < len(host):
                chunk = host[begin : begin + CHUNK_BYTES]
                if len(chunk) > room:
                    return
                chunks.append(self._on_device(chunk))
                begin, room = begin + len(chunk), room - len(chunk)

    def _on_device(self, chunk: Tensor) -> Tensor:
        to_device, stream = torch.empty_like(chunk, device=self._slots[0].bytes.device), self.streams.to_device
        if stream:  # whoever had this memory before may still be at work
            stream.wait_stream(torch.cuda.current_stream(stream.device))
            to_device.record_stream(stream)
        with torch.cuda.stream(stream):
            return to_device.copy_(chunk, non_blocking=True)

    def enter(self, number: int, hidden: Hidden) -> Hidden:
        """Before block `number` computes; in backward this is the last of it."""
        self.load(number)
        return _Enter.apply(self, number, *hidden) if _needs_backward(hidden) else hidden

    def leave(self, number: int, hidden: Hidden) -> Hidden:
        """After block `number`; in backward this comes first. The last blocks stay where backward will follow."""
        returns = _needs_backward(hidden)
        self.release(number, number + len(self._slots) if returns else self._next_number(number))
        return _Leave.apply(self, number, *hidden) if returns else hidden


def _needs_backward(hidden: Hidden) -> bool:
    return torch.is_grad_enabled() and any(h.requires_grad for h in hidden)


def _copies_of(hidden: Hidden) -> Hidden:
    """The same values as tensors of their own; a view would cost compiled blocks behind it another graph."""
    return tuple(torch.ops.aten._unsafe_view(h, h.shape) for h in hidden)


class _SwapHook(torch.autograd.Function):
    """Identity beside block `number`, to be called in backward."""

    @staticmethod
    def forward(ctx: Any, swap: BlockSwap, number: int, *hidden: Tensor) -> Hidden:  # type: ignore[override]
        ctx.swap, ctx.number = swap, number
        ctx.set_materialize_grads(False)
        return _copies_of(hidden)


class _Enter(_SwapHook):
    """Identity; its backward comes when the block's is done."""

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        ctx.swap.release(ctx.number, ctx.number - len(ctx.swap._slots))
        if ctx.swap.headroom:
            ctx.swap.headroom.prefetch()
        return None, None, *grads


class _Leave(_SwapHook):
    """Identity; its backward comes before the block's."""

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        if ctx.swap.headroom:
            ctx.swap.headroom.record_peak()
        ctx.swap.load(ctx.number)
        return None, None, *grads


class PeakHeadroom:
    """Memory that a step has at its peak and not at its end: there the next forward's first blocks can wait."""

    def __init__(self, first: BlockSwap, allocated: Callable[[], int]):
        self._first, self._allocated, self._peak = first, allocated, 0
        """`first` are the blocks that a forward begins with."""

    def record_peak(self) -> None:
        """Before a block's backward: how much is held now, checkpoints of the blocks before it and all."""
        self._peak = max(self._peak, self._allocated())

    def prefetch(self) -> None:
        """After it, when what it needed is given back."""
        self._first.prefetch(self._peak - self._allocated())


class SwapGroup:
    """Several BlockSwaps as the one swapper of a model, in the order of its forward.

    Of blocks that learn, an optimizer may touch only the one that lies on the device, and says so: in backward as soon
    as a block has its gradients, `changed(block)`; after backward block by block, `with resident(block): ...;
    changed(block)`. Other blocks than the moving ones may be given as well, and need nothing.
    """

    def __init__(self, swaps: Iterable[BlockSwap]):
        self._swaps = list(swaps)
        first = next((swap for swap in self._swaps if swap.blocks), None)
        if (
            first and not first.trainable and (stream := first.streams.to_device)
        ):  # what learns changes before the next forward
            headroom = PeakHeadroom(first, lambda: torch.cuda.memory_allocated(stream.device))
            for swap in self._swaps:
                swap.headroom = headroom
        self._swap_of = {block: (swap, number) for swap in self._swaps for number, block in enumerate(swap.blocks)}

    def __len__(self) -> int:
        return len(self._swap_of)

    @property
    def blocks(self) -> list[nn.Module]:
        """Those that move, in the order in which `resident` is cheapest."""
        return list(self._swap_of)

    def enter(self, block: nn.Module, *hidden: Tensor) -> Hidden:
        swap, number = self._swap_of.get(block, (None, 0))
        return swap.enter(number, hidden) if swap else hidden

    def leave(self, block: nn.Module, *hidden: Tensor) -> Hidden:
        swap, number = self._swap_of.get(block, (None, 0))
        return swap.leave(number, hidden) if swap else hidden

    def changed(self, block: nn.Module) -> None:
        """An optimizer has changed `block`, or a part of it; main memory gets it when backward or `resident` is done
        with the block, and at the latest when somebody asks for its values."""
        swap, number = self._swap_of.get(block, (None, 0))
        if swap:
            swap.changed(number)

    def resident(self, block: nn.Module) -> contextlib.AbstractContextManager[None]:
        """`block` lies on the device meanwhile."""
        swap, number = self._swap_of.get(block, (None, 0))
        return swap.resident(number) if swap else contextlib.nullcontext()

    def synchronize(self) -> None:
        """Wait until main memory holds every block as it is; `state_dict` and `host_value` do so by themselves."""
        for swap in self._swaps:
            swap.synchronize()

    def refill(self) -> None:
        """After writing into `host_value(parameter)`: let the device have it."""
        for swap in self._swaps:
            swap.refill()


def _view_of(flat: Tensor, start: int, like: Tensor) -> Tensor:
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
