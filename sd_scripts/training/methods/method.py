"""Training methods: what is trained and what is saved, independent of the model family. See lora.py, full.py and
textual_inversion.py."""

from typing import Protocol

import torch

from sd_scripts.families.common.family import Components, Family
from sd_scripts.settings.settings import Settings
from sd_scripts.training.context import Context
from sd_scripts.training.methods.trainable import Trainable


class Method(Protocol):
    name: str

    def check(self, family: Family, settings: Settings) -> list[str]:
        """Return the problems that names and small files reveal; nothing is loaded."""

    def open(self, family: Family, context: Context, device: torch.device) -> Components:
        """Open the base model; each component will be loaded in the dtype that the method starts with."""

    def trains_text_encoders(self, family: Family, context: Context) -> tuple[bool, ...]:
        """Return which text encoders are trained."""

    def needs_all(self, family: Family, settings: Settings) -> bool:
        """Return whether the components that only encode stay in memory after they have."""

    def change_base(self, family: Family, components: Components, context: Context, name: str) -> None:
        """Prepare the component of this name, just loaded, before anything is encoded with it."""

    def prepare(self, family: Family, components: Components, context: Context) -> Trainable:
        """Make the model trainable. Its components are on the device already."""
