"""Options: the LoRA network."""

import functools
from collections.abc import Iterable
from typing import Any

from sd_scripts.options.networks.network_types import NETWORK_TYPES, SHARED, BuiltIn, built_in, read_items
from sd_scripts.options.optimization.optimizer import pairs
from sd_scripts.options.optimization.optimizer_args import literals
from sd_scripts.options.spec import OptionGroup, declared_options, option, optional, path_option, switch

DEFAULT_DIM = 4
"""The rank if network_dim is unset."""
RANDOM_ARGS = ("dropout", "rank_dropout", "module_dropout", "ggpo_beta", "ggpo_sigma")
"""Keys of network_args with which a network draws random numbers in its forward."""


WITH_CONVOLUTIONS = ("locon", "dora", "loha", "lokr", "oft", "boft")


class NetworkOptions(OptionGroup, title="Network", methods=("lora",)):
    """The layers a LoRA adapts, and its capacity."""

    network_type: str | None = optional(
        "What is trained for each layer. lora suits most; locon adapts convolutions too; dora also trains the norms of "
        "weights; lokr makes small files at high rank; loha, oft and boft are alternatives. Default: lora.",
        label="Network type",
        choices=tuple(NETWORK_TYPES),
    )
    network_module: str | None = optional(
        "The same by the names of other programs: networks.loha, networks.lokr, or lycoris.kohya with algo=... in "
        "network_args. Any other Python module that builds a network must be installed.",
        suggestions=("networks.lora", "networks.loha", "networks.lokr", "networks.oft", "lycoris.kohya"),
    )
    network_dim: int | None = optional(
        "Rank, the capacity of the LoRA. 8 to 32 suits most. Default: 4.",
        label="Rank (network_dim)",
        within=(1, 1_000_000),
    )
    network_alpha: float = option(
        1.0,
        "Scales the LoRA by network_alpha / network_dim. Half the rank, or the rank itself, is usual. Adjust the "
        "learning rate when you change it.",
        label="Alpha",
        within=(0.0, 1_000_000.0),
    )
    conv_dim: int | None = optional(
        "Rank of convolutions with a kernel above 1x1; by default they are not trained, except with locon, "
        "which then uses network_dim.",
        label="Convolution rank",
        within=(0, 1_000_000),
        needs="convolutions",
        shown_for=("network_type", WITH_CONVOLUTIONS),
    )
    conv_alpha: float | None = optional(
        "Alpha of convolutions. Default: 1, or network_alpha if conv_dim is unset too.",
        label="Convolution alpha",
        within=(0.0, 1_000_000.0),
        needs="convolutions",
        shown_for=("network_type", WITH_CONVOLUTIONS),
    )
    factor: int = option(
        -1,
        "LoKr: size of the smaller matrix. Larger values make smaller files; 4 to 16 is usual, -1 makes both matrices "
        "about equal and the file smallest.",
        label="LoKr factor",
        within=(-1, 100_000),
        shown_for=("network_type", ("lokr",)),
    )
    full_matrix: bool = switch(
        "LoKr: train the larger matrix whole, whatever network_dim is. A high network_dim does the same.",
        label="LoKr full matrix",
        shown_for=("network_type", ("lokr",)),
    )
    decompose_both: bool = switch(
        "LoKr: train the smaller matrix as a product of two of rank network_dim too.",
        label="LoKr decompose both",
        shown_for=("network_type", ("lokr",)),
    )
    dora_wd: bool = switch(
        "Also train the norm of each row of a weight, as DoRA does. Takes more time and memory.",
        label="Weight decomposition (DoRA)",
        shown_for=("network_type", ("loha", "lokr")),
    )
    wd_on_output: bool = option(
        True,
        "DoRA: train a norm for each output. Off: for each input, which ComfyUI shows exactly as trained.",
        label="Norms of outputs (DoRA)",
        shown_for=("network_type", ("dora", "loha", "lokr")),
    )
    use_tucker: bool = switch(
        "Train convolutions in Tucker form, with a small core for the kernel: fewer values at the same rank.",
        label="Tucker form of convolutions",
        needs="convolutions",
        shown_for=("network_type", ("locon", "dora", "loha", "lokr")),
    )
    constraint: float | None = optional(
        "OFT and BOFT: the furthest that a layer may be rotated, for each of its outputs. Default: no limit, as with "
        "0.",
        label="OFT constraint",
        within=(0.0, 1_000_000.0),
        shown_for=("network_type", ("oft", "boft")),
    )
    rescaled: bool = switch(
        "OFT and BOFT: also train a factor for each output. ComfyUI ignores it for OFT.",
        label="OFT rescaling",
        shown_for=("network_type", ("oft", "boft")),
    )
    lora_init: str = option(
        "default",
        "Initial weights of a LoRA: default is random, pissa the largest singular vectors of each weight, olora an "
        "orthonormal basis of it. The last two converge faster at first; their files have twice the rank.",
        label="LoRA initialization",
        choices=("default", "pissa", "olora"),
    )
    rs_lora: bool = switch(
        "Scale by network_alpha / sqrt(network_dim), so that high ranks train as fast as low ones (rsLoRA).",
        label="Rank-stabilized scale",
    )
    network_dropout: float | None = optional(
        "Fraction of the LoRA's inner activations dropped at random in each step, 0 to 1. Reduces overfitting.",
        label="Dropout",
        within=(0.0, 1.0),
    )
    rank_dropout: float | None = optional(
        "Fraction of ranks, or of outputs where there are none, left out at random in each step.",
        within=(0.0, 1.0),
    )
    module_dropout: float | None = optional(
        "Fraction of layers whose adapter is left out at random in each step.",
        within=(0.0, 1.0),
    )
    network_args: list[str] = option(
        [],
        "More settings of the network as key=value: loraplus_lr_ratio; ggpo_beta with ggpo_sigma; and the settings of "
        "LyCORIS and sd-scripts.",
        label="Network arguments",
        placeholder="loraplus_lr_ratio=16",
    )
    network_weights: str | None = path_option(
        "Start from the weights of this LoRA file, with a new optimizer and step count.",
        label="Continue from LoRA file",
    )
    dim_from_weights: bool = switch(
        "Use the ranks of network_weights instead of network_dim.", label="Rank from the LoRA file"
    )
    base_weights: list[str] = option(
        [], "LoRA files merged into the base model before training.", label="Merge LoRA files first", path=True
    )
    base_weights_multiplier: list[float] = option(
        [],
        "Strength of each file in base_weights. Default: 1.",
        label="Strengths of merged LoRA files",
        within=(-100.0, 100.0),
    )
    training_adapter: str | None = path_option(
        "LoRA file merged into the base model during training only: neither samples nor the saved LoRA contain it. "
        "With one made for it, a distilled model can be trained and still makes images in few steps.",
        label="Training adapter",
    )
    scale_weight_norms: float | None = optional(
        "Keep the norm of each LoRA weight below this, so that none dominates. 1 is a good start, 0 is off.",
        label="Largest weight norm",
        within=(0.0, 1000.0),
        zero_is_off=True,
    )
    network_train_unet_only: bool = switch(
        "Train only the denoiser (U-Net or transformer) and freeze the text encoders. The usual choice.",
        label="Train U-Net or transformer only",
    )
    network_train_text_encoder_only: bool = switch(
        "Train the text encoders and freeze the rest.", label="Train text encoders only"
    )
    unet_lr: float | None = optional(
        "Learning rate of the denoiser (U-Net or transformer). Default: learning_rate.",
        label="U-Net or transformer LR",
        within=(0.0, 1000.0),
    )
    text_encoder_lr: list[float] = option(
        [],
        "Learning rate of the text encoders: one for both, or one for each. Default: learning_rate; 0 freezes an "
        "encoder.",
        label="Text encoder LR",
        within=(0.0, 1000.0),
    )

    @property
    def module(self) -> str:
        """The network_module without our package's name; empty if unset."""
        return (self.network_module or "").removeprefix("sd_scripts.")

    @property
    def built_in(self) -> BuiltIn:
        """Which built-in adapter is trained; it must be one (`is_built_in_network`)."""
        dim = self.network_dim or DEFAULT_DIM
        return built_in(self.module, read_items(self.network_args), self.network_type, dim, self.network_alpha)

    @property
    def lokr_factor(self) -> int:
        """The factor of LoKr, by the option or by network_args; -1 if it cannot be read."""
        text = self.shared_arguments.get("factor") or read_items(self.network_args).get("factor", "-1")
        return int(text) if text.isdecimal() and int(text) else -1

    @property
    def algorithm(self) -> dict[str, str]:
        """Return the keys with which LyCORIS trains the network_type; empty for plain LoRA, or if it is unset."""
        chosen = NETWORK_TYPES.get(self.network_type or "lora")
        if chosen is None or chosen.plain:
            return {}
        return {"algo": chosen.algo, **chosen.always}

    @property
    def shared_arguments(self) -> dict[str, str]:
        """Return the options that are also keys of network_args and are not at their defaults."""
        values = {name: getattr(self, name) for name in SHARED}
        return {name: str(value) for name, value in values.items() if value != self._defaults()[name]}

    @classmethod
    @functools.cache  # settings read them hundreds of times
    def _defaults(cls) -> dict[str, Any]:
        return {each.name: each.default for each in declared_options(cls)}

    @property
    def draws(self) -> str:
        """Return the option for which the network draws random numbers in its forward; empty without one."""
        for name in ("network_dropout", "rank_dropout", "module_dropout"):
            if getattr(self, name):
                return name
        found = (key for key, value, _ in literals(self.network_args) if key in RANDOM_ARGS and value)
        return next((f"{key} in network_args" for key in found), "")

    def arguments_that_vary_the_rate(self, *, with_text: bool) -> list[str]:
        """Return the keys of network_args that give trained weights different learning rates; `with_text` if text
        encoders are trained."""
        found = []
        for key, text in read_items(self.network_args).items():
            of_text = key == "loraplus_text_encoder_lr_ratio"
            named = key.startswith("loraplus_") or key.endswith("_lr_weight") or key == "network_reg_lrs"
            if named and (with_text or not of_text) and text.strip() != "zeros" and not _is_even(text):
                found.append(key)
        return found

    def rate_of_encoder(self, number: int, learning_rate: float) -> float:
        """Return the learning rate of the text encoder `number`, from 0; a single rate is for all."""
        rates = self.text_encoder_lr or [learning_rate]
        return rates[min(number, len(rates) - 1)]

    def check(self) -> Iterable[tuple[str, str]]:
        yield from pairs("network_args", self.network_args)
        if self.lora_init != "default":
            yield from self._check_start()
        if self.network_train_unet_only and self.network_train_text_encoder_only:
            yield (
                "network_train_unet_only",
                "leaves nothing to train together with network_train_text_encoder_only; turn one of them off",
            )
        if self.dim_from_weights and not self.network_weights:
            yield "dim_from_weights", "needs network_weights, the file with the ranks"
        if self.base_weights_multiplier and len(self.base_weights_multiplier) != len(self.base_weights):
            yield (
                "base_weights_multiplier",
                f"has {len(self.base_weights_multiplier)} values for {len(self.base_weights)} files in base_weights; "
                "give one for each",
            )
        if len(self.text_encoder_lr) > 2:
            yield (
                "text_encoder_lr",
                f"has {len(self.text_encoder_lr)} values; give one for both encoders, or one for each",
            )

    def _check_start(self) -> Iterable[tuple[str, str]]:
        if self.network_weights:
            yield (
                "lora_init",
                f"{self.lora_init} and network_weights both set the starting weights; leave one of them unset",
            )
        if self.scale_weight_norms:
            yield (
                "lora_init",
                f"{self.lora_init} does not start from 0, so scale_weight_norms cannot bound it; turn it off",
            )


def _is_even(factors: str) -> bool:
    """Whether all factors of a list are 1, or 0 for untrained layers."""
    try:
        return {float(word) for word in factors.strip(" '\"[]()").split(",") if word.strip()} <= {0.0, 1.0}
    except ValueError:
        return False
