"""Plan a network from the network options: the rank of each adapted layer, and which layers share a learning rate."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from sd_scripts.networks.adapter import Adapter, Group, LayerPlan, adapter_kinds, read_layer
from sd_scripts.networks.layers import Dropouts
from sd_scripts.networks.network import AdapterNetwork, Perturbation
from sd_scripts.networks.targets import LoraTarget, adaptable, is_conv
from sd_scripts.settings.network_choice import NetworkChoice


@dataclass(frozen=True, kw_only=True)
class AdaptedModule:
    """One module of the model, its adaptable layers, and its learning rate."""

    module: nn.Module
    target: LoraTarget
    lr: float


class NetworkArgs(NetworkChoice):
    """The network options and network_args, with the classes that compute them."""

    @property
    def kind(self) -> type[Adapter]:
        return adapter_kinds()[self.kind_name]

    @property
    def dropouts(self) -> Dropouts:
        return Dropouts(neuron=self.neuron_dropout, rank=self.rank_dropout, module=self.module_dropout)

    @property
    def perturbation(self) -> Perturbation | None:
        if self.ggpo is None:
            return None
        beta, sigma = self.ggpo
        return Perturbation(beta=beta, sigma=sigma)

    def chosen(self, target: LoraTarget) -> LoraTarget:
        """Return the target without the layers that the preset leaves out."""
        return target if self.preset is None else target.inside(self.preset.inside)


def plan_layers(
    modules: Iterable[AdaptedModule], args: NetworkArgs, file: Mapping[str, Tensor] | None = None
) -> list[LayerPlan]:
    """Return the plan of every adapted layer; layers with rank 0 or their own learning rate of 0 are left out.

    With the tensors of a file (dim_from_weights) its layers are planned, with the kinds, ranks and alphas there.
    """
    plans = []
    rules = args.rules
    for each in modules:
        rules.check(each.module)
        target = each.target if file is not None else args.chosen(each.target)
        for path, layer in adaptable(each.module, target, conv=args.adapts_conv or file is not None):
            name = each.target.name(path)
            conv = is_conv(layer)
            kind = args.kind
            options = args.kind_options
            split_dims = rules.split_dims(name, layer)
            if file is None:
                rank = rules.rank(name, conv, args.conv if conv else args.linear)
            elif layer_in_file := read_layer(file, name):
                kind, tensors = layer_in_file
                options = {**(options if kind is args.kind else {}), **kind.options_in_file(tensors)}
                rank, split_dims = kind.rank_in_file(tensors, split_dims)
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
            "network_weights: the file contains no layer of this model; it may be a LoRA for a different model"
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
