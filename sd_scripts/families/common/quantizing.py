"""Quantize frozen weights as they are read: text encoders once they are loaded, the denoiser when it is placed.

Weights that become quantized keep the dtype of their file, mapped from it, until then, so that there is never a
second copy of the model in main memory or on the device.
"""

import importlib.util
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from sd_scripts.families.common.components import TEXT_ENCODER, WeightSource
from sd_scripts.families.common.layouts import Layout
from sd_scripts.library.quantization import fp8, int8
from sd_scripts.library.quantization.fp8 import Fp8
from sd_scripts.library.quantization.int8 import Int8
from sd_scripts.library.quantization.nf4 import Nf4
from sd_scripts.library.quantization.quantized import MULTIPLE, WeightFormat, fits, quantize_
from sd_scripts.options.memory import MemoryOptions
from sd_scripts.settings.quantization import Quantization

Quantize = Callable[[nn.Module, bool], object]
"""Quantizes a block that is on the device; the flag says whether it stays there."""

FORMATS: Mapping[str, WeightFormat] = {"fp8": Fp8(), "int8": Int8(), "int8_weight_only": Int8(), "nf4": Nf4()}
"""By their names in options, multiplying in the model's dtype."""


def machine_problems(memory: MemoryOptions | None, quantization: Quantization, device: torch.device) -> Iterator[str]:
    """Yield why this machine cannot store or multiply weights as the options specify."""
    if memory and memory.fp8_compute and (problem := fp8.compute_problem(device)):
        yield problem
    formats = {"quantize_base": quantization.denoiser, "quantize_text_encoders": quantization.encoders}
    if "nf4" in formats.values() and not importlib.util.find_spec("bitsandbytes"):
        option = next(name for name, chosen in formats.items() if chosen == "nf4")
        yield f"{option}: nf4 needs bitsandbytes, which is not installed; run setup again, or set int8"


def quantize_while_loading(
    sources: dict[str, WeightSource], layouts: Mapping[str, Layout], quantization: Quantization
) -> None:
    """Let components keep the weights that are to be quantized in the dtype of their file, and quantize text encoders
    when they are loaded. They are loaded to the CPU: before they are quantized they may not fit on the device."""
    of_denoiser = quantization.denoiser or quantization.fp8_compute
    of_encoders = quantization.encoders
    for name, source in sources.items():
        pattern = layouts[name].quantizable
        encodes = name.startswith(TEXT_ENCODER)
        if not pattern or not (of_encoders if encodes else of_denoiser):
            continue
        keep = partial(can_be_quantized, pattern)
        quantize = None
        if encodes:
            quantize = partial(
                quantize_encoder, weight_format=FORMATS[of_encoders], dtype=source.dtype, pattern=pattern
            )
        sources[name] = replace(source, keep=keep, quantize=quantize, device="cpu")


def can_be_quantized(pattern: re.Pattern[str], name: str, tensor: Tensor) -> bool:
    """Return whether a tensor of a component is a Linear's weight that can be quantized; e5m2 must be widened first."""
    fitting = tensor.ndim == 2 and not any(size % MULTIPLE for size in tensor.shape)
    return fitting and tensor.dtype != torch.float8_e5m2 and bool(pattern.fullmatch(name))


def quantize_encoder(
    encoder: nn.Module, weight_format: WeightFormat, dtype: torch.dtype, pattern: re.Pattern[str]
) -> None:
    """Quantize the Linears of a text encoder whose weights' names fit `pattern`, on the GPU if there is one."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    for name, layer in list(encoder.named_modules()):
        if isinstance(layer, nn.Linear) and fits(layer) and pattern.fullmatch(f"{name}.weight"):
            host = layer.weight.device
            quantize_(layer.to(device), weight_format, dtype).to(host)


def block_quantizer(
    quantization: Quantization, dtype: torch.dtype, device: torch.device, few_tokens: type[nn.Module] | tuple[()]
) -> Quantize | None:
    """Return the quantizer for the Linears of a denoiser's block that the options choose; None without one.

    `dtype`: in which it computes. `few_tokens`: the class of the parts of a block that read one token for each image,
    for which products in 8 bits would only cost time.
    """
    chosen = quantization.denoiser
    in_fp8 = quantization.fp8_compute
    if in_fp8 or chosen == "fp8":
        hold: Callable[..., object] = partial(_hold_in_fp8, dtype=dtype, compute=in_fp8, spare=bool(chosen))
    elif chosen:
        weight_format = FORMATS[chosen]
        fast = Int8(compute=True) if chosen == "int8" and int8.multiplies(device) else weight_format
        hold = partial(_hold, dtype=dtype, weight_format=weight_format, fast=fast)
    else:
        return None

    def quantize(block: nn.Module, stays: bool) -> None:
        few = {layer for part in block.modules() if isinstance(part, few_tokens) for layer in part.modules()}
        for layer in list(block.modules()):
            if isinstance(layer, nn.Linear) and fits(layer):
                hold(layer, stays=stays, many_tokens=layer not in few)

    return quantize


def _hold(
    layer: nn.Linear,
    *,
    stays: bool,
    many_tokens: bool,
    dtype: torch.dtype,
    weight_format: WeightFormat,
    fast: WeightFormat,
) -> None:
    quantize_(layer, fast if many_tokens else weight_format, dtype)


def _hold_in_fp8(
    layer: nn.Linear, *, stays: bool, many_tokens: bool, dtype: torch.dtype, compute: bool, spare: bool
) -> None:
    """fp8_compute alone is for speed: blocks that stay on the device also keep transposed weights, layers with few
    tokens stay in `dtype`, and memory is as in bf16."""
    if layer.weight.dtype != fp8.STORAGE:
        layer.to(dtype)  # until here it has the dtype of its file
    fast = compute and many_tokens
    if fast or spare or layer.weight.dtype == fp8.STORAGE:
        fp8.quantize_(layer, dtype, compute=fast, keep_transposed=stays and not spare)
