"""AdamW with moments in 8 bits, which a recorded step can contain.

bitsandbytes launches a kernel for each weight and passes it the number of the step, so its update cannot be recorded.
This one computes the same update and writes the same state, so that either continues the other's run.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor

from sd_scripts.library.kernels.triton_kernels import built_for
from sd_scripts.library.optim import stochastic_rounding
from sd_scripts.library.optim.blockwise import BLOCK, blocks_of, dequantize, levels, quantize
from sd_scripts.library.optim.rounding_adamw import Hyperparams, ParamUpdate, RoundingAdamW, advance
from sd_scripts.library.optim.stochastic_rounding import Key, round_stochastically

SMALLEST = 4096
"""Weights with fewer values have moments in float32."""
WRAPPED = "__bnb_optimizer_quant_state__"
"""Where bitsandbytes puts the tensors of a weight's state, to hide them from FSDP."""


class AdamW8bit(RoundingAdamW):
    """RoundingAdamW whose moments are quantized to 8 bits in blocks of 256 values, as in bitsandbytes.

    Moments are rounded to the nearest level, half-precision weights stochastically.
    """

    known_as = state_class = "bitsandbytes.optim.adamw.AdamW8bit"
    moment_names = ("state1", "state2")

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            group.setdefault("seed", self.defaults["seed"])  # which bitsandbytes' states lack

    def _first_moments(self, weight: Tensor) -> dict[str, Tensor]:
        if weight.numel() < SMALLEST:
            return {name: torch.zeros_like(weight, dtype=torch.float32) for name in self.moment_names}
        moments = {
            name: torch.zeros_like(weight, dtype=torch.uint8, memory_format=torch.contiguous_format)
            for name in self.moment_names
        }
        scales = {name: torch.zeros(blocks_of(weight), device=weight.device) for name in ("absmax1", "absmax2")}
        return moments | scales | _maps(weight.device)

    def _tables(self, updates: list[ParamUpdate], device: torch.device) -> list[Any]:
        kernels = kernels_on(device)
        if not kernels:
            return []
        quantized = [update for update in updates if update.absmax]
        small = [update for update in updates if not update.absmax]
        tables = super()._tables(small, device) if small else []
        return [*tables, kernels.Tables8bit(quantized)] if quantized else tables

    def _update(self, update: ParamUpdate, hyper: Hyperparams) -> None:
        if update.absmax is None:
            super()._update(update, hyper)
            return
        maps = _maps(update.weight.device).values()
        stored = [*zip((update.exp_avg, update.exp_avg_sq), update.absmax, maps, strict=True)]
        exp_avg, exp_avg_sq = (dequantize(*each) for each in stored)
        weight = update.weight.float()
        advance(weight, exp_avg, exp_avg_sq, update, hyper)
        for (codes, absmax, of_levels), value in zip(stored, (exp_avg, exp_avg_sq), strict=True):
            new_codes, new_absmax = quantize(value, of_levels)
            codes.copy_(new_codes)
            absmax.copy_(new_absmax)
        if weight is not update.weight:
            round_stochastically(weight, update.weight, Key(hyper.seed, update.step, update.number))
        if update.copy is not None:
            update.copy.copy_(weight)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state of this class, or of bitsandbytes'. Raises ValueError if it does not fit."""
        if "portions" in state_dict:  # of full_bf16 in 1.0.0, whose partitions this optimizer does not know
            raise ValueError(
                "its optimizer updated one block at a time; set optimizer_type = bitsandbytes.optim.AdamW8bit"
            )
        states = {number: saved | saved.get(WRAPPED, {}) for number, saved in state_dict["state"].items()}
        super().load_state_dict({**state_dict, "state": states})

    def _loaded_moments(self, weight: Tensor, saved: Mapping[str, Any]) -> dict[str, Tensor]:
        expected = self._first_moments(weight)
        if any(name not in saved or saved[name].numel() != value.numel() for name, value in expected.items()):
            raise ValueError(f"the optimizer's state does not fit a weight of shape {tuple(weight.shape)}")
        maps = _maps(torch.device("cpu"))
        if any(not torch.equal(saved[name].cpu(), maps[name]) for name in expected.keys() & maps.keys()):
            raise ValueError("the optimizer's state has levels other than bitsandbytes' dynamic map")
        for name in expected.keys() - maps.keys():
            expected[name].copy_(saved[name])
        return expected


def _maps(device: torch.device) -> dict[str, Tensor]:
    """Return the levels of both moments; all states share them."""
    return {"qmap1": levels(device, signed=True), "qmap2": levels(device, signed=False)}


@cache
def kernels_on(device: torch.device) -> Any:
    """Return the kernel module for this device, or None to use plain PyTorch."""

    def attempt(kernels: Any) -> None:
        weight = torch.zeros(BLOCK, dtype=torch.bfloat16, device=device)
        codes, scale = weight.to(torch.uint8), weight[:1].float()
        table = kernels.Tables8bit([ParamUpdate(weight, weight, codes, codes, None, 1, 0, (scale, scale))])
        table.set_steps(lambda weight: 1, (0.9, 0.999))
        table.update(Hyperparams(0.0, (0.9, 0.999), 1e-8, 0.0, 0, None))

    if stochastic_rounding.kernels_on(device) is None:
        return None
    return built_for(
        device, "sd_scripts.library.optim.adamw_8bit_kernels", attempt, "the updates of AdamW8bit take longer"
    )
