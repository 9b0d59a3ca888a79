"""What learns in a run: its parameters in groups, its gradients, its file. A method makes one of these."""

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
    """Whether its weights are of another dtype than the model's, so that the forward must cast."""
    static_graph: bool
    """Whether its forward is the same code at every step, so that compiled graphs need no guards against it."""

    whole_in_backward: bool
    """Whether another thread may read its state while a step computes gradients."""
    is_network: bool
    """Whether its file stands beside a model and tells in ss_ entries how it was trained."""
    ending: str
    """What follows the name of its file; empty for a folder."""

    @property
    def skips_nonfinite(self) -> bool:
        """Whether a gradient that is no number counts as none, so that weights and moments stay numbers."""
        ...

    @property
    def shards(self) -> Shards | None:
        """How its weights are spread over the processes; None: each holds all. state_dict is of this process's rows."""
        ...

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Dicts of `params`, `lr` and `name`."""
        ...

    def make_optimizer(self, options: OptimizerOptions) -> Optimizer:
        """Over all that learns, in these groups. ValueError names the option at fault."""
        ...

    def collect_gradients(self) -> None:
        """After each backward."""
        ...

    def forget_gradients(self) -> None:
        """Forget all of the step under way, which failed and begins anew."""
        ...

    def average_gradients(self, processes: int) -> None:
        """Over the processes, once before the update."""
        ...

    def clip(self, max_norm: float) -> Tensor:
        """Shorten the gradient to `max_norm`, where that is not 0; returns its length before, on the device."""
        ...

    def updated(self) -> None:
        """After the optimizer has changed the weights: forget gradients, refresh what the model computes with."""
        ...

    def limit_norms(self) -> None:
        """Keep what was learned within the bounds that the options set, after each update."""
        ...

    def train(self, mode: bool = True) -> None:
        """Dropouts on or off."""
        ...

    def state_dict(self) -> dict[str, Tensor]:
        """All that continuing needs, bit for bit."""
        ...

    def load_state_dict(self, state: dict[str, Tensor]) -> None: ...

    def save(self, path: Path, dtype: torch.dtype | None, metadata: dict[str, str]) -> None:
        """Write the file that other programs load. With shards all processes must call it."""
        ...


class LoraTrainable:
    """Our own LoRA: float32 masters in one flat buffer."""

    needs_autocast = False
    static_graph = True
    skips_nonfinite = True
    whole_in_backward = True
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
        """`norm_limit`: no weight of a layer gets longer (scale_weight_norms)."""
        self.network, self._groups, self._modules = network, groups, modules
        self._norm_limit, self.ending = norm_limit, ending

    def parameter_groups(self) -> list[dict[str, Any]]:
        return self._groups

    def make_optimizer(self, options: OptimizerOptions) -> Optimizer:
        return make_optimizer(options, self._groups)

    def collect_gradients(self) -> None:
        self.network.collect_gradients()

    def forget_gradients(self) -> None:
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
        # all or nothing: where one is no number, the others are not to be trusted either
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
            raise ValueError("resume: the state is of another network; set network_dim and network_args as they were")
        with torch.no_grad():
            self.network.masters.copy_(masters)
            if self.network.row_noise and "row_noise" in state:
                self.network.row_noise.deviations.copy_(state["row_noise"])
        self.network.refresh()

    def save(self, path: Path, dtype: torch.dtype | None, metadata: dict[str, str]) -> None:
        tensors = self.network.file_tensors(dtype)
        save_model(path, tensors, with_hashes(tensors, metadata))
