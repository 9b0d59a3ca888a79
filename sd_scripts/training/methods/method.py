"""Training methods, independent of the model family: their trained parts and saved files. See lora.py, full.py and
textual_inversion.py."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from sd_scripts.families.common.family import Components, Family
from sd_scripts.library.optim.optimizers import make_optimizer
from sd_scripts.options.networks.network import NetworkOptions
from sd_scripts.options.optimization.optimizer import OptimizerOptions
from sd_scripts.training.context import Context
from sd_scripts.training.execution.gradients import GradientBuffer

if TYPE_CHECKING:
    from sd_scripts.training.methods.sharded import Shards


class Method(ABC):
    name: str

    def check(self, network: NetworkOptions | None) -> list[str]:
        """Return the problems that names and small files reveal, or raise ValueError; nothing is loaded."""
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

    def change_sample_model(  # noqa: B027
        self, family: Family, components: Components, context: Context, model: nn.Module
    ) -> None:
        """Prepare the model that samples are made with instead of the denoiser, just loaded."""

    @abstractmethod
    def prepare(self, family: Family, components: Components, context: Context) -> Trainable:
        """Make the model trainable. Its components are on the device already."""


class Trainable(ABC):
    """The trained part of a run: parameter groups, gradients and file. Each method creates one of these."""

    gradients: GradientBuffer
    modules: Sequence[nn.Module]
    """The modules that are in training mode during steps."""
    needs_autocast = False
    """Whether its weights have a different dtype from the model, so that the forward needs autocast."""
    static_graph = True
    """Whether its forward runs the same operations each step, so that guards of compiled graphs may be skipped."""
    consistent_in_backward = True
    """Whether another thread may read its state during backward."""
    is_network = True
    """Whether its file is an adapter, with ss_ metadata about its training, rather than a whole model."""
    architecture_suffix = "/lora"
    """What modelspec.architecture of an adapter's file ends with."""
    companions: tuple[str, ...] = ()
    """Suffix of its file's name for each further file that is saved with it."""
    skips_nonfinite = False
    """Whether a step with a non-finite gradient is skipped, so that weights and moments stay finite."""
    ending: str
    """Extension of its file; empty for a folder."""
    shards: Shards | None = None
    """How weights are sharded over the processes; None if each has all. state_dict has this process's rows."""

    @abstractmethod
    def parameter_groups(self) -> list[dict[str, Any]]:
        """Return dicts of `params`, `lr` and `name`."""

    def make_optimizer(self, options: OptimizerOptions) -> Optimizer:
        """Create the optimizer of these parameter groups. ValueError names the option at fault."""
        return make_optimizer(options, self.parameter_groups())

    @abstractmethod
    def updated(self) -> None:
        """Clear gradients and refresh the model's copies of the weights; called after the optimizer step."""

    def limit_norms(self) -> None:  # noqa: B027
        """Apply the norm limits of the options (scale_weight_norms); called after each update."""

    def train(self) -> None:
        for module in self.modules:
            module.train()

    def for_samples(self) -> AbstractContextManager[None]:
        """Return a context in which the model is the one that the trained weights are for."""
        return nullcontext()

    @abstractmethod
    def state_dict(self) -> dict[str, Tensor]:
        """Return all tensors that resuming needs, bit for bit."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Tensor]) -> None: ...

    @abstractmethod
    def save(self, path: Path, dtype: torch.dtype | None, metadata: dict[str, str]) -> None:
        """Write the file that other programs load. With shards, all processes must call it."""

    def save_companion(self, suffix: str, path: Path, dtype: torch.dtype | None, metadata: dict[str, str]) -> None:
        """Write the further file of this suffix, one of `companions`."""
        raise NotImplementedError


class NetworkTrainable(Trainable):
    """An adapter network over a frozen model."""

    def __init__(
        self,
        network: Any,
        groups: list[dict[str, Any]],
        modules: Sequence[nn.Module],
        *,
        norm_limit: float | None = None,
        ending: str = ".safetensors",
    ):
        """`groups`: of the optimizer; `norm_limit`: the largest norm of a layer's weight (scale_weight_norms)."""
        self.network, self._groups, self.modules = network, groups, modules
        self.norm_limit, self.ending = norm_limit, ending

    def parameter_groups(self) -> list[dict[str, Any]]:
        return self._groups
