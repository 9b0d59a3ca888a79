"""Plan a network from the network options: the rank of each adapted layer, and which layers share a learning rate."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from torch import Tensor, nn

from sd_scripts.networks.adapter import Adapter, Group, LayerPlan, adapter_kinds, read_layer
from sd_scripts.networks.layers import Dropouts
from sd_scripts.networks.network import AdapterNetwork
from sd_scripts.networks.perturbation import Perturbation
from sd_scripts.networks.rules import Rank, Rules, Warn
from sd_scripts.networks.targets import LoraTarget, adaptable, is_conv
from sd_scripts.options.network import DEFAULT_DIM, NetworkOptions
from sd_scripts.options.network_args import NetworkArguments
from sd_scripts.options.network_types import BuiltIn, Preset
from sd_scripts.options.settings import Groups, Settings


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
    kind_options: Mapping[str, Any]
    """What the kind read from its own keys of network_args."""
    linear: Rank
    conv: Rank
    stabilized: bool
    """Whether alpha is divided by the root of the rank (rsLoRA)."""
    preset: Preset | None
    """Which layers are adapted; None: those of the family, and with a rank for convolutions these too."""
    dropouts: Dropouts
    perturbation: Perturbation | None
    loraplus_unet: float | None
    loraplus_text: float | None
    rules: Rules

    @property
    def adapts_conv(self) -> bool:
        return self.conv.dim > 0 or self.rules.adapts_conv

    def chosen(self, target: LoraTarget) -> LoraTarget:
        """Return the target without the layers that the preset leaves out."""
        return target if self.preset is None else target.inside(self.preset.inside)


def read_args(settings: Settings, denoiser: LoraTarget, warn: Warn) -> NetworkArgs:
    """Parse the network options and network_args. Raises ValueError naming the key; warns about unknown keys."""
    options = settings[NetworkOptions]
    chosen, given = options.built_in, network_arguments(settings, denoiser.options)
    plus = given.number("loraplus_lr_ratio")
    dropout = given.chance("dropout")
    linear = Rank(options.network_dim or DEFAULT_DIM, options.network_alpha)
    conv_alpha = given.number("conv_alpha", options.network_alpha if chosen.conv else 1.0)
    conv = Rank(_conv_dim(given, linear.dim if chosen.conv else 0), conv_alpha or 0.0)
    beta, sigma = given.number("ggpo_beta"), given.number("ggpo_sigma")
    if (beta is None) != (sigma is None):
        raise ValueError("network_args: ggpo_beta and ggpo_sigma must be set together; set both or neither")
    kind = _kind(given, chosen)
    args = NetworkArgs(
        kind=kind,
        kind_options=kind.read_options(given),
        linear=linear,
        conv=conv,
        stabilized=given.flag("rs_lora"),
        preset=chosen.preset,
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
    for name in given.unread(options.shared_arguments):
        warn(f"{name}: has no effect on adapters of the kind {kind.kind}; leave it unset")
    for sentence in given.unknown():
        warn(sentence)
    return args


def network_arguments(settings: Settings, own: Groups) -> NetworkArguments:
    """Return network_args merged with the options of `own`, which are also accepted as keys.

    Raises ValueError naming the option if both are set and differ.
    """
    network = settings[NetworkOptions]
    values, set_here = dict(network.built_in.arguments), network.shared_arguments
    for filled in (settings[group] for group in own):
        of_group = {field.name: (getattr(filled, field.name), field.default) for field in fields(filled)}  # type: ignore[arg-type]
        set_here |= {name: str(value) for name, (value, default) in of_group.items() if value != default}
    for name, value in set_here.items():
        in_args = values.setdefault(name, value)
        if _plain(in_args) != _plain(value):
            raise ValueError(f"{name}: set to {value} here but to {in_args} in network_args; remove one of them")
    return NetworkArguments(values)


def _kind(given: NetworkArguments, chosen: BuiltIn) -> type[Adapter]:
    """Return the adapter kind; LoRA with trained norms or in Tucker form is one of its own."""
    kinds = adapter_kinds()
    name = given.choice("adapter", tuple(kinds), chosen.adapter)
    if name == "lora" and (given.flag("dora_wd") or given.flag("use_tucker")):
        name = "dora"
    return kinds[name]


def _conv_dim(given: NetworkArguments, default: int) -> int:
    found = given.whole_number("conv_dim")
    return default if found is None else found


def _plain(text: str) -> str:
    return text.lower().replace(" ", "").strip("'\"[]()")


def plan_layers(
    modules: Iterable[AdaptedModule], args: NetworkArgs, file: Mapping[str, Tensor] | None = None
) -> list[LayerPlan]:
    """Return the plan of every adapted layer; layers with rank 0 or their own learning rate of 0 are left out.

    With the tensors of a file (dim_from_weights) its layers are planned, with the kinds, ranks and alphas there.
    """
    plans, rules = [], args.rules
    for each in modules:
        rules.check(each.module)
        target = each.target if file is not None else args.chosen(each.target)
        for path, layer in adaptable(each.module, target, conv=args.adapts_conv or file is not None):
            name, conv = each.target.name(path), is_conv(layer)
            kind, options, split_dims = args.kind, args.kind_options, rules.split_dims(name, layer)
            if file is None:
                rank = rules.rank(name, conv, args.conv if conv else args.linear)
            elif found := read_layer(file, name):
                kind, of_layer = found
                options = {**(options if kind is args.kind else {}), **kind.options_in_file(of_layer)}
                rank, split_dims = kind.rank_in_file(of_layer, split_dims)
            else:
                continue
            group = _group(each, name, args)
            if group is None or not rank.dim:
                continue
            if split_dims and not kind.for_layer(layer, options).splits:
                raise ValueError(f"{rules.split_option}: adapter={kind.kind} cannot be split; turn it off")
            kind.check(name, layer, rank.dim, options)
            plans.append(
                LayerPlan(
                    name=name,
                    module=each.module,
                    path=path,
                    kind=kind.for_layer(layer, options),
                    options=options,
                    rank=rank.dim,
                    alpha=(rank.alpha or rank.dim) * (rank.dim**0.5 if args.stabilized and file is None else 1.0),
                    group=group,
                    split_dims=split_dims,
                    split_option=rules.split_option,
                )
            )
    if plans:
        return plans
    if file is not None:
        raise ValueError(
            "network_weights: the file contains no layer of this model; it may be a LoRA for another model"
        )
    raise ValueError("network_args: all ranks or learning rates are 0, so nothing would be trained")


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
