"""FSDP: each process has some rows of every tensor, with their gradients and the optimizer's state.

A block gathers its weights while it computes (FSDP2, Zhao et al. 2023, https://arxiv.org/abs/2304.11277). Code that
updates them sees plain tensors with this process's rows.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from accelerate.utils.fsdp_utils import disable_fsdp_ram_efficient_loading
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from sd_scripts.library.optim.optimizers import is_rounding_adamw
from sd_scripts.options.compile import CUDA_GRAPHS_KEY, CompileOptions
from sd_scripts.options.full import FusedOptions
from sd_scripts.options.memory import MemoryOptions
from sd_scripts.options.optimization.optimizer import OptimizerOptions
from sd_scripts.options.optimization.optimizer_table import OPTIMIZERS, known_optimizer
from sd_scripts.options.training import TrainingOptions
from sd_scripts.settings.recording import uses_cuda_graphs
from sd_scripts.settings.settings import Settings
from sd_scripts.training.context import Context
from sd_scripts.training.execution.gradient_clipping import grad_norm
from sd_scripts.training.methods.master_weights import Weight, gradients_of, require_shapes

MESSAGE = 2**26
"""Bytes of a process's rows that are gathered in one message."""
ALIGNMENT = 16
"""Bytes; a tensor of any dtype can begin at a multiple of it."""


def require_fsdp_support(settings: Settings) -> None:
    """Raise ValueError for settings that FSDP does not support, before anything is loaded."""
    found = []
    training = settings[TrainingOptions]
    optimizer = settings[OptimizerOptions]
    if os.environ.get("FSDP_VERSION", "1") != "2":
        found.append("fsdp_version: FSDP 1 is not supported; launch with fsdp_version 2")
    if os.environ.get("FSDP_OFFLOAD_PARAMS", "false").lower() == "true":
        found.append("fsdp_offload_params: not supported, shards stay on the GPUs; turn it off, or launch on more GPUs")
    if fused := settings[FusedOptions].chosen:
        found.append(f"{fused}: not supported with FSDP, where each process has few gradients anyway; turn it off")
    memory = settings.get(MemoryOptions)
    if memory and memory.blocks_to_swap:
        found.append("blocks_to_swap: not supported with FSDP, which spreads the blocks over the GPUs; set it to 0")
    if training.mixed_precision == "fp16":
        found.append("mixed_precision: fp16 needs a loss scale across shards, which FSDP lacks; set bf16")
    if not known_optimizer(optimizer.optimizer_type).elementwise:
        found.append(
            f"optimizer_type: {optimizer.optimizer_type} needs whole weights, but with FSDP each process has only some "
            f"rows of them; choose one of {', '.join(name for name, known in OPTIMIZERS.items() if known.elementwise)}"
        )
    elif training.full_bf16 and not is_rounding_adamw(optimizer):
        found.append(
            "full_bf16: with FSDP only AdamW can train half-precision weights; choose AdamW, or turn full_bf16 off"
        )
    compiled = settings[CompileOptions]
    if uses_cuda_graphs(compiled):
        chosen = compiled.cuda_graphs_from or "compile_backend"
        instead = f"remove {CUDA_GRAPHS_KEY}"
        if chosen != "compile_options":
            instead = f"choose {getattr(CompileOptions, chosen)}"
        found.append(f"{chosen}: CUDA graphs need weights at fixed addresses; {instead} with FSDP")
    if found:
        raise ValueError("\n".join(found))
    disable_fsdp_ram_efficient_loading()  # with it, transformers leaves the encoders empty in all processes but one


