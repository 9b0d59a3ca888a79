"""HunyuanVideo as a record for the trainer."""

from diffusers.models.autoencoders.autoencoder_kl_hunyuan_video import HunyuanVideoResnetBlockCausal3D

from sd_scripts.families.common.family import (
    Blocks,
    Family,
    FileIdentity,
    Saving,
    TextEncoding,
    blocks_named,
    blocks_of,
)
from sd_scripts.families.common.objective import flow_validation_timesteps
from sd_scripts.families.common.placing import checkpoint_gradients
from sd_scripts.families.hunyuan_video.card import CARD
from sd_scripts.families.hunyuan_video.load import LAYOUTS, place, problems
from sd_scripts.families.hunyuan_video.lora import TEXT_ENCODERS, TRANSFORMER
from sd_scripts.families.hunyuan_video.objective import loss, metadata, step_inputs
from sd_scripts.families.hunyuan_video.sampling import prompt_captions, sample
from sd_scripts.families.hunyuan_video.text import (
    encode_text,
    pad_text,
    text_cache_fits,
    text_cache_key,
    text_limit,
    tokenize,
    trim_text,
)
from sd_scripts.families.hunyuan_video.vae import LATENTS, encode_images
from sd_scripts.library.text.tokenizers import CLIP_LENGTH

FAMILY = HUNYUAN_VIDEO = Family(
    card=CARD,
    identity=FileIdentity(
        base_model_version="hunyuan_video",
        architecture=lambda components: "hunyuan-video",
        implementation="https://github.com/Tencent/HunyuanVideo",
        lora_metadata=metadata,
    ),
    text=TextEncoding(
        tokenize=tokenize,
        encode=encode_text,
        prompt_captions=prompt_captions,
        adapted=lambda settings: (True, True),
        cache_suffix="hunyuan_video_te",
        cache_key=text_cache_key,
        cache_fits=text_cache_fits,
        limit=text_limit,
        reads=lambda limit: (limit, CLIP_LENGTH - 2),  # without CLIP's start and end
        trim=trim_text,
        pad=pad_text,
    ),
    blocks=Blocks(
        title="HunyuanVideo",
        denoiser=lambda hunyuan: [list(hunyuan.double_blocks), list(hunyuan.single_blocks)],  # type: ignore[arg-type]
        graph_kinds=lambda hunyuan: {"MMDoubleStreamBlock": 1, "MMSingleStreamBlock": 1},
        text_encoder=blocks_named("LlamaDecoderLayer", "CLIPEncoderLayer"),
        vae=lambda vae: blocks_of(HunyuanVideoResnetBlockCausal3D)(vae.get_submodule("encoder")),
    ),
    saving=Saving(tensors=lambda components, weights: weights.denoiser, writes_all=False),
    latents=LATENTS,
    layouts=LAYOUTS,
    problems=problems,
    encode_images=encode_images,
    place=place,
    checkpoint_gradients=checkpoint_gradients,
    step_inputs=step_inputs,
    validation_timesteps=flow_validation_timesteps,
    loss=loss,
    lora=TRANSFORMER,
    lora_text_encoders=TEXT_ENCODERS,
    sample=sample,
)
