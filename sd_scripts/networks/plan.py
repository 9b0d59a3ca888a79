"""From the network options to a plan: which layer is adapted with which rank, which layers share a learning rate."""

import difflib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from sd_scripts.networks.layers import Dropouts
from sd_scripts.networks.lora import LayerPlan, LoraNetwork, LoraTarget, adaptable, is_conv, read_pair
from sd_scripts.options.network import NetworkOptions

Warn = Callable[[str], None]

DEFAULT_DIM = 4
LORA_PLUS = ("loraplus_lr_ratio", "loraplus_unet_lr_ratio", "loraplus_text_encoder_lr_ratio")
BY_BLOCK = ("block_dims", "block_alphas", "conv_block_dims", "conv_block_alphas", "block_lr_zero_threshold")
LR_WEIGHTS = ("down_lr_weight", "mid_lr_weight", "up_lr_weight")
DROPOUTS = ("dropout", "rank_dropout", "module_dropout")
KNOWN_ARGS = ("conv_dim", "conv_alpha", *DROPOUTS, *LORA_PLUS, *BY_BLOCK, *LR_WEIGHTS)

SHAPES: dict[str, Callable[[float], float]] = {
    "sine": lambda x: math.sin(math.pi / 2 * x),
    "cosine": lambda x: math.sin(math.pi / 2 * (1 - x)),
    "linear": lambda x: x,
    "reverse_linear": lambda x: 1 - x,
    "zeros": lambda x: 0.0,
}
"""Named courses of block learning rates over the blocks of one direction, from the first (0) to the last (1)."""


@dataclass(frozen=True, kw_only=True)
class Adapted:
    """One module of the model, and what LoRA may adapt of it."""

    module: nn.Module
    target: LoraTarget
    group: str
    """`unet`, or `textencoder 1`; part of the learning rate's name in logs."""
    lr: float


@dataclass(frozen=True, kw_only=True)
class NetworkArgs:
    """network_args, read: strings become numbers, named courses become lists."""

    conv_dim: int | None
    conv_alpha: float
    dropouts: Dropouts
    loraplus_unet: float | None
    loraplus_text: float | None
    block_dims: list[int] | None
    block_alphas: list[float] | None
    conv_block_dims: list[int] | None
    conv_block_alphas: list[float] | None
    block_lr_weights: list[float] | None
    """One factor for each block from down to up, without the first and the last."""


def read_args(options: NetworkOptions, counts: tuple[int, ...], warn: Warn) -> NetworkArgs:
    """`counts` as in LoraTarget.block_counts. Raises ValueError naming the key; an unknown key is warned about."""
    given = dict(item.split("=", 1) for item in options.network_args)
    for key in sorted(given.keys() - set(KNOWN_ARGS)):
        near = difflib.get_close_matches(key, KNOWN_ARGS, 1)
        warn(f"network_args: {key} is unknown and has no effect" + (f"; did you mean {near[0]}?" if near else ""))
    blocks = sum(counts) + 2

    def number(key: str, default: float | None = None) -> float | None:
        return _numbers(key, given[key], 1)[0] if key in given else default

    def chance(key: str) -> float:
        value = number(key) or 0.0
        if value >= 1:
            raise ValueError(f"network_args: {key}={given[key]} leaves nothing to learn with; it must be below 1")
        return value

    def row(key: str) -> list[float] | None:
        return _numbers(key, given[key], blocks) if key in given else None

    def ranks(key: str, count: int) -> list[int] | None:
        return _whole_numbers(key, given[key], count) if key in given else None

    plus = number("loraplus_lr_ratio")
    dropout = options.network_dropout
    return NetworkArgs(
        conv_dim=(ranks("conv_dim", 1) or [0])[0] or None,
        conv_alpha=number("conv_alpha", 1.0) or 0.0,
        dropouts=Dropouts(
            neuron=chance("dropout") if dropout is None else dropout,
            rank=chance("rank_dropout"),
            module=chance("module_dropout"),
        ),
        loraplus_unet=number("loraplus_unet_lr_ratio", plus) or None,
        loraplus_text=number("loraplus_text_encoder_lr_ratio", plus) or None,
        block_dims=ranks("block_dims", blocks),
        block_alphas=row("block_alphas"),
        conv_block_dims=ranks("conv_block_dims", blocks),
        conv_block_alphas=row("conv_block_alphas"),
        block_lr_weights=_block_lr_weights(given, counts, number("block_lr_zero_threshold") or 0.0, warn),
    )


def plan_layers(modules: Iterable[Adapted], options: NetworkOptions, args: NetworkArgs) -> list[LayerPlan]:
    """Every layer that gets a LoRA; those with rank 0 or a block learning rate of 0 are left out."""
    plans = []
    for each in modules:
        by_block = each.target.block is not None
        conv = by_block and (args.conv_dim is not None or args.conv_block_dims is not None)
        for path, layer in adaptable(each.module, each.target, conv=conv):
            name = each.target.name(path)
            block = each.target.block(name) if each.target.block else None
            rank, alpha = _rank_and_alpha(block, is_conv(layer), options, args)
            if rank > 0 and _learns(block, args):
                plans.append(_layer(each, name, path, rank, alpha, _group(each, block, args)))
    if not plans:
        raise ValueError("network_args: all ranks or learning rates are 0, so nothing is left to train")
    return plans


