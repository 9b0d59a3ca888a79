"""Options: the LoRA network."""

from collections.abc import Iterable

from sd_scripts.options import network_args
from sd_scripts.options.optimizer import pairs
from sd_scripts.options.optimizer_args import literals
from sd_scripts.options.spec import OptionGroup, option, optional, path_option, switch

DEFAULT_DIM = 4
"""The rank if network_dim is unset."""
RANDOM_ARGS = ("dropout", "rank_dropout", "module_dropout", "ggpo_beta", "ggpo_sigma")
"""Keys of network_args with which a network draws random numbers in its forward."""


class NetworkOptions(OptionGroup, title="Network", methods=("lora",)):
    """What the LoRA adapts, and how much it can learn."""

    network_module: str | None = optional(
        "Python module that builds the network. Unset is networks.lora, the built-in LoRA. An external one, such as "
        "lycoris.kohya, must be installed.",
        suggestions=("networks.lora", "lycoris.kohya"),
    )
    network_dim: int | None = optional(
        "Rank: how much the LoRA can learn. 8 to 32 suits most; unset is 4.",
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
    network_dropout: float | None = optional(
        "Fraction of the LoRA's inner activations dropped at random in each step, 0 to 1. Reduces overfitting.",
        label="Dropout",
        within=(0.0, 1.0),
    )
    network_args: list[str] = option(
        [],
        "More settings of the network as key=value: rank_dropout, module_dropout, loraplus_lr_ratio; ggpo_beta with "
        "ggpo_sigma.",
        label="Network arguments",
        placeholder="rank_dropout=0.1",
    )
    network_weights: str | None = path_option(
        "Start from the weights of this LoRA file, with a new optimizer and step count.",
        label="Continue from LoRA file",
    )
    dim_from_weights: bool = switch(
        "Take the ranks from network_weights instead of network_dim.", label="Rank from the LoRA file"
    )
    base_weights: list[str] = option(
        [], "LoRA files merged into the base model before training.", label="Merge LoRA files first", path=True
    )
    base_weights_multiplier: list[float] = option(
        [],
        "Strength of each file in base_weights. Unset is 1 for all.",
        label="Strengths of merged LoRA files",
        within=(-100.0, 100.0),
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
        "Learning rate of the denoiser (U-Net or transformer); unset is learning_rate.",
        label="U-Net or transformer LR",
        within=(0.0, 1000.0),
    )
    text_encoder_lr: list[float] = option(
        [],
        "Learning rate of the text encoders: one for both, or one for each. Unset is learning_rate; 0 freezes an "
        "encoder.",
        label="Text encoder LR",
        within=(0.0, 1000.0),
    )

    @property
    def is_ours(self) -> bool:
        """Whether network_module is the built-in LoRA."""
        from sd_scripts.families.registry import cards  # the cards name groups of options

        name = (self.network_module or "").removeprefix("sd_scripts.")
        return not name or any(name in card.network_modules for card in cards())

    @property
    def draws(self) -> str:
        """Return what makes the network draw random numbers in its forward; empty if nothing does."""
        if self.network_dropout:
            return "network_dropout"
        found = (key for key, value, _ in literals(self.network_args) if key in RANDOM_ARGS and value)
        return next((f"{key} in network_args" for key in found), "")

    @property
    def arguments_that_train_the_base(self) -> list[str]:
        """Return the network_args with which an external network trains weights of the base model, or reads them."""
        given = () if self.is_ours else (item.replace(" ", "").lower() for item in self.network_args)
        return [arg for arg in given if arg in ("algo=full", "dora_wd=true", "weight_decompose=true")]

    def rate_of_encoder(self, number: int, learning_rate: float) -> float:
        """Return the learning rate of the text encoder `number`, from 0; a single rate is for all."""
        rates = self.text_encoder_lr or [learning_rate]
        return rates[min(number, len(rates) - 1)]

    def check(self) -> Iterable[tuple[str, str]]:
        yield from pairs("network_args", self.network_args)
        if self.is_ours:
            for problem in network_args.problems(self.network_args):
                yield "network_args", problem.removeprefix("network_args: ")
        if self.is_ours and (self.network_dim or 0) > network_args.LARGEST_RANK:
            yield (
                "network_dim",
                f"{self.network_dim} is above {network_args.LARGEST_RANK}, more than any layer has; 8 to 32 suits "
                "most. Only LyCORIS accepts a larger number, which means full rank",
            )
        if self.network_train_unet_only and self.network_train_text_encoder_only:
            yield (
                "network_train_unet_only",
                "leaves nothing to train together with network_train_text_encoder_only; turn one of them off",
            )
        if self.dim_from_weights and not self.network_weights:
            yield "dim_from_weights", "needs network_weights, the file to take the ranks from"
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
