"""Block swapping: the host copies of blocks stay in main memory, and each block is loaded before it is needed.

Frozen weights are only copied from host to device, on their own stream; trained weights are copied back on another.
Each block has a fixed slot on the device, which it shares with other blocks: addresses never change, so what autograd
and the compiler recorded stays valid.
"""

from __future__ import annotations

import contextlib
import logging
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

logger = logging.getLogger(__name__)

SLOTS = 2
"""Device slots that swapped blocks share: one block computes in one while the next is loaded into the other."""
ALIGNMENT = 256
"""Bytes to which kernels expect a tensor to be aligned."""

CHUNK_BYTES = 64 * 2**20
"""Bytes of a block that are prefetched at a time."""

Hidden = tuple[Tensor, ...]


def swapped_blocks(blocks: int, count: int) -> list[int]:
    """Return which blocks are swapped so that `count` are always off the device: evenly spread, so that the others
    compute during the copies."""
    if not count:
        return []
    turns = count + SLOTS
    assert turns <= blocks, f"{count} of {blocks} blocks cannot be off the device"
    return [(2 * i + 1) * blocks // (2 * turns) for i in range(turns)]


@dataclass(frozen=True, kw_only=True)
class CopyStreams:
    """One stream per direction, so that they do not wait for each other; on the CPU, copies are synchronous."""

    to_device: torch.cuda.Stream | None = None
    to_host: torch.cuda.Stream | None = None

    @classmethod
    def of(cls, device: torch.device) -> CopyStreams:
        if device.type != "cuda":
            return cls()
        return cls(to_device=torch.cuda.Stream(device), to_host=torch.cuda.Stream(device))


class _Slot:
    """A buffer on the device that blocks share, and the copies into it and out of it."""

    def __init__(self, size: int, device: torch.device, streams: CopyStreams):
        self.bytes = torch.empty(size, dtype=torch.uint8, device=device)
        self.block_number: int | None = None
        """Which block is loaded, or being loaded."""
        self.changed = False
        """Whether the device copy is newer than the host copy."""
        self._streams = streams
        self._host = self.bytes[:0]
        if streams.to_device:
            self._last_use, self._loaded, self._written_back = (torch.cuda.Event() for _ in range(3))

    def load(self, number: int, host: Tensor, chunks: Sequence[Tensor] = ()) -> None:
        """Copy a block in as soon as the work queued so far has left it. `chunks`: its first bytes, if they are on
        the device already."""
        self.write_back()
        self.block_number = number
        self._host = host
        target = self.bytes[: len(host)]
        to_device = self._streams.to_device
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
        """Make later work on the current stream wait until the block is loaded."""
        if to_device := self._streams.to_device:
            torch.cuda.current_stream(to_device.device).wait_event(self._loaded)

    def write_back(self) -> None:
        """Copy the block back to main memory if it has changed, after the work queued so far."""
        if not self.changed:
            return
        self.changed = False
        to_host = self._streams.to_host
        if to_host:
            to_host.wait_stream(torch.cuda.current_stream(to_host.device))
        with torch.cuda.stream(to_host):
            self._host.copy_(self.bytes[: len(self._host)], non_blocking=True)
            if to_host:
                self._written_back.record(to_host)

    def synchronize(self) -> None:
        """Wait until the host copy is up to date."""
        self.write_back()
        if self._streams.to_host:
            self._written_back.synchronize()


@dataclass(frozen=True, kw_only=True)
class _HostCopy:
    """A tensor's value in main memory, and the slot in which it is trained."""

    value: Tensor
    slot: _Slot


@dataclass(frozen=True, kw_only=True)
class _Layout:
    """Tensors laid out as consecutive bytes."""

    offsets: list[tuple[Tensor, int]]
    """Each tensor and its byte offset."""
    size: int

    @classmethod
    def of(cls, tensors: Iterable[Tensor]) -> _Layout:
        offsets = []
        end = 0
        for tensor in tensors:
            offsets.append((tensor, end))
            end += -(-tensor.numel() * tensor.element_size() // ALIGNMENT) * ALIGNMENT
        return cls(offsets=offsets, size=end)

    @classmethod
    def of_block(cls, block: nn.Module, trainable: bool) -> _Layout:
        """Return the layout of the tensors that are swapped with a block."""
        return cls.of(each for each in (*block.parameters(), *block.buffers()) if trainable or not each.requires_grad)

    @torch.no_grad()
    def move_to_host(self, device: torch.device) -> Tensor:
        """Move the tensors to main memory that is pinned for the device; return it."""
        host = _host_bytes(self.size, device)
        for tensor, start in self.offsets:
            tensor.data = _view_of(host, start, tensor).copy_(tensor)
        return host

    def share(self, slot: _Slot, host: Tensor) -> None:
        """Make the tensors permanent views of the slot, and attach a host_copy to each, which `is_swapped` and
        `host_value` read."""
        for tensor, start in self.offsets:
            tensor.data = _view_of(slot.bytes, start, tensor)
            tensor.host_copy = _HostCopy(value=_view_of(host, start, tensor), slot=slot)  # type: ignore[attr-defined]


def move_to_host(tensors: Iterable[Tensor], device: torch.device) -> Tensor:
    """Move tensors to main memory that is pinned for the device, in place; return it: their bytes, in order."""
    return _Layout.of(tensors).move_to_host(device)


def is_swapped(tensor: Tensor) -> bool:
    """Return whether a weight shares its memory on the device with other blocks, so that it may not be moved."""
    return hasattr(tensor, "host_copy")


def host_value(tensor: Tensor) -> Tensor:
    """Return the host copy of a swapped weight, or the tensor itself if it is not swapped.

    Waits for changes on the device. After writing into it, call the swapper's `refill`.
    """
    host_copy: _HostCopy | None = getattr(tensor, "host_copy", None)
    if host_copy is None:
        return tensor
    host_copy.slot.synchronize()
    return host_copy.value


def _state_dict_hook(block: nn.Module, state: dict[str, Tensor], prefix: str, _: object) -> None:
    """Let state_dict() return the host copies: the slot on the device may contain a different block."""
    for name, tensor in (*block.named_parameters(), *block.named_buffers()):
        if prefix + name in state:
            state[prefix + name] = host_value(tensor).detach()


class BlockSwap:
    """Swaps blocks of one kind: `count` of them are off the device at any time, the others are resident.

    If `trainable`, all tensors of a block are swapped, and an optimizer's changes are written back (`changed`);
    otherwise tensors that require a gradient, such as a LoRA's, stay on the device.
    """

    def __init__(
        self,
        blocks: Sequence[nn.Module],
        count: int,
        device: torch.device,
        streams: CopyStreams | None = None,
        *,
        trainable: bool = False,
    ):
        chosen = swapped_blocks(len(blocks), count)
        self.blocks = [blocks[i] for i in chosen]
        self.trainable = trainable
        self.streams = streams or CopyStreams.of(device)
        self._layouts = [_Layout.of_block(block, trainable) for block in self.blocks]
        size = max((layout.size for layout in self._layouts), default=0)
        self._slots = [_Slot(size, device, self.streams) for _ in self.blocks[:SLOTS]]
        self._host_copies: list[Tensor] = []
        """Each swapped block's bytes in main memory."""
        for number, (block, layout) in enumerate(zip(self.blocks, self._layouts, strict=True)):
            self._host_copies.append(layout.move_to_host(device))
            layout.share(self._slot(number), self._host_copies[number])
            block.register_state_dict_post_hook(_state_dict_hook)
        for number, block in enumerate(blocks):
            if number not in chosen:  # a swapped block is a view of its slot and must not be copied out of it
                block.to(device)
        self._prefetched: dict[int, list[Tensor]] = {}
        """Prefetched chunks, from the first byte on, of blocks that are not in a slot yet."""
        self.headroom: PeakHeadroom | None = None
        for number in range(len(self._slots)):
            self._load(number)

    def _slot(self, number: int) -> _Slot:
        return self._slots[number % SLOTS]

    def _load(self, number: int) -> None:
        self._slot(number).load(number, self._host_copies[number], self._prefetched.pop(number, ()))

    def load(self, number: int) -> None:
        """Load swapped block `number` and make later work wait for it."""
        if self._slot(number).block_number != number:
            self._load(number)
        self._slot(number).wait()

    def release(self, number: int, next_number: int) -> None:
        """Release block `number` after its last queued use, and load `next_number` into its slot."""
        self._slot(number).write_back()
        if 0 <= next_number < len(self._host_copies) and self._slot(next_number).block_number != next_number:
            self._load(next_number)

    def changed(self, number: int) -> None:
        """Mark resident block `number` as changed by an optimizer, so that it is written back to main memory."""
        assert self._slot(number).block_number == number, "a block may change only while it is resident"
        self._slot(number).changed = True

    @contextlib.contextmanager
    def resident(self, number: int) -> Iterator[None]:
        """Keep block `number` on the device inside the `with` block; cheapest in forward order."""
        self.load(number)
        yield
        self.release(number, self._next_number(number))

    def synchronize(self) -> None:
        """Wait until all host copies are up to date."""
        for slot in self._slots:
            slot.synchronize()

    def refill(self) -> None:
        """Reload the slots after the host copies have changed."""
        self._prefetched.clear()
        for slot in self._slots:
            assert slot.block_number is not None
            self._load(slot.block_number)

    def replace(self, number: int, host: Tensor) -> Tensor:
        """Give block `number` another host copy, of the same layout; return the one that it had. Call `refill` after
        the last one."""
        replaced, self._host_copies[number] = self._host_copies[number], host
        self._layouts[number].share(self._slot(number), host)
        return replaced

    def _next_number(self, number: int) -> int:
        """Return the block to load into the slot of block `number` in forward order, wrapping to the next forward."""
        after = number + SLOTS
        return after if after < len(self._host_copies) else number % SLOTS

    def prefetch(self, room: int) -> None:
        """Copy bytes of the first blocks of the next forward to the device, using at most `room` bytes.

        With checkpointing a forward takes less than half of a step's time but needs half of the copies: there they
        would be late, while backward has time to spare.
        """
        for number in range(SLOTS, len(self._host_copies)):
            if self._slot(number).block_number == number:
                continue
            chunks = self._prefetched.setdefault(number, [])
            host = self._host_copies[number]
            begin = sum(len(chunk) for chunk in chunks)
            while begin < len(host):
                chunk = host[begin : begin + CHUNK_BYTES]
                if len(chunk) > room:
                    return
                chunks.append(self._on_device(chunk))
                begin += len(chunk)
                room -= len(chunk)

    def _on_device(self, chunk: Tensor) -> Tensor:
        to_device = torch.empty_like(chunk, device=self._slots[0].bytes.device)
        stream = self.streams.to_device
        if stream:  # the previous owner of this memory may still be in use
            stream.wait_stream(torch.cuda.current_stream(stream.device))
            to_device.record_stream(stream)
        with torch.cuda.stream(stream):
            return to_device.copy_(chunk, non_blocking=True)

    def enter(self, number: int, hidden: Hidden) -> Hidden:
        """Call before block `number` computes; in backward it runs after the block."""
        self.load(number)
        return _Enter.apply(self, number, *hidden) if _needs_backward(hidden) else hidden

    def leave(self, number: int, hidden: Hidden) -> Hidden:
        """Call after block `number`; in backward it runs before the block. The last blocks stay if backward follows."""
        if not _needs_backward(hidden):
            self.release(number, self._next_number(number))
            return hidden
        self.release(number, number + SLOTS)
        return _Leave.apply(self, number, *hidden)


def _needs_backward(hidden: Hidden) -> bool:
    return torch.is_grad_enabled() and any(h.requires_grad for h in hidden)


def _copies_of(hidden: Hidden) -> Hidden:
    """Return the same values as new tensors; with a view, later compiled blocks would need another graph."""
    return tuple(torch.ops.aten._unsafe_view(h, h.shape) for h in hidden)


class _SwapHook(torch.autograd.Function):
    """Identity that runs code for block `number` in backward."""

    @staticmethod
    def forward(ctx: Any, swap: BlockSwap, number: int, *hidden: Tensor) -> Hidden:  # type: ignore[override]
        ctx.swap = swap
        ctx.number = number
        ctx.set_materialize_grads(False)
        return _copies_of(hidden)


class _Enter(_SwapHook):
    """Identity whose backward runs after the block's."""

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        ctx.swap.release(ctx.number, ctx.number - SLOTS)
        if ctx.swap.headroom:
            ctx.swap.headroom.prefetch()
        return None, None, *grads


class _Leave(_SwapHook):
    """Identity whose backward runs before the block's."""

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        if ctx.swap.headroom:
            ctx.swap.headroom.record_peak()
        ctx.swap.load(ctx.number)
        return None, None, *grads


class PeakHeadroom:
    """Memory that a step needs at its peak but not at its end; the first blocks of the next forward are prefetched
    into it."""

    def __init__(self, first: BlockSwap, allocated: Callable[[], int]):
        """`first` swaps the blocks that a forward begins with; `allocated` returns the bytes in use on the device."""
        self._first = first
        self._allocated = allocated
        self._peak = 0

    def record_peak(self) -> None:
        """Call before a block's backward: record the memory allocated now, checkpoints included."""
        self._peak = max(self._peak, self._allocated())

    def prefetch(self) -> None:
        """Call after a block's backward, when its memory has been freed."""
        self._first.prefetch(self._peak - self._allocated())


class SwapGroup:
    """Several BlockSwaps as the one swapper of a model, in forward order.

    An optimizer may change a trainable block only while it is resident, and must report it: in backward, call
    `changed(block)` as soon as the block has its gradients; after backward, block by block, use `with
    updating(block): ...`. Blocks that are not swapped may be passed too and need no action.
    """

    def __init__(self, swaps: Iterable[BlockSwap]):
        self._swaps = list(swaps)
        first = next((swap for swap in self._swaps if swap.blocks), None)
        # trained weights change before the next forward
        if first and not first.trainable and (stream := first.streams.to_device):
            headroom = PeakHeadroom(first, partial(_allocated, stream.device))
            for swap in self._swaps:
                swap.headroom = headroom
        self._swap_of: dict[nn.Module | None, tuple[BlockSwap, int]] = {
            block: (swap, number) for swap in self._swaps for number, block in enumerate(swap.blocks)
        }

    def __len__(self) -> int:
        return len(self._swap_of)

    def __contains__(self, block: object) -> bool:
        return block in self._swap_of

    def enter(self, block: nn.Module, *hidden: Tensor) -> Hidden:
        if block not in self._swap_of:
            return hidden
        swap, number = self._swap_of[block]
        return swap.enter(number, hidden)

    def leave(self, block: nn.Module, *hidden: Tensor) -> Hidden:
        if block not in self._swap_of:
            return hidden
        swap, number = self._swap_of[block]
        return swap.leave(number, hidden)

    def changed(self, block: nn.Module | None) -> None:
        """Mark `block` as changed by an optimizer; None stands for weights outside of the blocks. It is written back
        when backward or `resident` releases it, and at the latest when its values are read."""
        if block in self._swap_of:
            swap, number = self._swap_of[block]
            swap.changed(number)

    @contextlib.contextmanager
    def updating(self, block: nn.Module | None) -> Iterator[None]:
        """Keep `block` on the device while an optimizer changes it."""
        with self.resident(block):
            yield
            self.changed(block)

    def resident(self, block: nn.Module | None) -> contextlib.AbstractContextManager[None]:
        """Keep `block` on the device inside the `with` block."""
        if block not in self._swap_of:
            return contextlib.nullcontext()
        swap, number = self._swap_of[block]
        return swap.resident(number)

    def synchronize(self) -> None:
        """Wait until all host copies are up to date; `state_dict` and `host_value` do so themselves."""
        for swap in self._swaps:
            swap.synchronize()

    def exchange(self, copies: dict[nn.Module, Tensor]) -> None:
        """Let blocks change places with others in `copies`, which `move_to_host` returned for the same layout."""
        for block, host in copies.items():
            swap, number = self._swap_of[block]
            copies[block] = swap.replace(number, host)
        self.refill()

    def refill(self) -> None:
        """Update the device after writing into `host_value(parameter)`."""
        for swap in self._swaps:
            swap.refill()


def _allocated(device: torch.device) -> int:
    """Return the bytes of all tensors on the device. torch.cuda.memory_allocated also sorts all other statistics, which
    takes milliseconds in a step of many blocks."""
    allocated: int = torch.cuda.memory_stats_as_nested_dict(device)["allocated_bytes"]["all"]["current"]
    return allocated


def _view_of(flat: Tensor, start: int, like: Tensor) -> Tensor:
    """Return the bytes from `start` on as a tensor with the shape and dtype of `like`."""
    return flat[start : start + like.numel() * like.element_size()].view(like.dtype).view(like.shape)


_unpinned = False


def _host_bytes(size: int, device: torch.device) -> Tensor:
    """Return pinned main memory. It is registered rather than allocated by PyTorch's pinned allocator, which rounds up
    to powers of two."""
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
            torch.zeros(1, device=device)  # clears the CUDA error, which is handled here
        logger.warning(
            "blocks_to_swap: main memory cannot be pinned, so blocks load slowly; check that there is enough free RAM"
        )
    return buffer
