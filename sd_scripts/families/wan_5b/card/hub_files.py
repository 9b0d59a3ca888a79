"""Where Wan 2.2 5B's files are on the Hugging Face Hub."""

from sd_scripts.families.wan.card.hub_files import ENCODER, WAN_22

FILES = (
    WAN_22.file("diffusion_models/wan2.2_ti2v_5B_fp16.safetensors", 10.0, "Wan 2.2 TI2V 5B, fp16"),
    ENCODER,
    WAN_22.file("vae/wan2.2_vae.safetensors", 1.41, "Wan 2.2 VAE", option="vae"),
)
