"""Options of FLUX.1 alone: its files, what it learns at which timesteps, its memory, its layers."""

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
"""How FLUX.1 dev learns well; the defaults are those of the field."""


class FluxModelOptions(OptionGroup, title="FLUX.1 model"):
    """The parts that FLUX.1 is shipped in beside the transformer, and how captions are read."""

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
        "How many tokens of a caption T5 reads; unset is 512 for dev and 256 for schnell. Fewer are faster.",
        label="T5 token length",
        within=(1, 4096),
        families=FLUX,
    )
    apply_t5_attn_mask: bool = option(
        False,
        "Hide the padding behind short captions from T5 and from the transformer. Off is how FLUX.1 was trained.",
        label="T5 attention mask",
        families=FLUX,
    )
    model_type: Literal["flux", "chroma"] = option("flux", "Architecture of the transformer.", families=FLUX)
    controlnet_model_name_or_path: str | None = option(
        None,
        "A FLUX.1 ControlNet.",
        families=FLUX,
        not_yet="ControlNets are not trained here; leave it out",
        path=True,
    )

    def check(self) -> Iterable[tuple[str, str]]:
        if self.model_type == "chroma":
            yield "model_type", "Chroma is not trained here; choose a FLUX.1 model and set model_type = flux"


class FluxObjectiveOptions(OptionGroup, title="FLUX.1 timesteps"):
    """At which timesteps FLUX.1 is trained, and what of the prediction is compared."""

    timestep_sampling: Literal["sigma", "uniform", "sigmoid", "shift", "flux_shift"] = option(
        "sigma",
        "How timesteps are drawn. shift with discrete_flow_shift = 3.1582, or flux_shift, is recommended.",
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
        "Moves timesteps towards more noise, for sigma and shift. 3.1582 suits 1024x1024.",
        within=(0.001, 100.0),
        families=FLUX,
    )
    guidance_scale: float = option(
        3.5,
        "Guidance embedded in FLUX.1 dev during training; 1.0 is recommended. schnell takes none: leave it at 3.5.",
        label="Guidance",
        within=(0.0, 100.0),
        families=FLUX,
    )
    sigmoid_scale: float = option(
        1.0,
        "Spread of the timesteps around the middle, for sigmoid, shift and flux_shift.",
        within=(0.001, 100.0),
        families=FLUX,
    )
    weighting_scheme: Literal["sigma_sqrt", "logit_normal", "mode", "cosmap", "none", "uniform"] = option(
        "uniform",
        "Which timesteps are drawn more often (logit_normal, mode; with sigma) or count more (sigma_sqrt, cosmap; "
        "with sigma_scaled).",
        families=FLUX,
    )
    logit_mean: float = option(0.0, "Middle of logit_normal.", within=(-100.0, 100.0), families=FLUX)
    logit_std: float = option(1.0, "Spread of logit_normal.", within=(0.0, 100.0), families=FLUX)
    mode_scale: float = option(1.29, "Scale of mode.", within=(-100.0, 100.0), families=FLUX)


class FluxMemoryOptions(OptionGroup, title="FLUX.1 memory"):
    """How a model of 24 GB trains on a smaller card."""

    blocks_to_swap: int | None = option(
        None,
        "Keep so many blocks in main memory and bring each to the GPU when it is needed, while others compute. "
        "0 is off; FLUX.1 takes up to 35. Each saves about 0.6 GB.",
        label="Blocks to swap",
        within=(0, 1000),
        zero_is_off=True,
        families=FLUX,
    )
    fp8_compute: bool = option(
        False,
        "Multiply by the frozen weights in fp8, on RTX 40, RTX 50, H100 and newer: about a quarter faster than bf16, "
        "slightly less exact. Alone it saves no memory, with fp8_base_unet as much as that.",
        label="Compute in fp8",
        methods=("lora",),
        families=FLUX,
    )


class FluxNetworkOptions(OptionGroup, title="FLUX.1 layers"):
    """How much each kind of layer learns, and which blocks. Each can stand in network_args too, under the same name."""

    img_attn_dim: int | None = option(
        None,
        "Rank in the attention of images; unset is network_dim, 0 leaves it out.",
        within=(0, 4096),
        families=FLUX,
        methods=("lora",),
    )
    txt_attn_dim: int | None = option(
        None,
        "Rank in the attention of text; unset is network_dim, 0 leaves it out.",
        within=(0, 4096),
        families=FLUX,
        methods=("lora",),
    )
    img_mlp_dim: int | None = option(
        None,
        "Rank in the MLP of images; unset is network_dim, 0 leaves it out.",
        within=(0, 4096),
        families=FLUX,
        methods=("lora",),
    )
    txt_mlp_dim: int | None = option(
        None,
        "Rank in the MLP of text; unset is network_dim, 0 leaves it out.",
        within=(0, 4096),
        families=FLUX,
        methods=("lora",),
    )
    img_mod_dim: int | None = option(
        None,
        "Rank in the modulation of images; unset is network_dim, 0 leaves it out.",
        within=(0, 4096),
        families=FLUX,
        methods=("lora",),
    )
    txt_mod_dim: int | None = option(
        None,
        "Rank in the modulation of text; unset is network_dim, 0 leaves it out.",
        within=(0, 4096),
        families=FLUX,
        methods=("lora",),
    )
    single_dim: int | None = option(
        None,
        "Rank in the single blocks; unset is network_dim, 0 leaves them out.",
        within=(0, 4096),
        families=FLUX,
        methods=("lora",),
    )
    single_mod_dim: int | None = option(
        None,
        "Rank in the modulation of single blocks; unset is network_dim, 0 leaves it out.",
        within=(0, 4096),
        families=FLUX,
        methods=("lora",),
    )
    in_dims: str | None = option(
        None,
        "Ranks in the layers before the blocks, five numbers: image, time, vector, guidance, text. "
        "Unset leaves them out.",
        placeholder="4,0,0,0,4",
        families=FLUX,
        methods=("lora",),
    )
    train_blocks: Literal["all", "double", "single"] = option(
        "all", "Which kind of block learns.", families=FLUX, methods=("lora",)
    )
    train_double_block_indices: str | None = option(
        None,
        "Which of the double blocks learn: all, none, or numbers and ranges.",
        placeholder="0-3,7",
        families=FLUX,
        methods=("lora",),
    )
    train_single_block_indices: str | None = option(
        None,
        "Which of the single blocks learn: all, none, or numbers and ranges.",
        placeholder="0-7,12",
        families=FLUX,
        methods=("lora",),
    )
    split_qkv: bool = option(
        False,
        "Give query, key and value (and the MLP of single blocks) a rank of their own.",
        label="Split q, k, v",
        families=FLUX,
        methods=("lora",),
    )
    train_t5xxl: bool = option(
        False,
        "Adapt T5-XXL too, where text encoders are trained.",
        label="Train T5-XXL",
        families=FLUX,
        methods=("lora",),
    )

    def check(self) -> Iterable[tuple[str, str]]:
        ranks = [word.strip() for word in (self.in_dims or "").strip(" '\"[]()").split(",")]
        if self.in_dims and not (len(ranks) == 5 and all(rank.isdecimal() for rank in ranks)):
            yield "in_dims", f"{self.in_dims!r} is not five whole numbers, such as 4,0,0,0,4"


def trains_t5xxl(network: NetworkOptions, flux: FluxNetworkOptions) -> bool:
    """Whether T5 is adapted too, by the option or by network_args."""
    given = (item.lower().replace(" ", "") for item in network.network_args)
    return flux.train_t5xxl or any(item in ("train_t5xxl=true", "train_t5xxl=1") for item in given)
