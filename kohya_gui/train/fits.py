"""Which presets of a family fit this machine's GPU, and which of them to begin with."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from kohya_gui.form.configuration import families_of
from kohya_gui.runs.plan_process import PlanProcess
from kohya_gui.tabs import TABS
from kohya_gui.train.starting_point import Preset, presets_of
from sd_scripts.settings.catalog import script_for

logger = logging.getLogger("sd_scripts")

HEADROOM = 0.9
"""Share of the GPU's memory that a run may need: the desktop and other programs have the rest."""
LOW_MEMORY = "low_memory"
"""In the names of presets that save memory, at a price."""
SAFE_START = "safe_start"
"""At the end of the name of a family's first preset."""


class Fits:
    """Asks the process that makes plans, once for each family and tab."""

    def __init__(self, process: PlanProcess) -> None:
        self._process = process
        self._known: dict[tuple[str, str], dict[str, Any]] = {}

    def of(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the GPU's name and bytes, 0 without one, the bytes needed with each preset, None where they are not
        known, and the recommended preset. Raises ValueError for a body without a tab and a family of it."""
        tab = TABS.get(str(body.get("tab")))
        family = str(body.get("family"))
        if tab is None or family not in families_of(tab.method):
            raise ValueError("The request does not name a tab and a model family")
        presets = presets_of(tab.name, family)
        answer: Mapping[str, Any] | None = self._known.get((tab.name, family))
        if answer is None:
            identity = script_for(family, tab.method).identity
            runs = {preset.name: {**identity, **preset.values} for preset in presets}
            try:
                answer = self._process.ask({"fit": runs})
            except (TimeoutError, EOFError, OSError):
                answer = {"fault": "no answer"}
            if "fault" in answer:
                logger.error("The memory of presets is not known:\n%s", answer["fault"])
                answer = {"gpu": "", "bytes": 0, "needed": {}}
            else:
                self._known[tab.name, family] = dict(answer)
        usable = HEADROOM * answer["bytes"]
        return {**answer, "usable": usable, "recommended": recommended(presets, answer["needed"], usable)}


def recommended(presets: Sequence[Preset], needed: Mapping[str, int | None], usable: float) -> str:
    """Return the preset to begin with on a GPU with `usable` bytes, 0 if it is not known; empty if there are none.

    The family's first preset if it fits, else the one that saves least memory of those that do, else the one that saves
    most.
    """
    if not presets:
        return ""
    first = presets[0].name
    sizes = {preset.name: size for preset in presets if (size := needed.get(preset.name))}
    if not usable or sizes.get(first, 0) <= usable:
        return first
    of_all_models = first.removesuffix(SAFE_START) + LOW_MEMORY  # others are for one model of several
    saving = {name: size for name, size in sizes.items() if name.startswith(of_all_models)}
    fitting = {name: size for name, size in saving.items() if size <= usable}
    if fitting:
        return max(fitting, key=lambda name: fitting[name])
    return min(saving, key=lambda name: saving[name], default=first)
