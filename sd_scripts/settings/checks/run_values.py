"""Inputs of a check between options: the option groups of a run and the card of its family."""

from dataclasses import dataclass
from typing import Any

from sd_scripts.families.cards.family_card import FamilyCard
from sd_scripts.options.spec import Filled, Group, WrongValue


@dataclass(frozen=True)
class RunValues:
    """The filled groups; a check ends when it reads a wrong value, or a group that the run does not have."""

    filled: Filled
    card: FamilyCard

    def __getitem__(self, group: type[Group]) -> Group:
        if group not in self.filled:
            raise WrongValue(group.title)
        return self.filled[group]  # type: ignore[return-value]

    def get(self, group: type[Group]) -> Group | None:
        return self.filled.get(group)  # type: ignore[return-value]

    def value(self, name: str) -> Any:
        return next(getattr(filled, name) for filled in self.filled.values() if hasattr(filled, name))
