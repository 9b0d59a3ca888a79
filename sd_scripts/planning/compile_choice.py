"""What compile_auto chooses: whether to compile and in which mode, by what is known of the speed of the run."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sd_scripts.data.plan.epochs import BatchShape
from sd_scripts.families.cards.family_card import FamilyCard
from sd_scripts.formats.words import duration
from sd_scripts.machine.measurements import Measurement
from sd_scripts.machine.nvidia import CPU, Gpu
from sd_scripts.options.compile import WITHOUT_CUDA_GRAPHS, CompileOptions
from sd_scripts.planning.compile_plan import expected_graphs
from sd_scripts.planning.speeds import MEASURED_ON, Source, Speeds
from sd_scripts.settings.recording import keeps_from_recording
from sd_scripts.settings.settings import Settings

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


def choose_compile(
    settings: Settings,
    card: FamilyCard,
    shapes: Mapping[BatchShape, int],
    *,
    steps: int,
    accumulation: int,
    gpu: Gpu,
    known: Iterable[Measurement],
) -> CompileChoice:
    """Return the choice for a run with compile_auto: what takes the least time in all, compiling included."""
    known = list(known)

    def totals(*, anywhere: bool) -> dict[str, tuple[float, Source]]:
        found = {}
        for name, changes in CANDIDATES.items():
            changed = settings.replaced(changes)
            options = changed[CompileOptions]
            replays = options.compile_mode in WITHOUT_CUDA_GRAPHS
            if replays and (gpu.name == CPU or keeps_from_recording(changed.filled)):
                continue
            speeds = Speeds(
                card=card,
                method=settings.script.method,
                settings=changed,
                gpu=gpu,
                known=known,
                accumulation=accumulation,
                anywhere=anywhere,
            )
            graphs = expected_graphs(card, shapes.keys(), options.compile_dynamic) if card.plan.graphs else None
            step = speeds.step(shapes, compiled=options.compile)
            first = speeds.compiling(graphs) if options.compile else None
            if step and (first or not options.compile):
                found[name] = steps * step.seconds + (first.seconds if first else 0.0), step.source
        return found

    here = totals(anywhere=False)
    if EAGER in here and len(here) > 1:
        return _fastest(here, "measured on this machine" if _all_remembered(here) else "measured on such a GPU")
    if gpu.name == CPU:
        return CompileChoice(name=EAGER, reason="rule of thumb: without a GPU, compiling seldom pays")
    elsewhere = totals(anywhere=True)
    if EAGER in elsewhere and len(elsewhere) > 1:
        name = min(elsewhere, key=lambda each: elsewhere[each][0])
        return CompileChoice(name=name, reason=f"rule of thumb: fastest for {steps:,} steps on one {MEASURED_ON}")
    name = "default" if steps >= ENOUGH_STEPS else EAGER
    return CompileChoice(name=name, reason=f"rule of thumb: compiling pays after about {ENOUGH_STEPS} steps")


def _fastest(totals: Mapping[str, tuple[float, Source]], basis: str) -> CompileChoice:
    name = min(totals, key=lambda each: totals[each][0])
    others = ", ".join(f"{other} {_told(total)}" for other, (total, _) in totals.items() if other != name)
    return CompileChoice(name=name, reason=f"{basis}: {_told(totals[name][0])} in all; {others}")


def _told(seconds: float) -> str:
    """Return a time that is to be compared with others, so that minutes are not rounded too soon."""
    return f"{seconds:.0f} s" if seconds < SOON else duration(seconds)


def _all_remembered(totals: Mapping[str, tuple[float, Source]]) -> bool:
    return all(source == "remembered" for _, source in totals.values())
