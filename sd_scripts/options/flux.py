"""Options that only FLUX.1 has: its files, its timesteps and objective, its memory, its layers."""

from collections.abc import Iterable
from typing import Literal

from sd_scripts.options.network import NetworkOptions
from sd_scripts.options.spec import OptionGroup, option

FLUX = ("flux",)
RECOMMENDED = {
    "timestep_sampling": "shift",
    "discrete_flow_shift": 3.1582,
    "model_prediction_type": "raw",
    "guidance_scale": 1.0,
}
"""Values that train FLUX.1 dev well; the defaults are those of sd-scripts."""


class FluxModelOptions(OptionGroup, title="FLUX.1 model"):
    """FLUX.1's text encoders and autoencoder, and how captions are read."""

    clip_l: str | None = option(
        None,
        "The CLIP-L text encoder, such as clip_l.safetensors. Not needed for a diffusers folder.",
        label="CLIP-L",
        families=FLUX,
        placeholder="/models/clip_l.safetensors",
        path=True,
    )
    t5xxl: str | None = option(
        None,
        "The T5-XXL text encoder, such as t5xxl_fp16.safetensors; fp16, bf16 and fp8 files work. "
        "Not needed for a diffusers folder.",
        label="T5-XXL",
        families=FLUX,
        placeholder="/models/t5xxl_fp16.safetensors",
        path=True,
    )
    ae: str | None = option(
        None,
        "The autoencoder, such as ae.safetensors. Not needed for a diffusers folder.",
        label="Autoencoder (AE)",
        families=FLUX,
        placeholder="/models/ae.safetensors",
        path=True,
    )
    t5xxl_max_token_length: int | None = option(
        None,
        "Number of caption tokens that T5 reads. Unset is 512 for dev and 256 for schnell. Fewer are faster.",
        label="T5 token length",
        within=(1, 4096),
        families=FLUX,
    )
    apply_t5_attn_mask: bool = option(
        False,
        "Mask the padding of short captions for T5 and the transformer. FLUX.1 was trained with this off.",
        label="T5 attention mask",
        families=FLUX,
    )
    model_type: Literal["flux", "chroma"] = option("flux", "Architecture of the transformer.", families=FLUX)
    controlnet_model_name_or_path: str | None = option(
        None,
        "A FLUX.1 ControlNet.",
        families=FLUX,
        not_yet="ControlNet training is not supported; remove it",
        path=True,
    )

    def check(self) -> Iterable[tuple[str, str]]:
        if self.model_type == "chroma":
            yield "model_type", "Chroma is not supported; choose a FLUX.1 model and set model_type = flux"


class FluxObjectiveOptions(OptionGroup, title="FLUX.1 timesteps"):
    """At which timesteps FLUX.1 is trained, and how its prediction enters the loss."""

    timestep_sampling: Literal["sigma", "uniform", "sigmoid", "shift", "flux_shift"] = option(
        "sigma",
        "How timesteps are sampled. shift with discrete_flow_shift = 3.1582, or flux_shift, is recommended.",
        label="Timestep sampling",
        families=FLUX,
    )
    model_prediction_type: Literal["raw", "additive", "sigma_scaled"] = option(
        "sigma_scaled",
        "How the model's output is interpreted. raw is what FLUX.1 predicts and is recommended; sigma_scaled is the "
        "default of sd-scripts and does not match it.",
        label="Prediction type",
        families=FLUX,
    )
    discrete_flow_shift: float = option(
        3.0,
        "Shifts timesteps towards more noise, for sigma and shift. 3.1582 suits 1024x1024.",
        within=(0.001, 100.0),
        families=FLUX,
    )
    guidance_scale: float = option(
        3.5,
        "Guidance embedded in FLUX.1 dev during training; 1.0 is recommended. schnell has none: leave it at 3.5.",
        label="Guidance",
        within=(0.0, 100.0),
        families=FLUX,
    )
    sigmoid_scale: float = option(
        1.0,
        "Scale of the timestep distribution around the middle, for sigmoid, shift and flux_shift.",
        within=(0.001, 100.0),
        families=FLUX,
    )
    weighting_scheme: Literal["sigma_sqrt", "logit_normal", "mode", "cosmap", "none", "uniform"] = option(
        "uniform",
        "Samples some timesteps more often (logit_normal, mode; with sigma) or weights them more (sigma_sqrt, cosmap; "
        "with sigma_scaled).",
        families=FLUX,
    )
    logit_mean: float = option(0.0, "Mean of logit_normal.", within=(-100.0, 100.0), families=FLUX)
    logit_std: float = option(1.0, "Standard deviation of logit_normal.", within=(0.0, 100.0), families=FLUX)
    mode_scale: float = option(1.29, "Scale of mode.", within=(-100.0, 100.0), families=FLUX)


