"""Networks of other people, such as LyCORIS: any importable module with the functions of sd-scripts' networks."""

import contextlib
import importlib
import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from sd_scripts.families.family import Parts
from sd_scripts.library.safetensors_io import save_model, with_hashes
from sd_scripts.options.network import NetworkOptions
from sd_scripts.options.optimizer import OptimizerOptions
from sd_scripts.training.context import Context


def find_module(name: str) -> ModuleType:
    """`networks.x` is looked up in sd_scripts first, then as any module. ValueError names network_module."""
    for full in (f"sd_scripts.{name}", name):
        with contextlib.suppress(ModuleNotFoundError):
            if importlib.util.find_spec(full):
                module = importlib.import_module(full)
                if not hasattr(module, "create_network"):
                    raise ValueError(f"network_module: '{name}' has no create_network, so it is not a network")
                return module
    package = {"lycoris": "lycoris-lora"}.get(name.partition(".")[0], name.partition(".")[0])
    raise ValueError(f"network_module: there is no module '{name}'; is its package installed (pip install {package})?")


def make_foreign(parts: Parts, context: Context, *, trains_text: bool) -> "ForeignLearning":
    options, base = context.settings[NetworkOptions], context.settings[OptimizerOptions].learning_rate
    module = find_module(options.network_module or "")
    kwargs: dict[str, Any] = dict(item.split("=", 1) for item in options.network_args)
    if options.network_dropout is not None:
        kwargs["neuron_dropout"] = options.network_dropout
    if options.dim_from_weights:
        made = module.create_network_from_weights(
            1.0, options.network_weights, parts.vae, parts.text_encoders, parts.denoiser, **kwargs
        )
        network = made[0] if isinstance(made, tuple) else made
    else:
        network = module.create_network(
            1.0, options.network_dim, options.network_alpha, parts.vae, parts.text_encoders, parts.denoiser, **kwargs
        )
    network.apply_to(parts.text_encoders, parts.denoiser, trains_text, not options.network_train_text_encoder_only)
    if options.network_weights and not options.dim_from_weights:
        network.load_weights(options.network_weights)
    network.to(context.device, torch.float32)
    rates = options.text_encoder_lr or [base]
    if len(rates) > 1 and hasattr(network, "prepare_optimizer_params_with_multiple_te_lrs"):
        groups = network.prepare_optimizer_params_with_multiple_te_lrs(rates, options.unet_lr, base)
    else:
        groups = network.prepare_optimizer_params(rates[0], options.unet_lr, base)
    groups = groups[0] if isinstance(groups, tuple) else groups
    network.prepare_grad_etc(parts.text_encoders, parts.denoiser)
    named = [{"lr": base, **g, "params": list(g["params"]), "name": f"group{i}"} for i, g in enumerate(groups)]
    return ForeignLearning(network, named, [parts.denoiser, *parts.text_encoders])


class ForeignLearning:
    """A network that patches the model's forwards itself and holds float32 weights; it computes under autocast."""

    needs_autocast = True

    def __init__(self, network: Any, groups: list[dict[str, Any]], modules: list[nn.Module]):
        self.network, self._groups, self._modules = network, groups, modules
        self._parameters = [p for group in groups for p in group["params"]]

    def parameter_groups(self) -> list[dict[str, Any]]:
        return self._groups

    def collect_gradients(self) -> None:
        """Autograd adds them up where they are."""

    def forget_gradients(self) -> None:
        self.updated()

    def average_gradients(self, processes: int) -> None:
        for parameter in self._parameters:
            if parameter.grad is not None:
                torch.distributed.all_reduce(parameter.grad)
                parameter.grad.div_(processes)

    def clip(self, max_norm: float) -> Tensor:
        return torch.nn.utils.clip_grad_norm_(self._parameters, max_norm)

    def updated(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None

    def limit_norms(self, limit: float) -> None:
        if hasattr(self.network, "apply_max_norm_regularization"):
            self.network.apply_max_norm_regularization(limit, self._parameters[0].device)

    def train(self, mode: bool = True) -> None:
        for module in (self.network, *self._modules):
            module.train(mode)

    def state_dict(self) -> dict[str, Tensor]:
        return self.network.state_dict()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.network.load_state_dict(state)

    def save(self, path: Path, dtype: torch.dtype | None, metadata: dict[str, str]) -> None:
        tensors = {key: value.to(dtype or value.dtype) for key, value in self.network.state_dict().items()}
        save_model(path, tensors, with_hashes(tensors, metadata))
