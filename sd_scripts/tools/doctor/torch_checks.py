"""Checks that import torch; they run in a process of their own, which a crash of native code may end."""

import math
import os
import sys
import tempfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from sd_scripts.formats.disk import format_bytes, free_bytes
from sd_scripts.machine import cuda_builds, nvidia
from sd_scripts.tools.doctor.check import REINSTALL, Check, Finding, ok, problem, skipped, summary, warning
from sd_scripts.tools.doctor.machine import NEW_ENVIRONMENT

if TYPE_CHECKING:
    import torch

    from sd_scripts.settings.settings import Settings

NEW_TORCH = f"reinstall PyTorch: {NEW_ENVIRONMENT}"
RUNTIME = "; if that does not help, install the Microsoft Visual C++ Redistributable" if sys.platform == "win32" else ""
COMPILE_OFF = "turn compile off, and attach the diagnostics to a bug report"
NO_GRAPHS = "set compile_mode = default, and attach the diagnostics to a bug report"
NO_8BIT = f"set optimizer_type = AdamW, AdamW8bit or Adafactor, or reinstall bitsandbytes: {NEW_ENVIRONMENT}"
NO_FP8 = "turn fp8_compute off, and attach the diagnostics to a bug report"
ANOTHER_CACHE = "set TORCHINDUCTOR_CACHE_DIR in the environment to a folder that you can write, with free space"
NEWER_GPU = "use an RTX 20 or newer, or choose others with CUDA_VISIBLE_DEVICES in the environment"
NO_INT8 = "set quantize_base = int8_weight_only, and attach the diagnostics to a bug report"
NO_NF4 = f"set quantize_base = int8, or reinstall bitsandbytes: {NEW_ENVIRONMENT}"
FP8_ROUNDING, INT8_ROUNDING, NF4_ROUNDING = 0.1, 0.03, 0.2
"""Largest relative differences of products with quantized weights; e4m3 has three bits of mantissa."""
ROOM_OF_CACHE = 2e9
"""Bytes of free disk that the compiler's cache of a few models takes."""
BF16, SMALL_GPU, BUSY = (8, 0), 10.0, 0.5
"""The capability from which GPUs compute in bf16; GiB below which only presets for little memory fit; the part of
the memory that should be free."""


def torch_import() -> Finding:
    import torch

    if not torch.version.cuda and not torch.version.hip and _driver_gpus():
        return problem(
            f"PyTorch {torch.__version__} is built for the CPU only, although this machine has an NVIDIA GPU",
            f"install the CUDA build: {NEW_ENVIRONMENT}",
        )
    for name, of in _builds().items():
        if of:
            return ok(f"PyTorch {torch.__version__} for {name} {of}")
    return ok(f"PyTorch {torch.__version__}, CPU only")


def _builds() -> dict[str, str | None]:
    import torch

    return {"CUDA": torch.version.cuda, "ROCm": torch.version.hip}


def _driver_gpus() -> list[str]:
    try:
        return [gpu.name for gpu in nvidia.gpus()]
    except ValueError:  # reported by the check of the driver
        return []


def _device() -> "torch.device":
    import torch

    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def gpu() -> Finding:
    import torch

    if not torch.cuda.is_available():
        if names := _driver_gpus():
            return problem(
                f"PyTorch cannot use {', '.join(names)}: {_why_no_cuda()}", _right_build() or nvidia.UPDATE_DRIVER
            )
        return skipped("PyTorch finds no GPU and trains on the CPU")
    described, warnings = [], []
    built_for = [int(arch[3:]) for arch in torch.cuda.get_arch_list() if arch.startswith("sm_") and arch[3:].isdigit()]
    for index in range(torch.cuda.device_count()):
        name = torch.cuda.get_device_name(index)
        capability = torch.cuda.get_device_capability(index)
        if built_for and 10 * capability[0] + capability[1] < min(built_for):
            return problem(
                f"{name} is too old for PyTorch {torch.__version__}, which has no kernels for it",
                _right_build() or NEWER_GPU,
            )
        x = torch.eye(32, device=f"cuda:{index}")
        assert torch.equal(x @ x, x), f"GPU {index} computes wrong products"
        free, total = (size / 2**30 for size in torch.cuda.mem_get_info(index))
        described.append(
            f"GPU {index}: {name}, capability {capability[0]}.{capability[1]}, {free:.1f} of {total:.1f} GiB free"
        )
        if capability < BF16:
            warnings.append(f"{name} does not compute in bf16: set mixed_precision = fp16")
        if total < SMALL_GPU:
            warnings.append(f"{name} has little memory: choose a preset for low memory")
        elif free < BUSY * total:
            warnings.append(f"other programs use the memory of {name}: close them")
    return warning("; ".join(described), "; ".join(warnings)) if warnings else ok("; ".join(described))


