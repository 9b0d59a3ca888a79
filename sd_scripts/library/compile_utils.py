"""torch.compile for diffusion blocks: one small graph for each kind of block; the model's keys stay the same."""

import argparse
import difflib
import inspect
import logging
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from sd_scripts.formats.models.safetensors_header import COMPILED
from sd_scripts.library.diffusion.dit_layers import TanhGELU
from sd_scripts.library.optim.key_values import key_values
from sd_scripts.options.compile import CompileOptions
from sd_scripts.options.spec import KINDS
from sd_scripts.settings.command_line import add_arguments

logger = logging.getLogger(__name__)

DYNAMIC = {"auto": None, "true": True, "false": False}


def add_compile_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the compile flags to any argparse parser."""
    add_arguments(parser, CompileOptions)


def compile_model(
    options: CompileOptions,
    model: nn.Module,
    target_blocks: Sequence[Iterable[nn.Module]],
    disable_linear: bool = False,
    log_prefix: str = "",
    graphs_expected: int = 0,
    static: bool = False,
    hooked: bool = False,
    chosen_mode: str = "",
) -> nn.Module:
    """Compile each block of `target_blocks` in place and return the model.

    In place means nn.Module.compile: no wrapper, so state_dict() keys, isinstance checks and hooks are as before.
    Blocks whose weights move between devices keep their Linear layers out of the graph (`disable_linear`).
    `graphs_expected` is how many graphs one kind of block will need; it is the recompile limit if the option is 0.
    `static`: the shapes are few, so compile_dynamic = auto stands for false. Of `hooked` blocks only forward is
    compiled, so that adding and removing hooks does not recompile. `chosen_mode` is the user's choice, if the blocks
    of a step that is recorded as a whole get a different one.
    """
    dynamic = DYNAMIC[options.compile_dynamic]
    mode: str = options.compile_mode
    if chosen_mode not in ("", mode):
        mode = f"{chosen_mode} (the step is recorded as one CUDA graph, its blocks compiled with mode={mode})"
    settings = f"backend={options.compile_backend}, mode={mode}, "
    settings += f"dynamic={dynamic}, fullgraph={options.compile_fullgraph}"
    inductor = options.compile_backend == "inductor"
    if inductor and options.compile_options:
        settings += f", options: {', '.join(options.compile_options)}"
    logger.info("Compiling %s with torch.compile: %s", log_prefix or type(model).__name__, settings)
    how: dict[str, Any] = {
        "backend": options.compile_backend,
        "options": inductor_options(options.compile_mode, options.compile_options) if inductor else None,
        "dynamic": False if dynamic is None and static else dynamic,
        "fullgraph": options.compile_fullgraph,
        **_graph_limit(options.compile_cache_size_limit or max(graphs_expected, MIN_GRAPH_LIMIT)),
    }
    # inductor's advice on float32 products, which are few here, is not of ours
    warnings.filterwarnings("ignore", message="TensorFloat32 tensor cores")
    torch._functorch.config.autograd_cache_allow_custom_autograd_functions = True  # attention's guard is one
    for blocks in target_blocks:
        for block in blocks:
            if disable_linear:
                disable_linear_from_compile(block)
            for module in block.modules():
                if isinstance(module, TanhGELU):
                    module.for_inductor = inductor
            if hooked:
                block.forward = torch.compile(block.forward, **how)  # type: ignore[method-assign]
            else:
                block.compile(**how)
    return model


def inductor_options(mode: str, more: Iterable[str] = ()) -> dict[str, Any]:
    """Return the inductor options of a mode, with our own and, over both, `more` as key=value; torch.compile takes a
    mode or options, never both.

    Inductor fuses the gradient of GEGLU into one kernel that computes both halves everywhere and then selects; one
    kernel per half moves fewer bytes and takes a third of the time on a large GPU. Autotuning elementwise kernels costs
    a seventh of the compile time and gained nothing measurable. Reductions over rows and over columns in one kernel
    (mix_order_reduction) got the gradients of Qwen-Image's modulations wrong (tests/library/test_compile_cuda.py), and
    were slower than two.
    """
    ours: dict[str, Any] = {"triton.mix_order_reduction": False}
    ours |= {"max_pointwise_cat_inputs": 1, "max_complex_pointwise_cat_inputs": 1}
    if not mode.startswith("max-autotune"):
        ours["triton.autotune_pointwise"] = False
    inductor = _inductor()
    options = inductor.list_options()
    by_mode = inductor.list_mode_options(mode) | {key: value for key, value in ours.items() if key in options}
    return by_mode | {key: _converted(key, value) for key, value in key_values("compile_options", more).items()}


def inductor_option_problems(items: Iterable[str]) -> list[str]:
    """Return the problems that inductor has with options given as key=value."""
    problems = []
    for key, value in key_values("compile_options", items).items():
        if key not in (known := _inductor().list_options()):
            near = difflib.get_close_matches(key, known, 1)
            remedy = f"Did you mean {near[0]}?" if near else "torch._inductor.list_options() names all"
            problems.append(f"compile_options: inductor has no option {key}. {remedy}")
        elif not _fits(_converted(key, value), hint := _hint(key)):
            problems.append(f"compile_options: {key}={value!r} must be {_described(hint)}")
    return problems


def _inductor() -> Any:
    """Return the compiler, whose import takes as long as PyTorch's."""
    import torch._inductor

    return torch._inductor


