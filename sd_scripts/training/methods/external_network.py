"""External networks such as LyCORIS: any importable module with the functions of sd-scripts' networks.

They name layers after the modules of our model, which are diffusers'; files have the family's names.
"""

import importlib
import importlib.util
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import compress
from pathlib import Path
from types import ModuleType
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from sd_scripts.families.common.family import Components, Family
from sd_scripts.library.files.safetensors_io import save_model, with_hashes
from sd_scripts.networks.files.lora_files import read_finite_tensors
from sd_scripts.networks.targets import LoraTarget
from sd_scripts.options.memory import MemoryOptions
from sd_scripts.options.networks.network import NetworkOptions
from sd_scripts.options.optimization.optimizer import OptimizerOptions
from sd_scripts.options.saving import LoraFileOptions
from sd_scripts.training.context import Context
from sd_scripts.training.execution.gradients import GradientBuffer
from sd_scripts.training.methods.method import NetworkTrainable

Names = dict[str, str]
PACKAGES = {"lycoris": "lycoris-lora"}


def find_module(name: str) -> ModuleType:
    """Import a network_module; `networks.x` is looked up in sd_scripts first. Raises ValueError naming the option."""
    full = next((full for full in (f"sd_scripts.{name}", name) if _exists(full)), None)
    if full is None:
        package = PACKAGES.get(name.partition(".")[0])
        remedy = f"install it with `pip install {package}`" if package else "set it to networks.lora, or install it"
        raise ValueError(f"network_module: module not found: '{name}'; {remedy}")
    try:
        module = importlib.import_module(full)
    except ImportError as error:
        raise ValueError(f"network_module: '{name}' cannot be imported: {error}") from error
    if not hasattr(module, "create_network"):
        raise ValueError(f"network_module: '{name}' has no create_network, so it is not a network")
    return module


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # a parent package is missing, or it is not a module name
        return False


def make_external_network(
    family: Family, components: Components, context: Context, *, trains_encoder: tuple[bool, ...]
) -> "ExternalNetwork":
    """Create and attach the network. It sees the text encoders that are trained; if none is, all, to adapt none."""
    options = context.settings[NetworkOptions]
    base = context.settings[OptimizerOptions].learning_rate
    shown = trains_encoder if any(trains_encoder) else (True,) * len(trains_encoder)
    encoders = list(compress(components.text_encoders, shown))
    rates = [options.rate_of_encoder(number, base) for number in compress(range(len(shown)), shown)]
    names = _file_names(family, components.denoiser, encoders, list(compress(family.lora_text_encoders, shown)))
    try:
        with _aliased_classes(components.denoiser, family.lora.class_aliases):
            network = _create(components, encoders, options, names)
    except Exception as error:
        what = str(error).strip().splitlines() or [type(error).__name__]
        raise ValueError(
            f"network_module: '{options.network_module}' cannot make a network with these network_args: {what[0]}"
        ) from error
    network.apply_to(encoders, components.denoiser, any(trains_encoder), not options.network_train_text_encoder_only)
    if options.network_weights and not options.dim_from_weights:
        with _with_network_names(options.network_weights, names) as file:
            network.load_weights(file)
    network.to(context.device, torch.float32)
    groups = _groups(network, rates, options.unet_lr, base)
    require_unswapped(groups, components.denoiser, context.settings.get(MemoryOptions), options.network_module)
    network.prepare_grad_etc(encoders, components.denoiser)
    modules = [components.denoiser, *components.text_encoders]
    return ExternalNetwork(
        network,
        groups,
        modules,
        names,
        norm_limit=options.scale_weight_norms,
        ending=f".{context.settings[LoraFileOptions].save_model_as}",
    )


def _create(components: Components, encoders: list[nn.Module], options: NetworkOptions, names: Names) -> Any:
    module = find_module(options.network_module or "")
    kwargs: dict[str, Any] = options.shared_arguments | dict(item.split("=", 1) for item in options.network_args)
    model = (components.vae, encoders, components.denoiser)
    if options.dim_from_weights:
        with _with_network_names(str(options.network_weights), names) as file:
            made = module.create_network_from_weights(1.0, file, *model, **kwargs)
        return made[0] if isinstance(made, tuple) else made
    if options.network_dropout is not None:
        kwargs.setdefault("dropout", options.network_dropout)  # its name in LyCORIS
    dim, alpha = options.network_dim, options.network_alpha
    return module.create_network(1.0, dim, alpha, *model, neuron_dropout=options.network_dropout, **kwargs)


def _groups(network: Any, rates: list[float], unet_lr: float | None, base: float) -> list[dict[str, Any]]:
    """Return the optimizer groups. `rates` are the text encoders'. Some networks return names, too."""
    if len(set(rates)) > 1 and hasattr(network, "prepare_optimizer_params_with_multiple_te_lrs"):
        made = network.prepare_optimizer_params_with_multiple_te_lrs(rates, unet_lr, base)
    else:
        made = network.prepare_optimizer_params(rates[0], unet_lr, base)
    groups, known = made if isinstance(made, tuple) else (made, [])
    names = [*known, *(f"group{i}" for i in range(len(known), len(groups)))]
    if not groups and any((base if unet_lr is None else unet_lr, *rates)):
        raise ValueError("network_module: this network finds no layer to adapt; choose one that knows this model")
    if not groups:
        raise ValueError("learning_rate: all learning rates are 0, so nothing would be trained; set one above 0")
    return [
        {"lr": base, **group, "params": list(group["params"]), "name": name}
        for group, name in zip(groups, names, strict=False)
    ]


