"""Where HunyuanVideo's files are on the Hugging Face Hub."""

from sd_scripts.families.cards.family_card import HubFile

MODELS, REPACKED = "Kijai/HunyuanVideo_comfy", "Comfy-Org/HunyuanVideo_repackaged"
LICENCE = "Tencent Hunyuan Community"

PARTS = (
    HubFile(
        option="text_encoder1",
        repo=REPACKED,
        file="split_files/text_encoders/llava_llama3_fp16.safetensors",
        gigabytes=16.1,
        licence="Llama 3 Community",
        about="LLaVA-LLaMA-3-8B, fp16",
    ),
    HubFile(
        option="text_encoder1",
        repo=REPACKED,
        file="split_files/text_encoders/llava_llama3_fp8_scaled.safetensors",
        gigabytes=9.09,
        licence="Llama 3 Community",
        about="LLaVA-LLaMA-3-8B, scaled fp8",
    ),
    HubFile(
        option="text_encoder2",
        repo=REPACKED,
        file="split_files/text_encoders/clip_l.safetensors",
        gigabytes=0.246,
        licence="MIT",
        about="CLIP-L",
    ),
    HubFile(
        option="vae",
        repo=MODELS,
        file="hunyuan_video_vae_bf16.safetensors",
        gigabytes=0.493,
        licence=LICENCE,
        about="VAE, bf16",
    ),
)
FILES = (
    HubFile(
        repo=MODELS,
        file="hunyuan_video_720_cfgdistill_bf16.safetensors",
        gigabytes=25.6,
        licence=LICENCE,
        about="HunyuanVideo 720p, guidance distilled, bf16",
    ),
    *PARTS,
)
