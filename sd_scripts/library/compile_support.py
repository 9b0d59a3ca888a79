"""Whether this machine can compile with the chosen options; nothing is compiled to find out."""

import importlib.util
import sys
from itertools import compress

import torch

from sd_scripts.library.compile_utils import inductor_option_problems
from sd_scripts.machine import compile_cache
from sd_scripts.machine.cpp_compiler import has_msvc
from sd_scripts.options.compile import CompileMoreOptions, CompileOptions


def problems(options: CompileOptions, more: CompileMoreOptions, device: torch.device) -> list[str]:
    """Return why this machine cannot compile with these options, with remedies."""
    if not (names := chosen_of(options, more)):
        return []
    sentences = []
    named = ", ".join(names)
    off = f"turn {' and '.join(names)} off"
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2] if part.isdigit())
    if version < (2, 1):
        sentences.append(f"{named}: PyTorch {torch.__version__} is too old; install 2.1 or newer, or {off}")
    needs_triton = options.compile_backend == "inductor" and device.type == "cuda"
    if needs_triton and importlib.util.find_spec("triton") is None:
        package = "triton-windows" if sys.platform == "win32" else "triton"
        sentences.append(f"{named}: Triton is not installed; run `pip install {package}`, or {off}")
    if options.compile_backend != "inductor":  # the others generate no code
        return sentences
    sentences += inductor_option_problems(options.compile_options)
    compiles_cpp = device.type == "cpu" or options.compile_dynamic == "true"
    if compiles_cpp and (problem := compile_cache.folder_problem()):
        sentences.append(problem)
    if options.compile_dynamic == "true" and sys.platform == "win32" and not has_msvc():
        sentences.append(
            "compile_dynamic: true needs the C++ compiler of Visual Studio on Windows; install its Build Tools and "
            "start from the x64 Native Tools prompt, or set compile_dynamic = auto"
        )
    return sentences


def chosen_of(options: CompileOptions, more: CompileMoreOptions) -> list[str]:
    """Return the names of the options that turn compiling on."""
    names = ("compile", "compile_text_encoder", "compile_vae")
    return list(compress(names, (options.compile, more.compile_text_encoder, more.compile_vae)))