def plan_from_weights(modules: Iterable[Adapted], tensors: Mapping[str, Tensor], args: NetworkArgs) -> list[LayerPlan]:
    """Ranks and alphas as a file has them (dim_from_weights); dropouts and learning rates are those of `args`."""
    plans = []
    for each in modules:
        for path, _ in adaptable(each.module, each.target, conv=True):
            name = each.target.name(path)
            block = each.target.block(name) if each.target.block else None
            pair = read_pair(tensors, name)
            if pair is not None and _learns(block, args):
                plans.append(_layer(each, name, path, pair.rank, pair.alpha, _group(each, block, args)))
    if not plans:
        raise ValueError("network_weights: the file has no layer of this model; is it a LoRA for another one?")
    return plans


def parameter_groups(network: LoraNetwork, modules: Sequence[Adapted], args: NetworkArgs) -> list[dict[str, Any]]:
    """Groups for the optimizer: `params`, `lr`, `name`. LoRA+ splits off the ups; a rate of 0 freezes the group."""
    groups: dict[str, dict[str, Any]] = {}
    for layer in network.layers:
        module = next(each for each in modules if layer.group.startswith(each.group))
        plus = args.loraplus_text if module.target.block is None else args.loraplus_unet
        lr = module.lr
        if "_block" in layer.group and args.block_lr_weights:
            lr *= _block_weight(int(layer.group.rpartition("_block")[2]), args.block_lr_weights)
        for parameter, factor, suffix in ((layer.down, 1.0, ""), (layer.up, plus or 1.0, " plus" if plus else "")):
            name = layer.group + suffix
            groups.setdefault(name, {"params": [], "lr": lr * factor, "name": name})["params"].append(parameter)
    learning = [group for group in groups.values() if group["lr"] > 0]
    if not learning:
        raise ValueError("learning_rate: all learning rates are 0, so nothing would be trained; set one above 0")
    network.freeze(p for group in groups.values() if group["lr"] == 0 for p in group["params"])
    return learning


def _layer(each: Adapted, name: str, path: str, rank: int, alpha: float, group: str) -> LayerPlan:
    return LayerPlan(name=name, module=each.module, path=path, rank=rank, alpha=alpha or rank, group=group)


def _learns(block: int | None, args: NetworkArgs) -> bool:
    return block is None or not args.block_lr_weights or _block_weight(block, args.block_lr_weights) > 0


def _group(each: Adapted, block: int | None, args: NetworkArgs) -> str:
    return each.group if block is None or not args.block_lr_weights else f"{each.group}_block{block}"


def _rank_and_alpha(block: int | None, conv: bool, options: NetworkOptions, args: NetworkArgs) -> tuple[int, float]:
    dim, alpha = options.network_dim or DEFAULT_DIM, options.network_alpha
    if conv:
        dim, alpha = args.conv_dim or 0, args.conv_alpha
    dims = args.conv_block_dims if conv else args.block_dims
    alphas = args.conv_block_alphas if conv else args.block_alphas
    if block is not None:
        dim = dims[block] if dims else dim
        alpha = alphas[block] if alphas else alpha
    return dim, alpha


def _block_weight(block: int, weights: Sequence[float]) -> float:
    """The first and last block, embeddings and out, have no weight of their own."""
    return weights[block - 1] if 1 <= block <= len(weights) else 1.0


def _block_lr_weights(
    given: Mapping[str, str], counts: tuple[int, ...], threshold: float, warn: Warn
) -> list[float] | None:
    if not counts or not any(key in given for key in LR_WEIGHTS):
        return None
    weights: list[float] = []
    for key, count in zip(LR_WEIGHTS, counts, strict=True):
        weights += _course(key, given[key], count, warn) if key in given else [1.0] * count
    return [weight if weight > threshold else 0.0 for weight in weights]


def _course(key: str, text: str, count: int, warn: Warn) -> list[float]:
    """A list of numbers, filled up with 1 or cut as sd-scripts does, or a named course with a base: `cosine+0.25`."""
    name, _, base = text.strip().strip("'\"").partition("+")
    if name.strip() in SHAPES:
        add = _numbers(key, base, 1)[0] if base else 0.0
        return [SHAPES[name.strip()](i / max(1, count - 1)) + add for i in range(count)]
    if any(word.strip().isalpha() for word in text.split(",")):
        raise ValueError(f"network_args: {key}={text} is neither numbers nor one of {', '.join(SHAPES)}")
    numbers = _numbers(key, text)
    if len(numbers) != count:
        what = "the rest is 1" if len(numbers) < count else "what is beyond is ignored"
        warn(f"network_args: {key} has {len(numbers)} values for {count} blocks; {what}")
    return (numbers + [1.0] * count)[:count]


def _whole_numbers(key: str, text: str, count: int) -> list[int]:
    numbers = _numbers(key, text, count)
    if any(number != int(number) for number in numbers):
        raise ValueError(f"network_args: {key}={text} must be whole: it is how many rows a matrix has")
    return [int(number) for number in numbers]


def _numbers(key: str, text: str, count: int | None = None) -> list[float]:
    """`count` numbers of at least 0, or as many as there are."""
    words = [word for word in text.strip().strip("'\"[]()").split(",") if word.strip()]
    try:
        numbers = [float(word) for word in words]
    except ValueError:
        raise ValueError(f"network_args: {key}={text} is not a number or a list of numbers") from None
    if count is not None and len(numbers) != count:
        raise ValueError(f"network_args: {key} has {len(numbers)} values and needs {count}")
    if not all(0 <= number < math.inf for number in numbers):  # so NaN is refused, too
        raise ValueError(f"network_args: {key}={text} must be at least 0")
    return numbers
