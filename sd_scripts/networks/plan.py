"""Plan a network from the network options: the rank of each adapted layer, and which layers share a learning rate."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from sd_scripts.networks.adapter import Adapter, Group, LayerPlan, adapter_kinds, read_layer
from sd_scripts.networks.args import Warn, network_arguments
from sd_scripts.networks.layers import Dropouts
from sd_scripts.networks.network import AdapterNetwork
from sd_scripts.networks.perturbation import Perturbation
from sd_scripts.networks.rules import Rank, Rules
from sd_scripts.networks.targets import LoraTarget, adaptable, is_conv
from sd_scripts.options.network import NetworkOptions
from sd_scripts.options.settings import Settings

DEFAULT_DIM = 4


@dataclass(frozen=True, kw_only=True)
class AdaptedModule:
    """One module of the model, what may be adapted in it, and its learning rate."""

    module: nn.Module
    target: LoraTarget
    lr: float


@dataclass(frozen=True, kw_only=True)
class NetworkArgs:
    """The parsed network options and network_args."""

    kind: type[Adapter]
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
    kinds = adapter_kinds()
    args = NetworkArgs(
        kind=kinds[given.choice("adapter", tuple(kinds), "lora")],
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
                split_dims = args.rules.split_dims(name, layer)
                plans.append(_layer(each, args.kind, name, path, rank, group, split_dims))
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
            found, group = read_layer(tensors, name), _group(each, name, args)
            if found is None or group is None:
                continue
            kind, of_layer = found
            rank, split_dims = kind.rank_in_file(of_layer, args.rules.split_dims(name, layer))
            plans.append(_layer(each, kind, name, path, rank, group, split_dims))
    if not plans:
        raise ValueError(
            "network_weights: the file contains no layer of this model; it may be a LoRA for another model"
        )
    return plans


def parameter_groups(network: AdapterNetwork) -> list[dict[str, Any]]:
    """Return optimizer groups: `params`, `lr`, `name`. LoRA+ splits off some tensors; a rate of 0 freezes the group."""
    groups: dict[str, dict[str, Any]] = {}
    for layer in network.layers:
        group = layer.group
        for master, tensor in zip(layer.masters, layer.tensors, strict=True):
            plus = group.plus if tensor.plus else None
            name = f"{group.name} plus" if plus else group.name
            rate = group.lr * (plus or 1.0)
            groups.setdefault(name, {"params": [], "lr": rate, "name": name})["params"].append(master)
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
    each: AdaptedModule,
    kind: type[Adapter],
    name: str,
    path: str,
    rank: Rank,
    group: Group,
    split_dims: tuple[int, ...],
) -> LayerPlan:
    if split_dims and not kind.splits:
        raise ValueError(f"network_args: adapter={kind.kind} cannot be split; turn split_qkv off")
    return LayerPlan(
        name=name,
        module=each.module,
        path=path,
        kind=kind,
        rank=rank.dim,
        alpha=rank.alpha or rank.dim,
        group=group,
        split_dims=split_dims,
    )
