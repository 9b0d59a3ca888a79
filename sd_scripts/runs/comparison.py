"""The comparison of a run's checkpoints: which files they are, which one is best, and the file that records it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from sd_scripts.runs.folder import read_json
from sd_scripts.runs.outputs import DIFFUSERS_ENDING, EMA_ENDING, EMBEDDING_ENDING, STATE_ENDING
from sd_scripts.runs.run_state import RunState

Rule = Literal["lowest", "smoothed", "earliest", "last"]
"""How the best checkpoint is chosen: see RULES."""
RULES: dict[Rule, str] = {
    "lowest": "Lowest validation loss",
    "smoothed": "Lowest validation loss, smoothed over neighbours",
    "earliest": "Earliest within some percent of the lowest validation loss",
    "last": "Last checkpoint",
}
assert tuple(RULES) == get_args(Rule)
WITHIN = 1.0
"""Percent within which `earliest` accepts a loss."""
NEIGHBOURS = (1, 2, 1)
"""Weights of the checkpoint before, the checkpoint itself and the one after it in a smoothed loss."""
RESULT, GRID, GRID_CLIP, FOLDER = "comparison.json", "grid.png", "grid.mp4", "comparison"
"""The file that describes a comparison, the image and the clip of its grid, and their folder in a run folder."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A saved file that is compared."""

    path: Path
    step: int | None = None
    """The step after which it was saved; None if that is unknown."""

    @property
    def name(self) -> str:
        return self.path.name.removesuffix(self.path.suffix)

    @property
    def is_ema(self) -> bool:
        return self.name.endswith(EMA_ENDING)

    @property
    def label(self) -> str:
        """What distinguishes it from the others of its run."""
        if self.step is None:
            return self.name
        return f"step {self.step}{' EMA' if self.is_ema else ''}"


def checkpoints_of(state: RunState) -> list[Checkpoint]:
    """Return the files that a run saved and that still exist, each once, in the order of their steps: no states,
    embeddings, or copies in other formats."""
    found: dict[Path, Checkpoint] = {}
    for made in state.saved:
        if made.path.name.endswith(STATE_ENDING) or made.path.stem.endswith((DIFFUSERS_ENDING, EMBEDDING_ENDING)):
            continue
        if (path := made.find()) and path.exists():
            found[path] = Checkpoint(path=path, step=made.step)
    return sorted(found.values(), key=lambda each: (each.step or 0, each.is_ema))


def best(
    losses: Sequence[float | None], rule: Rule, within: float = WITHIN, series: Sequence[object] = ()
) -> int | None:
    """Return the index of the best checkpoint by a rule; None if it needs losses and there are none.

    `losses` are in the order of training. `series` groups checkpoints that follow each other, such as those with
    and without EMA: a loss is smoothed over neighbours of its own series. Of equal losses the earliest is best.
    """
    if rule == "last":
        return len(losses) - 1 if losses else None
    scores = smoothed(losses, series) if rule == "smoothed" else list(losses)
    known = [(loss, index) for index, loss in enumerate(scores) if loss is not None]
    if not known:
        return None
    lowest, index = min(known)
    if rule != "earliest":
        return index
    return next(index for loss, index in known if loss <= lowest + abs(lowest) * within / 100)


def smoothed(losses: Sequence[float | None], series: Sequence[object] = ()) -> list[float | None]:
    """Return each loss averaged with its neighbours in the same series, by the weights NEIGHBOURS; at the ends, and
    next to a checkpoint without a loss, over the existing ones."""
    result: list[float | None] = [None] * len(losses)
    kinds = list(series) or [None] * len(losses)
    for kind in dict.fromkeys(kinds):
        places = [place for place, own in enumerate(kinds) if own == kind and losses[place] is not None]
        for position, place in enumerate(places):
            near = [(position + offset, weight) for offset, weight in zip((-1, 0, 1), NEIGHBOURS, strict=True)]
            used = [(losses[places[at]] or 0.0, weight) for at, weight in near if 0 <= at < len(places)]
            result[place] = sum(loss * weight for loss, weight in used) / sum(weight for _, weight in used)
    return result


def read_comparison(folder: Path) -> dict[str, Any] | None:
    """Return the contents of a folder's RESULT file; None if it is missing or was not written by a comparison."""
    found = read_json(folder / RESULT)
    wanted = ("checkpoints", "strengths", "prompts", "cells")
    return found if isinstance(found, dict) and all(isinstance(found.get(key), list) for key in wanted) else None
