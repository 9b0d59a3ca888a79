"""Training methods: what is trained and what is saved, independent of the model family. See lora.py, full.py and
textual_inversion.py."""

from abc import ABC, abstractmethod

import torch

from sd_scripts.families.common.family import Components, Family
from sd_scripts.options.networks.network import NetworkOptions
from sd_scripts.settings.settings import Settings
from sd_scripts.training.context import Context
from sd_scripts.training.methods.trainable import Trainable


class Method(ABC):
    name: str

    def check(self, family: Family, settings: Settings) -> list[str]:
        """Return the problems that names and small files reveal; nothing is loaded."""
        return []

    @abstractmethod
    def open(self, family: Family, context: Context, device: torch.device) -> Components:
        """Open the base model; each component will be loaded in the dtype that the method starts with."""

    @abstractmethod
    def trains_text_encoders(self, family: Family, context: Context) -> tuple[bool, ...]:
        """Return which text encoders are trained."""

    def needs_all(self, family: Family, network: NetworkOptions | None) -> bool:
        """Return whether the components that only encode stay in memory after they have."""
        return False

    def change_base(self, family: Family, components: Components, context: Context, name: str) -> None:  # noqa: B027
        """Prepare the component of this name, just loaded, before anything is encoded with it."""

    @abstractmethod
    def prepare(self, family: Family, components: Components, context: Context) -> Trainable:
        """Make the model trainable. Its components are on the device already."""
