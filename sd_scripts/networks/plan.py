"""Plan a LoRA from the network options: the rank of each adapted layer, and which layers share a learning rate."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from sd_scripts.networks.args import Warn, network_arguments
from sd_scripts.networks.layers import Dropouts
from sd_scripts.networks.lora import Group, LayerPlan, LoraNetwork, LoraTarget, adaptable, is_conv, read_pair
from sd_scripts.networks.perturbation import Perturbation
from sd_scripts.networks.rules import Rank, Rules
from sd_scripts.options.network import NetworkOptions
from sd_scripts.options.settings import Settings

DEFAULT_DIM = 4


@dataclass(frozen=True, kw_only=True)
class AdaptedModule:
    """One module of the model, what LoRA may adapt in it, and its learning rate."""

    module: nn.Module
    target: LoraTarget
    lr: float


@dataclass(frozen=True, kw_only=True)
class NetworkArgs:
    """The parsed network options and network_args."""

    linear: Rank
    conv: Rank
    dropouts: Dropouts
    perturbation: Perturbation | None
    loraplus_unet: float | None
    loraplus_text: float | None
    rules: Rules

    @property
    def adapts_conv(self) -> bool:
        return self.conv.dim > 0 or self.rules.adapts_conv


def read_args(settings: Settings, denoiser: LoraTarget, warn: Warn) -> NetworkArgs:
    """Parse the network options and network_args. Raises ValueError naming the key; warns about unknown keys."""
    options, given = settings[NetworkOptions], network_arguments(settings, denoiser.options)
    plus = given.number("loraplus_lr_ratio")
    dropout = given.chance("dropout")
    conv_alpha = given.number("conv_alpha", 1.0)
    beta, sigma = given.number("ggpo_beta"), given.number("ggpo_sigma")
    if (beta is None) != (sigma is None):
        raise ValueError("network_args: ggpo_beta and ggpo_sigma must be set together; set both or neither")
    args = NetworkArgs(
        linear=Rank(options.network_dim or DEFAULT_DIM, options.network_alpha),
        conv=Rank(given.whole_number("conv_dim") or 0, conv_alpha or 0.0),
        dropouts=Dropouts(
            neuron=dropout if options.network_dropout is None else options.network_dropout,
            rank=given.chance("rank_dropout"),
            module=given.chance("module_dropout"),
        ),
        perturbation=Perturbation(beta=beta, sigma=sigma) if beta is not None and sigma is not None else None,
        loraplus_unet=given.number("loraplus_unet_lr_ratio", plus) or None,
        loraplus_text=given.number("loraplus_text_encoder_lr_ratio", plus) or None,
        rules=denoiser.rules(given, warn),
    )
    for sentence in given.unknown():
        warn(sentence)
    return args


def plan_layers(modules: Iterable[AdaptedModule], args: NetworkArgs) -> list[LayerPlan]:
    """Return the plan of every adapted layer; layers with rank 0 or their own learning rate of 0 are left out."""
    plans = []
    for each in modules:
        args.rules.check(each.module)
        for path, layer in adaptable(each.module, each.target, conv=args.adapts_conv):
            name, conv = each.target.name(path), is_conv(layer)
            rank = args.rules.rank(name, conv, args.conv if conv else args.linear)
            group = _group(each, name, args)
            if rank.dim > 0 and group:
                plans.append(_layer(each, name, path, rank, group, args.rules.split_dims(name, layer)))
    if not plans:
        raise ValueError("network_args: all ranks or learning rates are 0, so nothing would be trained")
    return plans


def plan_from_weights(
    modules: Iterable[AdaptedModule], tensors: Mapping[str, Tensor], args: NetworkArgs
) -> list[LayerPlan]:
    """Plan with a file's ranks and alphas (dim_from_weights); dropouts and learning rates come from `args`."""
    plans = []
    for each in modules:
        args.rules.check(each.module)
        for path, layer in adaptable(each.module, each.target, conv=True):
            name = each.target.name(path)
            pair, group = read_pair(tensors, name), _group(each, name, args)
            if pair is None or group is None:
                continue
            split_dims = args.rules.split_dims(name, layer)
            split_dims = split_dims if split_dims and pair.is_split(split_dims) else ()
            parts = len(split_dims) or 1
            plans.append(_layer(each, name, path, Rank(pair.rank // parts, pair.alpha / parts), group, split_dims))
    if not plans:
        raise ValueError(
            "network_weights: the file contains no layer of this model; it may be a LoRA for another model"
        )
    return plans


def parameter_groups(network: LoraNetwork) -> list[dict[str, Any]]:
    """Return optimizer groups: `params`, `lr`, `name`. LoRA+ splits off the ups; a rate of 0 freezes the group."""
    groups: dict[str, dict[str, Any]] = {}
    for layer in network.layers:
        group, plus = layer.group, layer.group.plus
        for parameter, factor, suffix in ((layer.down, 1.0, ""), (layer.up, plus or 1.0, " plus" if plus else "")):
            name = group.name + suffix
            groups.setdefault(name, {"params": [], "lr": group.lr * factor, "name": name})["params"].append(parameter)
    trainable = [group for group in groups.values() if group["lr"] > 0]
    if not trainable:
        raise ValueError("learning_rate: all learning rates are 0, so nothing would be trained; set one above 0")
    network.freeze(p for group in groups.values() if group["lr"] == 0 for p in group["params"])
    return trainable


def _group(each: AdaptedModule, name: str, args: NetworkArgs) -> Group | None:
    rate = args.rules.rate(name, each.lr)
    plus = args.loraplus_unet if each.target.group == "unet" else args.loraplus_text
    return Group(each.target.group + rate.suffix, rate.lr, plus) if rate else None


def _layer(
    each: AdaptedModule, name: str, path: str, rank: Rank, group: Group, split_dims: tuple[int, ...]
) -> LayerPlan:
    alpha = rank.alpha or rank.dim
    return LayerPlan(
        name=name, module=each.module, path=path, rank=rank.dim, alpha=alpha, group=group, split_dims=split_dims
    )
