"""Where Wan's files are on the Hugging Face Hub."""

from functools import partial

from sd_scripts.families.cards.family_card import HubFile

WAN_21, WAN_22 = "Comfy-Org/Wan_2.1_ComfyUI_repackaged", "Comfy-Org/Wan_2.2_ComfyUI_Repackaged"
_wan_21, _wan_22 = (partial(HubFile, repo=repo, licence="Apache-2.0") for repo in (WAN_21, WAN_22))

ENCODER = _wan_21(
    option="t5",
    file="split_files/text_encoders/umt5_xxl_fp16.safetensors",
    gigabytes=11.4,
    about="UMT5-XXL, fp16",
)
FILES = (
    _wan_21(
        file="split_files/diffusion_models/wan2.1_t2v_14B_bf16.safetensors",
        gigabytes=28.6,
        about="Wan 2.1 text to video 14B, bf16",
    ),
    _wan_21(
        file="split_files/diffusion_models/wan2.1_t2v_1.3B_bf16.safetensors",
        gigabytes=2.84,
        about="Wan 2.1 text to video 1.3B, bf16",
    ),
    _wan_21(
        file="split_files/diffusion_models/wan2.1_i2v_720p_14B_bf16.safetensors",
        gigabytes=32.8,
        about="Wan 2.1 image to video 14B, bf16",
    ),
    _wan_22(
        file="split_files/diffusion_models/wan2.2_t2v_low_noise_14B_fp16.safetensors",
        gigabytes=28.6,
        about="Wan 2.2 text to video 14B, low noise, fp16",
    ),
    ENCODER,
    _wan_21(
        option="vae",
        file="split_files/vae/wan_2.1_vae.safetensors",
        gigabytes=0.254,
        about="VAE",
    ),
    _wan_21(
        option="clip",
        file="split_files/clip_vision/clip_vision_h.safetensors",
        gigabytes=1.26,
        licence="MIT",
        about="CLIP ViT-H, for Wan 2.1 image to video",
    ),
    _wan_22(
        option="dit_high_noise",
        file="split_files/diffusion_models/wan2.2_t2v_high_noise_14B_fp16.safetensors",
        gigabytes=28.6,
        about="Wan 2.2 text to video 14B, high noise, fp16",
    ),
)
