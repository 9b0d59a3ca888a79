"""How far gradients are from a reference, by kind of layer, as a table."""

import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

Gradients = Mapping[str, Tensor]
"""Gradients of a LoRA by the names of its tensors in files."""
ALL = "all"


@dataclass(kw_only=True)
class Row:
    """The results of one way to compute a step, each for the same inputs in order."""

    losses: list[float] = field(default_factory=list)
    distances: list[dict[str, float]] = field(default_factory=list)
    """Kind of layer -> distance from the reference."""

    def distance(self, kind: str) -> float:
        return statistics.fmean(each[kind] for each in self.distances)

    @property
    def loss(self) -> float:
        return statistics.fmean(self.losses)


def kind_of(name: str, kinds: Mapping[str, str]) -> str:
    """Return the kind of a LoRA's tensor; `kinds`: kind -> regular expression that finds the names of its layers."""
    layer = name.partition(".")[0]
    (kind,) = (kind for kind, pattern in kinds.items() if re.search(pattern, layer))
    return kind


def distances(gradients: Gradients, reference: Gradients, kinds: Mapping[str, str]) -> dict[str, float]:
    """Return |gradients - reference| / |reference|, of all layers and of each kind, norms over all tensors together."""
    assert gradients.keys() == reference.keys()
    parts = {ALL: list(reference)} | {kind: [n for n in reference if kind_of(n, kinds) == kind] for kind in kinds}
    apart = {name: float((gradients[name] - expected).norm()) ** 2 for name, expected in reference.items()}
    sizes = {name: float(expected.norm()) ** 2 for name, expected in reference.items()}
    return {
        part: (sum(apart[name] for name in names) / sum(sizes[name] for name in names)) ** 0.5
        for part, names in parts.items()
    }


def table(rows: Mapping[str, Row], reference: Row, base: str, kinds: Sequence[str]) -> str:
    """Return a table with a column for each row: its distances, each with its ratio to the distance of row `base`, and
    its mean loss."""

    def cell(row: Row, kind: str) -> str:
        distance = row.distance(kind)
        return f"{distance:.2e} ({distance / rows[base].distance(kind):.2f})"

    lines = [f"| layers | reference | {' | '.join(rows)} |", "|---" * (len(rows) + 2) + "|"]
    lines += [f"| {kind} | | {' | '.join(cell(row, kind) for row in rows.values())} |" for kind in (ALL, *kinds)]
    losses = [f"{row.loss:.6f}" for row in (reference, *rows.values())]
    return "\n".join([*lines, f"| loss | {' | '.join(losses)} |"])