def _hint(key: str) -> Any:
    """Return the type of an option of inductor; if this PyTorch does not define it, any value is accepted."""
    config: Any = _inductor().config
    return config.get_type(key) if hasattr(config, "get_type") else object


def _converted(key: str, value: Any) -> Any:
    """Return a whole number as a float where inductor insists on one."""
    is_float = key in _inductor().list_options() and float in (_hint(key), *get_args(_hint(key)))
    return float(value) if is_float and type(value) is int else value


def _fits(value: Any, hint: Any) -> bool:
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return any(_fits(value, arm) for arm in get_args(hint))
    if origin is Literal:
        return value in get_args(hint)
    kind = origin or hint
    if isinstance(value, bool) and kind is not object:  # Python's bool is an int
        return kind is bool
    return isinstance(kind, type) and isinstance(value, kind)


def _described(hint: Any) -> str:
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(map(_described, get_args(hint)))
    if get_origin(hint) is Literal:
        return f"one of {', '.join(map(repr, get_args(hint)))}"
    return "None" if hint is NoneType else KINDS.get(hint, getattr(hint, "__name__", str(hint)))


MIN_GRAPH_LIMIT = 16
"""A U-Net's ResnetBlock2D needs 12 graphs at one resolution; PyTorch's own limit of 8 would run the rest eagerly."""


def _graph_limit(limit: int) -> dict[str, int]:
    """Return the recompile limit as an argument of torch.compile; where this PyTorch has none, set it globally."""
    torch._dynamo.config.accumulated_recompile_limit = max(256, 4 * limit)
    if "recompile_limit" in inspect.signature(torch.compile).parameters:
        return {"recompile_limit": limit}
    torch._dynamo.config.recompile_limit = limit
    return {}


class KnownInputs:
    """Skips most guards once inputs of the same shapes have gone through forward and backward twice.

    Evaluating guards costs the CPU up to an eighth of a small step. Where the same code runs again on the same shapes
    they cannot fail, so only the guards that select a graph are evaluated.
    """

    def __init__(self) -> None:
        self._runs: Counter[tuple[Any, ...]] = Counter()

    def __call__(self, inputs: Any) -> AbstractContextManager[object]:
        """Return the context for one forward and backward of `inputs`, a pytree of tensors."""
        tensors, structure = pytree.tree_flatten(inputs)
        shapes = (structure, *((x.shape, x.dtype) for x in tensors))
        self._runs[shapes] += 1
        if self._runs[shapes] <= 2:
            return nullcontext()
        return torch.compiler.set_stance("default", skip_guard_eval_unsafe=True)


def disable_linear_from_compile(module: nn.Module) -> None:
    """Run every Linear of a module eagerly: its weight may move between steps, so no graph may contain it."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            layer.forward = torch.compiler.disable(layer.forward)  # type: ignore[method-assign]


def maybe_uncompile_state_dict(state_dict: dict[str, Tensor]) -> dict[str, Tensor]:
    """Remove the `_orig_mod.` that torch.compile(module) adds to keys; ours have none, other programs' files may."""
    return {key.replace(COMPILED, ""): value for key, value in state_dict.items()}