class FluxMemoryOptions(OptionGroup, title="FLUX.1 memory"):
    """Train a 24 GB model on a smaller GPU."""

    blocks_to_swap: int | None = option(
        None,
        "Keep this many blocks in RAM and load each onto the GPU when needed, while others compute. "
        "Each saves about 0.6 GB of GPU memory. FLUX.1 takes up to 35; 0 is off.",
        label="Blocks to swap",
        within=(0, 1000),
        zero_is_off=True,
        families=FLUX,
    )
    fp8_compute: bool = option(
        False,
        "Run the matrix products with frozen weights in fp8, on RTX 40, RTX 50, H100 and newer: about a quarter faster "
        "than bf16, slightly less exact. Saves no memory on its own; combine it with fp8_base_unet for that.",
        label="Compute in fp8",
        methods=("lora",),
        families=FLUX,
    )


class FluxNetworkOptions(OptionGroup, title="FLUX.1 layers", methods=("lora",)):
    """The rank of each kind of layer, and which blocks are trained. All of them work in network_args too."""

    img_attn_dim: int | None = option(
        None,
        "Rank of the image attention; unset is network_dim, 0 skips it.",
        within=(0, 4096),
        families=FLUX,
    )
    txt_attn_dim: int | None = option(
        None,
        "Rank of the text attention; unset is network_dim, 0 skips it.",
        within=(0, 4096),
        families=FLUX,
    )
    img_mlp_dim: int | None = option(
        None,
        "Rank of the image MLP; unset is network_dim, 0 skips it.",
        within=(0, 4096),
        families=FLUX,
    )
    txt_mlp_dim: int | None = option(
        None,
        "Rank of the text MLP; unset is network_dim, 0 skips it.",
        within=(0, 4096),
        families=FLUX,
    )
    img_mod_dim: int | None = option(
        None,
        "Rank of the image modulation; unset is network_dim, 0 skips it.",
        within=(0, 4096),
        families=FLUX,
    )
    txt_mod_dim: int | None = option(
        None,
        "Rank of the text modulation; unset is network_dim, 0 skips it.",
        within=(0, 4096),
        families=FLUX,
    )
    single_dim: int | None = option(
        None,
        "Rank of the single blocks; unset is network_dim, 0 skips them.",
        within=(0, 4096),
        families=FLUX,
    )
    single_mod_dim: int | None = option(
        None,
        "Rank of the modulation in single blocks; unset is network_dim, 0 skips it.",
        within=(0, 4096),
        families=FLUX,
    )
    in_dims: str | None = option(
        None,
        "Ranks of the layers before the blocks, five numbers: image, time, vector, guidance, text. Unset skips them.",
        placeholder="4,0,0,0,4",
        families=FLUX,
    )
    train_blocks: Literal["all", "double", "single"] = option("all", "Which kind of block to train.", families=FLUX)
    train_double_block_indices: str | None = option(
        None,
        "Double blocks to train: all, none, or numbers and ranges.",
        placeholder="0-3,7",
        families=FLUX,
    )
    train_single_block_indices: str | None = option(
        None,
        "Single blocks to train: all, none, or numbers and ranges.",
        placeholder="0-7,12",
        families=FLUX,
    )
    split_qkv: bool = option(
        False,
        "Give query, key and value (and the MLP of single blocks) a LoRA each.",
        label="Split q, k, v",
        families=FLUX,
    )
    train_t5xxl: bool = option(
        False,
        "Train T5-XXL too when text encoders are trained.",
        label="Train T5-XXL",
        families=FLUX,
    )

    def check(self) -> Iterable[tuple[str, str]]:
        ranks = [word.strip() for word in (self.in_dims or "").strip(" '\"[]()").split(",")]
        if self.in_dims and not (len(ranks) == 5 and all(rank.isdecimal() for rank in ranks)):
            yield "in_dims", f"{self.in_dims!r} is not five whole numbers, such as 4,0,0,0,4"


def trains_t5xxl(network: NetworkOptions, flux: FluxNetworkOptions) -> bool:
    """Whether T5 is trained too, by the option or by network_args."""
    given = (item.lower().replace(" ", "") for item in network.network_args)
    return flux.train_t5xxl or any(item in ("train_t5xxl=true", "train_t5xxl=1") for item in given)
