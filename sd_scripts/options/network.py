"""Options: network."""

from sd_scripts.options.spec import OptionGroup, option


class NetworkOptions(OptionGroup, title="Network"):
    """How much a LoRA can learn, and where."""

    network_module: str | None = option(None, "Importable module implementing the network interface.")
    network_dim: int | None = option(None, "Rank.")
    network_alpha: float = option(1.0, "Alpha; effective scale is alpha/rank.")
    network_dropout: float | None = option(None, "Dropout on the down projection output.")
    network_args: list[str] = option([], "key=value items for the module.")
    network_weights: str | None = option(None, "Existing network file to continue from (loaded non-strictly).")
    dim_from_weights: bool = option(False, "Infer ranks from network_weights.")
    base_weights: list[str] = option([], "Network files merged into the base before training.")
    base_weights_multiplier: list[float] = option([], "Multipliers for base_weights.")
    scale_weight_norms: float | None = option(None, "Max-norm regularisation limit.")
    network_train_unet_only: bool = option(False, "Adapt only the U-Net/DiT.")
    network_train_text_encoder_only: bool = option(False, "Adapt only the text encoders.")
    unet_lr: float | None = option(None, "Learning rate of the U-Net/DiT part of the network.")
    text_encoder_lr: list[float] = option([], "One or several text encoder rates.")
