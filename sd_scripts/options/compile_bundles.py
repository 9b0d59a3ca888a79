"""Compile bundles: named choices of compile options for the page. Files and flags contain the options themselves."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sd_scripts.options.compile import CompileOptions


@dataclass(frozen=True, kw_only=True)
class CompileBundle:
    """Values for all compile options under one name."""

    title: str
    help: str
    changes: Mapping[str, Any]
    """What differs from the defaults."""

    @property
    def options(self) -> CompileOptions:
        return CompileOptions(**self.changes)


NONE = CompileBundle(title="None", help="The model is not compiled.", changes={})
BUNDLES = (
    NONE,
    CompileBundle(
        title="Auto",
        help="Chooses the fastest on this machine, else by a rule of thumb, and checks the choice as the run starts.",
        changes={"compile": True, "compile_auto": True},
    ),
    CompileBundle(
        title="Default",
        help="Inductor's defaults. The first step takes up to a minute; for most runs.",
        changes={"compile": True},
    ),
    CompileBundle(
        title="Inductor",
        help="Benchmarks kernels and fuses epilogues, without CUDA graphs. Takes minutes at first; for long runs.",
        changes={"compile": True, "compile_mode": "max-autotune-no-cudagraphs"},
    ),
    CompileBundle(
        title="Triton",
        help="As Inductor, with CUDA graphs and padded shapes; for long runs at small batch sizes on NVIDIA GPUs.",
        changes={"compile": True, "compile_mode": "max-autotune", "compile_options": ["shape_padding=True"]},
    ),
    CompileBundle(
        title="AOT eager",
        help="Captures graphs for any shape and runs them with PyTorch's own kernels. Starts quickly and gains little; "
        "for when other bundles fail.",
        changes={"compile": True, "compile_backend": "aot_eager", "compile_dynamic": "true"},
    ),
)
CUSTOM = "Custom"
"""The title of values that match no bundle."""
CUSTOM_HELP = "Set each option yourself."


def bundle_title(options: CompileOptions) -> str:
    """Return the title of the bundle that has these options. Nothing but `compile` matters while it is off."""
    if not options.compile:
        return NONE.title
    return next((bundle.title for bundle in BUNDLES if bundle.options == options), CUSTOM)
