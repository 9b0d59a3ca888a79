"""Time training steps of diffusers' transformer with peft's LoRA, as diffusers' training scripts train: random weights,
inputs prepared in advance, gradient checkpointing, bf16 autocast, fused AdamW; between calls of benchmarks.steps.

python -m benchmarks.peer_steps --family wan [--rows eager compiled] [--resolution 832,480] [--frames 81] [--steps 4]

`compiled` compiles the repeated blocks. A step is timed with the GPU idle before and after it.
"""

import argparse
import statistics
import sys
import time
from typing import Any

import torch
from peft import LoraConfig
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.full_size import full_size
from benchmarks.pipelines import pipeline_module
from benchmarks.steps import machine
from sd_scripts.data.plan.blueprint import parse_resolution
from sd_scripts.families.common.components import DENOISER
from sd_scripts.tools.timed_run import GIB

FAMILIES = ("hunyuan_video", "wan")
"""Families whose pipeline has `step_arguments`."""
RANK = 16
VAE_STEP = 8
"""Pixels of a latent's side."""


def adapted_layers(transformer: nn.Module) -> list[str]:
    """Return the names of the Linear layers in its blocks, which our LoRA adapts too."""
    linear = [name for name, module in transformer.named_modules() if isinstance(module, nn.Linear)]
    return [name for name in linear if "blocks." in name and "context_embedder" not in name]


@torch.no_grad()
def draw_weights(transformer: nn.Module) -> None:
    """Draw weights that preserve the variance of activations."""
    for parameter in transformer.parameters():
        deviation = parameter[0].numel() ** -0.5 if parameter.ndim > 1 else 0.0
        parameter.normal_(std=deviation) if deviation else parameter.fill_(1.0)


def make(family: str, *, compiled: bool, tiny: Any = None) -> Any:
    """Return the transformer on the GPU, in bf16, with a LoRA in fp32; `tiny`: the sizes of a miniature, on the CPU."""
    device = "cpu" if tiny else "cuda"
    with torch.device(device):
        params = tiny or full_size(family).modules()[DENOISER].params
        torch.set_default_dtype(torch.bfloat16)
        transformer = pipeline_module(family).make_transformer(params)
        torch.set_default_dtype(torch.float32)
    draw_weights(transformer)
    transformer.requires_grad_(False)
    transformer.add_adapter(LoraConfig(r=RANK, lora_alpha=RANK, target_modules=adapted_layers(transformer)))
    for parameter in transformer.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    transformer.enable_gradient_checkpointing()
    if compiled:
        transformer.compile_repeated_blocks()
    return transformer.train()


def seconds_of_steps(transformer: Any, family: str, latents: Tensor, steps: int, warm_up: int) -> list[float]:
    """Train on these latents (1, C, f, h, w) and return the seconds of each step after the warm-up."""
    device = latents.device.type
    parameters = [each for each in transformer.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(parameters, 1e-4, fused=True)
    arguments = pipeline_module(family).step_arguments(transformer, latents, torch.full((1,), 500.0, device=device))
    target = torch.randn_like(latents)
    seconds = []
    for _ in range(warm_up + steps):
        _wait(device)
        began = time.perf_counter()
        with torch.autocast(device, torch.bfloat16):
            predicted = transformer(**arguments, return_dict=False)[0]
        F.mse_loss(predicted.float(), target.float()).backward()
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
    parser.add_argument("--rows", nargs="+", choices=("eager", "compiled"), default=["eager", "compiled"])
    parser.add_argument("--resolution", default="832,480", metavar="W,H")
    parser.add_argument("--frames", type=int, default=81)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--warm_up", type=int, default=2)
    arguments = parser.parse_args(argv)
    width, height = parse_resolution(arguments.resolution, "--resolution")
    print(f"{machine()}\n\n| step of diffusers' transformer | median ms | min to max | GiB allocated | first s |")
    print("|---" * 5 + "|", flush=True)
    for row in arguments.rows:
        transformer = make(arguments.family, compiled=row == "compiled")
        shape = (1, transformer.config.in_channels, 1 + arguments.frames // 4, height // VAE_STEP, width // VAE_STEP)
        latents = torch.randn(shape, device="cuda").bfloat16()
        torch.cuda.reset_peak_memory_stats()
        began = time.perf_counter()
        seconds_of_steps(transformer, arguments.family, latents, 1, 0)
        first = time.perf_counter() - began
        times = [
            1000 * each
            for each in seconds_of_steps(transformer, arguments.family, latents, arguments.steps, arguments.warm_up)
        ]
        peak = torch.cuda.max_memory_allocated() / GIB
        median, least, most = statistics.median(times), min(times), max(times)
        print(f"| {row} | {median:.1f} | {least:.1f} to {most:.1f} | {peak:.2f} | {first:.1f} |", flush=True)
        del transformer, latents
        torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    sys.exit(main())
