"""Weights that wait for their turn in a model: those of another model of the same shapes, which change places with its.

The model's tensors keep their addresses, so adapters, compiled code and recorded graphs stay valid.
"""

from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sd_scripts.library.diffusion.block_swap import CopyStreams, move_to_host
from sd_scripts.library.diffusion.block_transformer import BlockTransformer
from sd_scripts.library.quantization.quantized import format_of

STAGED = 2
"""Tensors that are on their way to main memory at a time; each takes as much memory on the device again."""


class IdleWeights:
    def __init__(self, model: BlockTransformer, idle: nn.Module, blocks: Sequence[nn.Module], *, offload: bool):
        """Take the weights of `idle`, which is empty afterwards but for views of them. Both models are placed, and have
        the same layers; raises ValueError if they store these differently.

        `blocks`: of the idle model, in the order of modules. `offload`: the weights wait in main memory rather than on
        the device; those of the model's swapped blocks always do.
        """
        _require_same_storage(model, idle)
        self._model, device = model, model.device
        ours = {path: module for path, module in model.named_modules()}
        paths = {module: path for path, module in idle.named_modules()}
        self._swapped: dict[nn.Module, Tensor] = {}
        """Swapped blocks of the model, and the others' bytes."""
        self._resident: list[tuple[Tensor, Tensor]] = []
        """Tensors of the model on the device, each with the one that takes its place."""
        inside: set[Tensor] = set()
        for block in blocks:
            inside.update(tensors := [*block.parameters(), *block.buffers()])
            resident = ours[paths[block]]
            if model.swapper and resident in model.swapper:
                self._swapped[resident] = move_to_host(tensors, device)
            else:
                self._add([*resident.parameters(), *resident.buffers()], tensors, device, offload)
        named = dict([*model.named_parameters(), *model.named_buffers()])
        rest = {n: each for n, each in (*idle.named_parameters(), *idle.named_buffers()) if each not in inside}
        self._add([named[name] for name in rest], list(rest.values()), device, offload)
        self._to_host = CopyStreams.of(device).to_host if offload else None

    def _add(self, ours: list[Tensor], theirs: list[Tensor], device: torch.device, offload: bool) -> None:
        if offload:
            move_to_host(theirs, device)
        else:
            for tensor in theirs:
                tensor.data = tensor.data.to(device)
        self._resident += zip(ours, theirs, strict=True)

    @torch.no_grad()
    def exchange(self) -> None:
        """Let the weights change places with the model's, in the order of the work on the device."""
        if self._swapped:
            assert self._model.swapper
            self._model.swapper.exchange(self._swapped)
        stream = self._to_host
        current = torch.cuda.current_stream(stream.device) if stream else None
        if stream and current:
            current.wait_stream(stream)  # the last exchange may still be writing to main memory
        on_their_way: deque[torch.cuda.Event] = deque()
        for ours, theirs in self._resident:
            if len(on_their_way) == STAGED:
                on_their_way.popleft().synchronize()
            staged = ours.clone()
            ours.copy_(theirs, non_blocking=True)
            if stream and current:
                stream.wait_stream(current)
                staged.record_stream(stream)
            with torch.cuda.stream(stream):  # while the next tensor comes in
                theirs.copy_(staged, non_blocking=True)
            if stream:
                on_their_way.append(stream.record_event())


def _require_same_storage(model: nn.Module, idle: nn.Module) -> None:
    formats = [{path: format_of(each) for path, each in m.named_modules() if format_of(each)} for m in (model, idle)]
    tensors = [
        {name: (each.shape, each.dtype) for name, each in (*m.named_parameters(), *m.named_buffers())}
        for m in (model, idle)
    ]
    if formats[0] != formats[1] or tensors[0] != tensors[1]:
        raise ValueError("its weights are stored differently")
