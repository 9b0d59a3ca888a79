"""Where HunyuanVideo's files are on the Hugging Face Hub."""

from sd_scripts.families.cards.family_card import HubRepo

MODELS = HubRepo("Kijai/HunyuanVideo_comfy", licence="Tencent Hunyuan Community")
ENCODERS = HubRepo(
    "Comfy-Org/HunyuanVideo_repackaged", licence="Llama 3 Community", folder="split_files/text_encoders/"
)

PARTS = (
    ENCODERS.file("llava_llama3_fp16.safetensors", 16.1, "LLaVA-LLaMA-3-8B, fp16", option="text_encoder1"),
    ENCODERS.file("llava_llama3_fp8_scaled.safetensors", 9.09, "LLaVA-LLaMA-3-8B, scaled fp8", option="text_encoder1"),
    ENCODERS.file("clip_l.safetensors", 0.246, "CLIP-L", option="text_encoder2", licence="MIT"),
    MODELS.file("hunyuan_video_vae_bf16.safetensors", 0.493, "VAE, bf16", option="vae"),
)
FILES = (
    MODELS.file("hunyuan_video_720_cfgdistill_bf16.safetensors", 25.6, "HunyuanVideo 720p, guidance distilled, bf16"),
    *PARTS,
)