class Shards:
    """This process's rows of a module's tensors."""

    def __init__(self, context: Context, module: nn.Module, blocks: Iterable[nn.Module]):
        """Shard all parameters of `module` and move them to the device. Each of `blocks` gathers its own, others are
        gathered together. Gradients are averaged in float32."""
        self.mesh: DeviceMesh = init_device_mesh(context.device.type, (context.world,))
        self._keeps = context.is_main
        self._module = module
        # reduce in float32 as the masters are, and do not round inputs such as timesteps
        policy = MixedPrecisionPolicy(reduce_dtype=torch.float32, cast_forward_inputs=False)
        for block in blocks:
            fully_shard(block, mesh=self.mesh, mp_policy=policy, reshard_after_forward=True)
        fully_shard(module, mesh=self.mesh, mp_policy=policy, reshard_after_forward=True)
        self.shapes: dict[str, torch.Size] = {}
        """Shapes of the whole tensors, by the names of trained weights."""
        self.order: list[str] = []
        """Names of all trained weights, as the optimizer numbers them."""

    def add(self, name: str, parameter: nn.Parameter) -> nn.Parameter:
        """Register a trained parameter; return the rows of it that this process has and updates."""
        assert isinstance(parameter, DTensor)
        self.shapes[name] = parameter.shape
        with torch.no_grad():
            return nn.Parameter(parameter.to_local())

    def rows(self, whole: Tensor) -> Tensor:
        """Return a view of this process's rows, which may be empty."""
        chunks = whole.chunk(self.mesh.size(), dim=0)
        rank = self.mesh.get_local_rank()
        return chunks[rank] if rank < len(chunks) else whole[:0]

    def wholes(self, rows: Iterable[tuple[Tensor, torch.Size]]) -> Iterator[Tensor]:
        """Yield the tensor that the rows of all processes make, in main memory, for each one's rows and whole shape.

        All processes must take all of them, in the same order; only the first gets values. Many tensors travel in one
        message, since each message has its latency.
        """
        message: list[tuple[Tensor, torch.Size]] = []
        size = 0
        for each, shape in rows:
            message.append((each, shape))
            size += self._length(shape) * math.prod(shape[1:]) * each.element_size()  # the same in all processes
            if size >= MESSAGE:
                yield from self._gathered(message)
                message = []
                size = 0
        if message:
            yield from self._gathered(message)

    def _length(self, shape: torch.Size) -> int:
        """Return how many rows a process has at most; the last ones may have fewer."""
        return -(-shape[0] // self.mesh.size())

    def _gathered(self, message: list[tuple[Tensor, torch.Size]]) -> Iterator[Tensor]:
        device = self.mesh.device_type
        world = self.mesh.size()
        lengths = [self._length(shape) for _, shape in message]
        padded = []
        for (rows, shape), length in zip(message, lengths, strict=True):
            part = torch.zeros((length, *shape[1:]), dtype=rows.dtype, device=device)
            part[: len(rows)] = rows.detach()
            padded.append(F.pad(part.view(-1).view(torch.uint8), (0, -part.nbytes % ALIGNMENT)))
        mine = torch.cat(padded)
        of_all = [torch.empty_like(mine) for _ in range(world)] if self._keeps else None
        dist.gather(mine, of_all, group=self.mesh.get_group(), group_dst=0)
        start = 0
        for (rows, shape), length, part in zip(message, lengths, padded, strict=True):
            if of_all:
                bytes_ = length * math.prod(shape[1:]) * rows.element_size()
                parts = [each[start : start + bytes_].view(rows.dtype).view(length, *shape[1:]) for each in of_all]
                yield torch.cat(parts)[: shape[0]].cpu()
            else:
                yield rows.new_empty(0)
            start += len(part)

    def values(self, trained: dict[nn.Parameter, Tensor]) -> dict[str, Tensor]:
        """Return the module's state_dict in whole tensors, with the rows of `trained` in place of its own. All
        processes must call it; only the first gets values."""
        state: dict[str, Tensor] = self._module.state_dict()
        rows = {name: trained[p] for name, p in self._module.named_parameters() if p in trained}
        for name, tensor in state.items():
            if isinstance(tensor, DTensor):
                rows.setdefault(name, tensor.to_local())
        sharded = [name for name in state if name in rows]
        return state | dict(zip(sharded, self.wholes((rows[name], state[name].shape) for name in sharded), strict=True))

    def reset_iteration(self) -> None:
        """Reset FSDP after a forward or backward that failed."""
        assert isinstance(self._module, FSDPModule)
        self._module.reset_iter_state()

    # Train states: the same file from any number of processes

    def joined(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return TrainState.state() with whole tensors. All processes must call it; only the first gets values."""
        rows: list[tuple[Tensor, torch.Size]] = []
        self._through(state, lambda tensor, name: rows.append((tensor, self.shapes[name])), self._shape_of_rows)
        wholes = self.wholes(rows)
        return self._through(state, lambda *_: next(wholes), self._shape_of_rows)

    def cut(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return this process's rows of a `joined` state. Raises ValueError if its shapes differ."""
        require_shapes(state["learning"], self.shapes)
        return self._through(state, lambda whole, _: self.rows(whole).clone(), self.shapes.__getitem__)

    def _shape_of_rows(self, name: str) -> torch.Size:
        return self.rows(torch.empty(self.shapes[name], device="meta")).shape

    def _through(self, state: dict[str, Any], change: Any, shape_of: Callable[[str], torch.Size]) -> dict[str, Any]:
        """Apply `change` to the values, averages and optimizer moments of sharded weights, where shapes match."""

        def changed(tensors: dict[str, Any], name: str) -> dict[str, Any]:
            """Change the values of a weight that have its shape."""
            return {
                key: change(value, name) if isinstance(value, Tensor) and value.shape == shape_of(name) else value
                for key, value in tensors.items()
            }

        def by_name(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
            return {name: change(t, name) if name in self.shapes else t for name, t in tensors.items()}

        optimizer = state["optimizer"]
        moments = {
            number: changed(of_one, self.order[number]) if self.order[number] in self.shapes else of_one
            for number, of_one in sorted(optimizer["state"].items())
        }
        state = {**state, "learning": by_name(state["learning"]), "optimizer": {**optimizer, "state": moments}}
        if state.get("ema"):
            state["ema"] = {**state["ema"], "average": by_name(state["ema"]["average"])}
        return state


def shard(context: Context, denoiser: nn.Module, weights: Iterable[Weight], blocks: Iterable[nn.Module]) -> Shards:
    """Shard the denoiser, and leave this process's rows in `weights`. Text encoders are small and stay whole."""
    shards = Shards(context, denoiser, blocks)
    cut = {f"denoiser.{name}": parameter for name, parameter in denoiser.named_parameters()}
    for weight in weights:
        weight.sharded = cut.get(weight.name)
        if weight.sharded is not None:
            weight.copy = shards.add(weight.name, weight.sharded)
            if weight.master is not None:
                weight.master = nn.Parameter(shards.rows(weight.master.detach()).to(context.device, copy=True))
    return shards


def collect_shard_gradients(weights: Iterable[Weight]) -> None:
    """Add the gradients that backward left in shards to the gradients of this process's rows."""
    for weight in weights:
        if weight.sharded is None or not isinstance(weight.sharded.grad, DTensor):
            continue
        rows = weight.sharded.grad.to_local()
        weight.sharded.grad = None
        weight.copy.grad = rows if weight.copy.grad is None else weight.copy.grad.add_(rows)


def sharded_grad_norm(weights: Sequence[Weight], device: torch.device) -> Tensor:
    """Return the norm over all processes; weights that are not sharded are the same in each."""
    rows, others = (
        grad_norm(gradients_of(weight for weight in weights if (weight.sharded is not None) == sharded), device)
        for sharded in (True, False)
    )
    squares = rows.square()
    dist.all_reduce(squares)
    return (squares + others.square()).sqrt()
