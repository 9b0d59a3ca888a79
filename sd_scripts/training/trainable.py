"""What a run trains: its parameter groups, gradients and file. Each method makes one of these."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from sd_scripts.library.optimizers import make_optimizer
from sd_scripts.library.safetensors_io import save_model, with_hashes
from sd_scripts.networks.lora import LoraNetwork
from sd_scripts.options.optimizer import OptimizerOptions

if TYPE_CHECKING:
    from sd_scripts.training.sharded import Shards


class Trainable(Protocol):
    needs_autocast: bool
    """Whether its weights have another dtype than the model, so that the forward needs autocast."""
    static_graph: bool
    """Whether its forward runs the same operations each step, so that guards of compiled graphs may be skipped."""

    consistent_in_backward: bool
    """Whether another thread may read its state during backward."""
    is_network: bool
    """Whether its file is an adapter, with ss_ metadata about its training, rather than a whole model."""
    ending: str
    """Extension of its file; empty for a folder."""

    @property
    def skips_nonfinite(self) -> bool:
        """Whether a step with a non-finite gradient is skipped, so that weights and moments stay finite."""
        ...

    @property
    def shards(self) -> Shards | None:
        """How weights are sharded over the processes; None if each holds all. state_dict has this process's rows."""
        ...

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Return dicts of `params`, `lr` and `name`."""
        ...

    def make_optimizer(self, options: OptimizerOptions) -> Optimizer:
        """Create the optimizer of these parameter groups. ValueError names the option at fault."""
        ...

    def collect_gradients(self) -> None:
        """Collect the gradients of a micro-step; called after each backward."""
        ...

    def discard_gradients(self) -> None:
        """Discard all gradients of the current step, which failed and restarts."""
        ...

    def average_gradients(self, processes: int) -> None:
        """Average the gradients over the processes, once before the update."""
        ...

    def clip(self, max_norm: float) -> Tensor:
        """Clip the gradient to `max_norm` unless that is 0; return its norm before clipping, on the device."""
        ...

    def updated(self) -> None:
        """Clear gradients and refresh the model's copies of the weights; called after the optimizer step."""
        ...

    def limit_norms(self) -> None:
        """Apply the norm limits of the options (scale_weight_norms); called after each update."""
        ...

    def train(self, mode: bool = True) -> None:
        """Switch between training and eval mode."""
        ...

    def state_dict(self) -> dict[str, Tensor]:
        """Return all tensors that resuming needs, bit for bit."""
        ...

    def load_state_dict(self, state: dict[str, Tensor]) -> None: ...

    def save(self, path: Path, dtype: torch.dtype | None, metadata: dict[str, str]) -> None:
        """Write the file that other programs load. With shards, all processes must call it."""
        ...


class LoraTrainable:
    """Our own LoRA, with its float32 master weights in one flat buffer."""

    needs_autocast = False
    static_graph = True
    skips_nonfinite = True
    consistent_in_backward = True
    is_network = True
    shards = None

    def __init__(
        self,
        network: LoraNetwork,
        groups: list[dict[str, Any]],
        modules: list[nn.Module],
        *,
        norm_limit: float | None = None,
        ending: str = ".safetensors",
    ):
        """`norm_limit` is the largest norm of a layer's weight (scale_weight_norms)."""
        self.network, self._groups, self._modules = network, groups, modules
        self._norm_limit, self.ending = norm_limit, ending

    def parameter_groups(self) -> list[dict[str, Any]]:
        return self._groups

    def make_optimizer(self, options: OptimizerOptions) -> Optimizer:
        return make_optimizer(options, self._groups)

    def collect_gradients(self) -> None:
        self.network.collect_gradients()

    def discard_gradients(self) -> None:
        for copy in self.network.copies:
            copy.grad = None
        self.network.zero_grad()

    def average_gradients(self, processes: int) -> None:
        torch.distributed.all_reduce(self.network.gradients)
        self.network.gradients.div_(processes)

    def clip(self, max_norm: float) -> Tensor:
        gradients = self.network.gradients
        norm = torch.linalg.vector_norm(gradients)
        factor = (max_norm / (norm + 1e-6)).clamp_max(1.0) if max_norm else torch.ones_like(norm)
        # all or nothing: if one is non-finite, the others cannot be trusted either
        gradients.nan_to_num_(0.0, 0.0, 0.0).mul_(factor.where(norm.isfinite(), 0.0))
        return norm

    def updated(self) -> None:
        self.network.perturb()
        self.network.zero_grad()
        self.network.refresh()

    def limit_norms(self) -> None:
        if self._norm_limit:
            self.network.limit_norms(self._norm_limit)
            self.network.refresh()

    def train(self, mode: bool = True) -> None:
        for module in self._modules:
            module.train(mode)

    def state_dict(self) -> dict[str, Tensor]:
        noise = self.network.row_noise
        return {"masters": self.network.masters, **({"row_noise": noise.deviations} if noise else {})}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        masters = state["masters"]
        if masters.shape != self.network.masters.shape:
            raise ValueError("resume: the state belongs to a different network; restore network_dim and network_args")
        with torch.no_grad():
            self.network.masters.copy_(masters)
            if self.network.row_noise and "row_noise" in state:
                self.network.row_noise.deviations.copy_(state["row_noise"])
        self.network.refresh()

    def save(self, path: Path, dtype: torch.dtype | None, metadata: dict[str, str]) -> None:
        tensors = self.network.file_tensors(dtype)
        save_model(path, tensors, with_hashes(tensors, metadata))
