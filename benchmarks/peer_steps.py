"""Time training steps of diffusers' transformer with peft's LoRA, as diffusers' training scripts train: random weights,
inputs prepared in advance, bf16 autocast, fused AdamW; between calls of benchmarks.steps.

python -m benchmarks.peer_steps --family z_image [--rows eager compiled compiled_checkpointing] [--steps 10]
python -m benchmarks.peer_steps --family flux2 --size 9b
python -m benchmarks.peer_steps --family wan --rows compiled_checkpointing --resolution 832,480 --frames 81 --steps 4

`compiled` compiles the repeated blocks. A step is timed with the GPU idle before and after it.
"""

import argparse
import re
import statistics
import sys
import time
from typing import Any

import torch
from peft import LoraConfig
from torch import nn
from torch.nn import functional as F

from benchmarks.full_size import full_size
from benchmarks.pipelines import pipeline_module
from benchmarks.steps import machine
from sd_scripts.data.plan.blueprint import parse_resolution
from sd_scripts.families.common.components import DENOISER
from sd_scripts.tools.timed_run import GIB

FAMILIES = ("anima", "chroma", "flux2", "hunyuan_video", "krea2", "wan", "z_image")
"""Families whose pipeline has `step_arguments`."""
ROWS = ("eager", "compiled", "eager_checkpointing", "compiled_checkpointing")
RANK = 16


def adapted_layers(transformer: nn.Module) -> list[str]:
    """Return the names of the Linear layers in its blocks, which our LoRA adapts too."""
    linear = [name for name, module in transformer.named_modules() if isinstance(module, nn.Linear)]
    return [name for name in linear if re.search(r"(blocks|layers)\.\d", name) and "context_embedder" not in name]


@torch.no_grad()
def draw_weights(transformer: nn.Module) -> None:
    """Draw weights that preserve the variance of activations."""
    for parameter in transformer.parameters():
        deviation = parameter[0].numel() ** -0.5 if parameter.ndim > 1 else 0.0
        parameter.normal_(std=deviation) if deviation else parameter.fill_(1.0)


def sizes_of(transformer: Any) -> Any:
    """Return the sizes of one of our transformers."""
    return getattr(transformer, "params", None) or transformer.shape


def make(family: str, row: str, sizes: Any, device: str = "cuda") -> Any:
    """Return the transformer with these sizes, in bf16, with a LoRA in fp32."""
    with torch.device(device):
        torch.set_default_dtype(torch.bfloat16)
        transformer = pipeline_module(family).make_transformer(sizes)
        torch.set_default_dtype(torch.float32)
    draw_weights(transformer)
    transformer.requires_grad_(False)
    transformer.add_adapter(LoraConfig(r=RANK, lora_alpha=RANK, target_modules=adapted_layers(transformer)))
    for parameter in transformer.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    if "checkpointing" in row:
        transformer.enable_gradient_checkpointing()
    if "compiled" in row:
        transformer.compile_repeated_blocks()
    return transformer.train()


def on_device(value: Any, device: str) -> Any:
    """Return a tensor, or those in a list, on the device, numbers with fractions in bf16."""
    if isinstance(value, list):
        return [on_device(each, device) for each in value]
    return value.to(device, torch.bfloat16 if value.is_floating_point() else None)


def seconds_of_steps(transformer: Any, arguments: dict[str, Any], steps: int, warm_up: int) -> list[float]:
    """Train on these arguments and return the seconds of each step after the warm-up."""
    device = next(transformer.parameters()).device.type
    parameters = [each for each in transformer.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(parameters, 1e-4, fused=True)
    arguments = {name: on_device(value, device) for name, value in arguments.items()}
    seconds = []
    for _ in range(warm_up + steps):
        _wait(device)
        began = time.perf_counter()
        with torch.autocast(device, torch.bfloat16):
            predicted = transformer(**arguments, return_dict=False)[0]
        predicted = predicted[0] if isinstance(predicted, list) else predicted
        F.mse_loss(predicted.float(), torch.zeros_like(predicted, dtype=torch.float32)).backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        _wait(device)
        seconds.append(time.perf_counter() - began)
    return seconds[warm_up:]


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", choices=FAMILIES, required=True)
    parser.add_argument("--size", default="", help="of the model, where there are several")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=["eager", "compiled"])
    parser.add_argument("--resolution", default="1024,1024", metavar="W,H")
    parser.add_argument("--frames", type=int, default=1)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--warm_up", type=int, default=3)
    arguments = parser.parse_args(argv)
    width, height = parse_resolution(arguments.resolution, "--resolution")
    print(f"{machine()}\n\n| step of diffusers' transformer | median ms | min to max | GiB allocated | first s |")
    print("|---" * 5 + "|", flush=True)
    sizes = sizes_of(full_size(arguments.family, arguments.size).modules()[DENOISER])
    for row in arguments.rows:
        transformer = make(arguments.family, row, sizes)
        inputs = pipeline_module(arguments.family).step_arguments(transformer, width, height, arguments.frames)
        torch.cuda.reset_peak_memory_stats()
        began = time.perf_counter()
        seconds_of_steps(transformer, inputs, 1, 0)
        first = time.perf_counter() - began
        times = [1000 * each for each in seconds_of_steps(transformer, inputs, arguments.steps, arguments.warm_up)]
        peak = torch.cuda.max_memory_allocated() / GIB
        median, least, most = statistics.median(times), min(times), max(times)
        print(f"| {row} | {median:.1f} | {least:.1f} to {most:.1f} | {peak:.2f} | {first:.1f} |", flush=True)
        del transformer
        torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    sys.exit(main())
