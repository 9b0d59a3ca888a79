"""The choice of compile_auto: whether to compile and in which mode, by the run's known speed."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sd_scripts.data.plan.epochs import BatchShape
from sd_scripts.formats.words import duration
from sd_scripts.machine.nvidia import CPU
from sd_scripts.options.compile import WITHOUT_CUDA_GRAPHS, CompileOptions
from sd_scripts.planning.speeds import MEASURED_ON, Estimate, Speeds
from sd_scripts.settings.recording import keeps_from_recording

EAGER = "no compiling"
CANDIDATES: Mapping[str, Mapping[str, Any]] = {
    EAGER: {"compile": False},
    "default": {"compile_mode": "default"},
    "reduce-overhead": {"compile_mode": "reduce-overhead"},
    "max-autotune-no-cudagraphs": {"compile_mode": "max-autotune-no-cudagraphs"},
}
"""Name -> what differs from the settings with compile on."""
SOON = 1000.0
ENOUGH_STEPS = 500
"""Steps in which compiling usually pays on a GPU, where nothing is known of the model."""


@dataclass(frozen=True, kw_only=True)
class CompileChoice:
    name: str
    """One of CANDIDATES."""
    reason: str

    @property
    def changes(self) -> Mapping[str, Any]:
        return CANDIDATES[self.name]

    def __str__(self) -> str:
        return f"{self.name} ({self.reason})"


def choose_compile(speeds: Speeds, shapes: Mapping[BatchShape, float], steps: int) -> CompileChoice:
    """Return the choice for a run with compile_auto: what takes the least time in all, compiling included."""
    here = _totals(speeds, shapes, steps)
    if here:
        name = _fastest(here)
        remembered = all(total.source == "remembered" for total in here.values())
        others = ", ".join(f"{other} {_rounded(total)}" for other, total in here.items() if other != name)
        reason = f"measured on such a GPU: {_rounded(here[name])} in all; {others}"
        if remembered:
            reason = f"measured on this machine: {_rounded(here[name])} in all; {others}"
        return CompileChoice(name=name, reason=reason)
    if speeds.gpu.name == CPU:
        return CompileChoice(name=EAGER, reason="rule of thumb: without a GPU, compiling seldom pays")
    if elsewhere := _totals(replace(speeds, anywhere=True), shapes, steps):
        reason = f"rule of thumb: fastest for {steps:,} steps on one {MEASURED_ON}"
        return CompileChoice(name=_fastest(elsewhere), reason=reason)
    name = "default" if steps >= ENOUGH_STEPS else EAGER
    return CompileChoice(name=name, reason=f"rule of thumb: compiling pays after about {ENOUGH_STEPS} steps")


def _totals(speeds: Speeds, shapes: Mapping[BatchShape, float], steps: int) -> dict[str, Estimate]:
    """Return the time of all steps by candidate; empty unless it is known without compiling and in some mode."""
    totals: dict[str, Estimate] = {}
    for name, changes in CANDIDATES.items():
        settings = speeds.settings.replaced(changes)
        replays = settings[CompileOptions].compile_mode in WITHOUT_CUDA_GRAPHS
        if replays and (speeds.gpu.name == CPU or keeps_from_recording(settings.filled)):
            continue
        if total := replace(speeds, settings=settings).total(shapes, steps):
            totals[name] = total
    return totals if EAGER in totals and len(totals) > 1 else {}


def _fastest(totals: Mapping[str, Estimate]) -> str:
    return min(totals, key=lambda name: totals[name].seconds)


def _rounded(total: Estimate) -> str:
    """Return a time that is to be compared with others, so that minutes are not rounded too soon."""
    return f"{total.seconds:.0f} s" if total.seconds < SOON else duration(total.seconds)