def _right_build() -> str:
    """Return how to install the CUDA build that runs here; empty unless it is neither the default nor this one."""
    import torch

    try:
        choice = cuda_builds.choose_here()
    except ValueError:  # reported by the check of the driver
        return ""
    if not choice or choice.build in (None, cuda_builds.DEFAULT) or choice.build.cuda == torch.version.cuda:
        return ""
    return f"install PyTorch for CUDA {choice.build.cuda}, since {choice.reason}: {NEW_ENVIRONMENT}"


def _why_no_cuda() -> str:
    import torch

    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return summary(error).partition(": ")[2]
    return f"CUDA_VISIBLE_DEVICES is '{os.environ.get('CUDA_VISIBLE_DEVICES', '')}'"


def _settings() -> "Settings":
    """Return settings of a run that compiles as it does by default, but does not fall back to eager blocks."""
    from sd_scripts.settings.catalog import SCRIPTS
    from sd_scripts.settings.settings import Settings

    return Settings(SCRIPTS[0], {"compile": True, "compile_fullgraph": True})


def triton() -> Finding:
    from sd_scripts.library.compile_support import problems
    from sd_scripts.options.compile import CompileMoreOptions, CompileOptions

    device = _device()
    if device.type != "cuda":
        return skipped("Only compile on a GPU needs Triton")
    settings = _settings()
    for found in problems(settings[CompileOptions], settings[CompileMoreOptions], device):
        return problem(*found.removesuffix(".").split("; ", 1))
    import triton

    return ok(f"Triton {triton.__version__}")


def cache() -> Finding:
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    from sd_scripts.machine.compile_cache import folder_problem

    if _device().type == "cpu" and (found := folder_problem()):
        return problem(*found.split("; "))
    folder = Path(cache_dir())  # creates it, as compile does
    with tempfile.TemporaryFile(dir=folder):
        pass
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    free = free_bytes(folder)
    used = format_bytes(size)
    if free is not None and free < ROOM_OF_CACHE:
        return warning(
            f"{folder} has {used}, and only {format_bytes(free)} are free there", f"free some space, or {ANOTHER_CACHE}"
        )
    if free is None:
        return ok(f"{folder} has {used}")
    return ok(f"{folder} has {used}, {format_bytes(free)} are free there")


def eager() -> Finding:
    import torch

    from sd_scripts.tools.doctor import block

    made, inputs = block.make(_device())
    reference, the_same = block.make(torch.device("cpu"), torch.float64)
    expected = block.results(reference, lambda: block.forward_backward(reference, the_same))
    found = block.results(made, lambda: block.forward_backward(made, inputs))
    return _compared(found, expected, block.TOLERANCE[inputs.x.dtype], "float64", NEW_TORCH)


def compiled() -> Finding:
    from torch._inductor.runtime.cache_dir_utils import cache_dir
    from torch._inductor.utils import fresh_cache

    from sd_scripts.library.compile_utils import compile_model
    from sd_scripts.options.compile import CompileOptions
    from sd_scripts.tools.doctor import block

    made, inputs = block.make(_device())
    expected = block.results(made, lambda: block.forward_backward(made, inputs))
    # an empty cache, or the compiler would not be called; in the folder of the real one, whose file system it tests
    with fresh_cache(dir=cache_dir()):
        try:
            compile_model(_settings()[CompileOptions], made, [[made]], static=True)
            found = block.results(made, lambda: block.forward_backward(made, inputs))
        except Exception as error:
            return problem(f"The compiler failed: {summary(error)}", _remedy(error))
    return _compared(found, expected, block.TOLERANCE[inputs.x.dtype], "the eager block", COMPILE_OFF)


def _remedy(error: Exception) -> str:
    from sd_scripts.machine.cpp_compiler import NO_COMPILER

    return NO_COMPILER if "InvalidCxxCompiler" in f"{type(error).__name__} {error}" else COMPILE_OFF


def cuda_graph() -> Finding:
    import torch

    from sd_scripts.tools.doctor import block

    device = _device()
    if device.type != "cuda":
        return skipped("Only GPUs have CUDA graphs")
    made, inputs = block.make(device)
    expected = block.results(made, lambda: block.forward_backward(made, inputs))
    wanted = inputs.x.clone()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # a capture must not include one-time work
        for _ in range(3):
            made.zero_grad()
            block.forward_backward(made, inputs)
    torch.cuda.current_stream().wait_stream(side)
    made.zero_grad()
    inputs.x.zero_()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = block.forward_backward(made, inputs)
    inputs.x.copy_(wanted)
    graph.replay()
    torch.cuda.synchronize()
    found = {"output": out, **block.gradients(made)}
    return _compared(found, expected, block.TOLERANCE[inputs.x.dtype], "the eager block", NO_GRAPHS)


