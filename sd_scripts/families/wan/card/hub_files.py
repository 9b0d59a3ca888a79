"""Where Wan's files are on the Hugging Face Hub."""

from sd_scripts.families.cards.family_card import HubRepo

WAN_21 = HubRepo("Comfy-Org/Wan_2.1_ComfyUI_repackaged", folder="split_files/")
WAN_22 = HubRepo("Comfy-Org/Wan_2.2_ComfyUI_Repackaged", folder="split_files/")

ENCODER = WAN_21.file("text_encoders/umt5_xxl_fp16.safetensors", 11.4, "UMT5-XXL, fp16", option="t5")
FILES = (
    WAN_21.file("diffusion_models/wan2.1_t2v_14B_bf16.safetensors", 28.6, "Wan 2.1 text to video 14B, bf16"),
    WAN_21.file("diffusion_models/wan2.1_t2v_1.3B_bf16.safetensors", 2.84, "Wan 2.1 text to video 1.3B, bf16"),
    WAN_21.file("diffusion_models/wan2.1_i2v_720p_14B_bf16.safetensors", 32.8, "Wan 2.1 image to video 14B, bf16"),
    WAN_22.file(
        "diffusion_models/wan2.2_t2v_low_noise_14B_fp16.safetensors", 28.6, "Wan 2.2 text to video 14B, low noise, fp16"
    ),
    ENCODER,
    WAN_21.file("vae/wan_2.1_vae.safetensors", 0.254, "VAE", option="vae"),
    WAN_21.file(
        "clip_vision/clip_vision_h.safetensors",
        1.26,
        "CLIP ViT-H, for Wan 2.1 image to video",
        option="clip",
        licence="MIT",
    ),
    WAN_22.file(
        "diffusion_models/wan2.2_t2v_high_noise_14B_fp16.safetensors",
        28.6,
        "Wan 2.2 text to video 14B, high noise, fp16",
        option="dit_high_noise",
    ),
)
