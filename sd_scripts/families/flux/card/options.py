"""Options that only FLUX.1 has: its files, how captions are read, the ranks of its layers."""

from collections.abc import Iterable
from typing import Any, Literal

from sd_scripts.formats.words import is_whole_number
from sd_scripts.options.networks.network import NetworkOptions
from sd_scripts.options.spec import OptionGroup, option, optional, path_option, switch

RECOMMENDED = {
    "timestep_sampling": "shift",
    "discrete_flow_shift": 3.1582,
    "model_prediction_type": "raw",
    "guidance_scale": 1.0,
}
"""Values that train FLUX.1 dev well; the defaults are sd-scripts'."""


class FluxModelOptions(OptionGroup, title="FLUX.1 model"):
    """FLUX.1's text encoders and autoencoder, and how captions are read."""

    clip_l: str | None = path_option(
        "The CLIP-L text encoder, such as clip_l.safetensors. Not needed for a diffusers folder.",
        label="CLIP-L",
        placeholder="/models/clip_l.safetensors",
        needs="pooled_captions",
    )
    t5xxl: str | None = path_option(
        "The T5-XXL text encoder, such as t5xxl_fp16.safetensors; fp16, bf16 and fp8 files work. "
        "Not needed for a diffusers folder.",
        label="T5-XXL",
        placeholder="/models/t5xxl_fp16.safetensors",
    )
    ae: str | None = path_option(
        "The autoencoder, such as ae.safetensors. Not needed for a diffusers folder.",
        label="Autoencoder (AE)",
        placeholder="/models/ae.safetensors",
    )
    t5xxl_max_token_length: int | None = optional(
        "Number of caption tokens that T5 reads. Default: 512 for dev and 256 for schnell. Fewer are faster.",
        label="T5 token length",
        within=(1, 4096),
    )
    apply_t5_attn_mask: bool = switch(
        "Mask the padding of short captions for T5 and the transformer. FLUX.1 was trained with this off.",
        label="T5 attention mask",
        needs="pooled_captions",  # Chroma always masks
    )
    model_type: Literal["flux", "chroma"] = option(
        "flux", "Architecture of the transformer, by which sd-scripts distinguishes Chroma from FLUX.1."
    )
    controlnet_model_name_or_path: str | None = path_option(
        "A FLUX.1 ControlNet.", not_yet="ControlNet training is not supported; remove it"
    )


def _rank(layers: str, them: str = "it", **more: Any) -> int | None:
    """Declare the rank of a kind of layer."""
    return optional(f"Rank of the {layers}. Default: network_dim; 0 skips {them}.", within=(0, 4096), **more)


class FluxNetworkOptions(OptionGroup, title="FLUX.1 layers", methods=("lora",)):
    """The rank of each kind of layer, and which blocks are trained. All of them work in network_args too."""

    img_attn_dim: int | None = _rank("image attention")
    txt_attn_dim: int | None = _rank("text attention")
    img_mlp_dim: int | None = _rank("image MLP")
    txt_mlp_dim: int | None = _rank("text MLP")
    img_mod_dim: int | None = _rank("image modulation", needs="pooled_captions")
    txt_mod_dim: int | None = _rank("text modulation", needs="pooled_captions")
    single_dim: int | None = _rank("single blocks", them="them")
    single_mod_dim: int | None = _rank("modulation in single blocks", needs="pooled_captions")
    in_dims: str | None = optional(
        "Ranks of the layers before the blocks, five numbers: image, time, vector, guidance, text. Default: not "
        "trained.",
        placeholder="4,0,0,0,4",
    )
    train_blocks: Literal["all", "double", "single"] = option("all", "Which kind of block to train.")
    train_double_block_indices: str | None = optional(
        "Double blocks to train: all, none, or numbers and ranges.", placeholder="0-3,7"
    )
    train_single_block_indices: str | None = optional(
        "Single blocks to train: all, none, or numbers and ranges.", placeholder="0-7,12"
    )
    split_qkv: bool = switch(
        "Give query, key and value (and the MLP of single blocks) a LoRA each.", label="Split q, k, v"
    )
    train_t5xxl: bool = switch("Train T5-XXL too when text encoders are trained.", label="Train T5-XXL")

    def check(self) -> Iterable[tuple[str, str]]:
        ranks = [word.strip() for word in (self.in_dims or "").strip(" '\"[]()").split(",")]
        if self.in_dims and not (len(ranks) == 5 and all(map(is_whole_number, ranks))):
            yield "in_dims", f"{self.in_dims!r} is not five whole numbers, such as 4,0,0,0,4"


def trains_t5xxl(network: NetworkOptions, flux: FluxNetworkOptions) -> bool:
    """Whether T5 is trained too, by the option or by network_args."""
    arguments = (item.lower().replace(" ", "") for item in network.network_args)
    return flux.train_t5xxl or any(item in ("train_t5xxl=true", "train_t5xxl=1") for item in arguments)