def bitsandbytes() -> Finding:
    import torch
    from bitsandbytes.optim.lion import Lion8bit

    g = torch.Generator().manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(128, 128, generator=g).to(_device()))
    before = weight.detach().clone()
    rate = 1e-2
    weight.square().sum().backward()
    Lion8bit([weight], lr=rate, weight_decay=0.0).step()
    moved = float((before - weight.detach()).abs().mean())
    if not 0.9 * rate < moved < 1.1 * rate:  # each step of Lion moves each weight by the learning rate
        return problem(f"A step of Lion8bit moved weights by {moved:.3g} instead of {rate}", NO_8BIT)
    return ok(f"bitsandbytes {metadata.version('bitsandbytes')}: a step of Lion8bit is right ({_device().type})")


def fp8() -> Finding:
    import torch

    from sd_scripts.library.quantization import fp8

    if found := fp8.compute_problem(_device()):
        return skipped(found)
    dtype = torch.bfloat16 if _device().type == "cuda" else torch.float32
    return _quantized(lambda layer: fp8.quantize_(layer, dtype, compute=True), FP8_ROUNDING, NO_FP8)


def int8() -> Finding:
    from sd_scripts.library.quantization.int8 import Int8, multiplies
    from sd_scripts.library.quantization.quantized import compute_dtype, quantize_

    if not multiplies(_device()):
        return skipped("Weights in int8 are widened for each product: this GPU does not multiply in int8")
    return _quantized(lambda layer: quantize_(layer, Int8(compute=True), compute_dtype(layer)), INT8_ROUNDING, NO_INT8)


def nf4() -> Finding:
    from sd_scripts.library.quantization.nf4 import Nf4
    from sd_scripts.library.quantization.quantized import compute_dtype, quantize_

    return _quantized(lambda layer: quantize_(layer, Nf4(), compute_dtype(layer)), NF4_ROUNDING, NO_NF4)


def _quantized(quantize: "Callable[[torch.nn.Linear], object]", rounding: float, remedy: str) -> Finding:
    """Compare a layer's product and gradient before `quantize` changes the layer and after."""
    import torch

    device = _device()
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    g = torch.Generator().manual_seed(0)
    weight, data, grad = (torch.randn(size, 256, generator=g).to(device, dtype) for size in (256, 64, 64))
    layer = torch.nn.Linear(256, 256, bias=False, device=device, dtype=dtype).requires_grad_(False)
    layer.weight.copy_(weight)

    def product() -> "dict[str, torch.Tensor]":
        x = data.clone().requires_grad_()
        out = layer(x)
        (x_grad,) = torch.autograd.grad(out, x, grad)
        return {"output": out.detach(), "gradient": x_grad}

    expected = product()
    quantize(layer)
    return _compared(product(), expected, rounding, "the unquantized layer", remedy)


def _compared(
    found: "dict[str, torch.Tensor]",
    expected: "dict[str, torch.Tensor]",
    tolerance: float,
    reference: str,
    remedy: str,
) -> Finding:
    from sd_scripts.tools.doctor.block import difference

    name, by = difference(found, expected)
    if not math.isfinite(by):
        return problem(f"The {name} has NaN or infinite values, unlike {reference}'s", remedy)
    if by > tolerance:
        text = f"The {name} differs from {reference} by {by:.2g} of its size; rounding explains {tolerance:.2g} at most"
        return problem(text, remedy)
    return ok(f"Output and gradients agree with {reference}: they differ by {by:.1g} of their size ({_device().type})")


def _torch_check(
    name: str, title: str, find: Callable[[], Finding], remedy: str, *, slow: bool = False, seconds: float = 120.0
) -> Check:
    return Check(name=name, title=title, find=find, remedy=remedy, needs="torch", slow=slow, seconds=seconds)


CHECKS = (
    Check(name="torch", title="PyTorch", find=torch_import, remedy=f"{NEW_TORCH}{RUNTIME}", seconds=300.0),
    _torch_check("gpu", "GPU", gpu, nvidia.UPDATE_DRIVER),
    _torch_check("triton", "Triton", triton, REINSTALL),
    _torch_check("cache", "Compiler cache", cache, ANOTHER_CACHE),
    _torch_check("eager", "Eager block", eager, NEW_TORCH),
    _torch_check("compiled", "Compiled block", compiled, COMPILE_OFF, slow=True, seconds=600.0),
    _torch_check("cuda_graph", "CUDA graph", cuda_graph, NO_GRAPHS, slow=True),
    _torch_check("bitsandbytes", "bitsandbytes", bitsandbytes, NO_8BIT, slow=True),
    _torch_check("fp8", "fp8", fp8, NO_FP8, slow=True),
    _torch_check("int8", "int8", int8, NO_INT8, slow=True),
    _torch_check("nf4", "nf4", nf4, NO_NF4, slow=True),
)