def require_unswapped(
    groups: list[dict[str, Any]], denoiser: nn.Module, memory: MemoryOptions | None, network_module: str | None
) -> None:
    """Raise ValueError if the network trains weights of the base model while blocks are swapped."""
    if not memory or not memory.blocks_to_swap:
        return
    base = {id(parameter) for parameter in denoiser.parameters()}
    if any(id(parameter) in base for group in groups for parameter in group["params"]):
        raise ValueError(
            f"blocks_to_swap: {network_module} trains weights of the base model, which "
            "cannot be moved during training; set blocks_to_swap = 0, or choose another network"
        )


def _file_names(family: Family, denoiser: nn.Module, encoders: list[nn.Module], targets: list[LoraTarget]) -> Names:
    """Return the network's name of each layer -> its name in files. The network numbers the encoders it is given."""
    modules = [("lora_unet_", denoiser, family.lora)]
    for number, (encoder, target) in enumerate(zip(encoders, targets, strict=True), 1):
        modules.append((f"lora_te{number}_", encoder, target))
    return {
        prefix + path.replace(".", "_"): target.name(path)
        for prefix, module, target in modules
        for path, layer in module.named_modules()
        if path and not list(layer.children())
    }


def _renamed(tensors: Mapping[str, Tensor], names: Names) -> dict[str, Tensor]:
    split = ((key, *key.partition(".")) for key in tensors)
    return {f"{names.get(layer, layer)}{dot}{rest}": tensors[key] for key, layer, dot, rest in split}


@contextmanager
def _aliased_classes(module: nn.Module, aliases: Mapping[str, str]) -> Iterator[None]:
    """Rename classes to those by which external networks choose the layers they adapt, until the end of the block."""
    classes = {type(part): type(part).__name__ for part in module.modules() if type(part).__name__ in aliases}
    try:
        for each, name in classes.items():
            each.__name__ = aliases[name]
        yield
    finally:
        for each, name in classes.items():
            each.__name__ = name


@contextmanager
def _with_network_names(file: str, names: Names) -> Iterator[str]:
    """Yield a copy of a LoRA file in which layers have the names that the network uses."""
    tensors = read_finite_tensors("network_weights", Path(file))
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "network.safetensors"
        safetensors.torch.save_file(_renamed(tensors, {ours: its for its, ours in names.items()}), copy)
        yield str(copy)


class ExternalGradients(GradientBuffer):
    """The gradients that autograd accumulates on an external network's parameters. They are never recorded."""

    def __init__(self, network: Any, parameters: list[nn.Parameter]):
        self._network, self._parameters = network, parameters

    def collect(self) -> None:
        """Do nothing: they accumulate in place."""

    def named(self) -> dict[str, Tensor]:
        return {str(n): each.grad for n, each in enumerate(self._parameters) if each.grad is not None}

    def average(self, processes: int) -> None:
        for parameter in self._parameters:
            if parameter.grad is not None:
                torch.distributed.all_reduce(parameter.grad)
                parameter.grad.div_(processes)

    def clip(self, max_norm: float) -> Tensor:
        return torch.nn.utils.clip_grad_norm_(self._parameters, max_norm)

    def clear(self) -> None:
        self._network.zero_grad(set_to_none=True)  # also layers of rate 0, which are in no group


class ExternalNetwork(NetworkTrainable):
    """A network that patches the model's forwards itself and has float32 weights; it computes under autocast."""

    needs_autocast = True
    static_graph = False

    def __init__(
        self, network: Any, groups: list[dict[str, Any]], modules: list[nn.Module], names: Names, **options: Any
    ):
        super().__init__(network, groups, [network, *modules], **options)
        self._names = names
        self._parameters = [p for group in groups for p in group["params"]]
        self.gradients = ExternalGradients(network, self._parameters)

    def updated(self) -> None:
        self.gradients.clear()

    def limit_norms(self) -> None:
        if self.norm_limit and hasattr(self.network, "apply_max_norm_regularization"):
            self.network.apply_max_norm_regularization(self.norm_limit, self._parameters[0].device)

    def state_dict(self) -> dict[str, Tensor]:
        return self.network.state_dict()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.network.load_state_dict(state)

    def save(self, path: Path, dtype: torch.dtype | None, metadata: dict[str, str]) -> None:
        """Let the network write a temporary file, since it may save other tensors than it trains; rename its layers."""
        with tempfile.TemporaryDirectory() as folder:
            aside = Path(folder) / "network.safetensors"
            self.network.save_weights(str(aside), dtype, {})
            tensors = _renamed(safetensors.torch.load_file(aside), self._names)
        save_model(path, tensors, with_hashes(tensors, metadata))
