"""HunyuanVideo as a record for the trainer."""

from diffusers.models.autoencoders.autoencoder_kl_hunyuan_video import HunyuanVideoResnetBlockCausal3D

from sd_scripts.data.caches.caching import LatentLayout
from sd_scripts.families.common.encoders.hunyuan_vae import encode_images, latent_shape
from sd_scripts.families.common.encoders.llama import OUTPUTS, TEMPLATE, encode_text, pad_text, tokenize
from sd_scripts.families.common.family import Blocks, Family, FileIdentity, TextEncoding, blocks_named, blocks_of
from sd_scripts.families.common.objective import FLOW_METADATA
from sd_scripts.families.hunyuan_video.card import CARD
from sd_scripts.families.hunyuan_video.load import BLOCK_LISTS, LAYOUTS, expected
from sd_scripts.families.hunyuan_video.lora import TEXT_ENCODERS, TRANSFORMER
from sd_scripts.families.hunyuan_video.objective import loss, step_inputs
from sd_scripts.families.hunyuan_video.sampling import prompt_captions, sample
from sd_scripts.library.text.tokenizers import CLIP_LENGTH

FAMILY = HUNYUAN_VIDEO = Family(
    card=CARD,
    identity=FileIdentity(
        base_model_version="hunyuan_video",
        architecture=lambda components: "hunyuan-video",
        implementation="https://github.com/Tencent/HunyuanVideo",
        lora_options=(*FLOW_METADATA, "guidance_scale"),
    ),
    text=TextEncoding(
        tokenize=tokenize,
        encode=encode_text,
        prompt_captions=prompt_captions,
        adapted=lambda settings: (True, True),
        cache_suffix="hunyuan_video_te",
        cache_key=TEMPLATE.cache_key,
        cache_fits=OUTPUTS.cache_fits,
        limit=TEMPLATE.limit,
        reads=lambda limit: (limit, CLIP_LENGTH - 2),  # without CLIP's start and end
        trim=OUTPUTS.trim,
        pad=pad_text,
    ),
    blocks=Blocks(
        title="HunyuanVideo",
        denoiser=BLOCK_LISTS.of,
        graph_kinds=lambda hunyuan: {"MMDoubleStreamBlock": 1, "MMSingleStreamBlock": 1},
        text_encoder=blocks_named("LlamaDecoderLayer", "CLIPEncoderLayer"),
        vae=lambda vae: blocks_of(HunyuanVideoResnetBlockCausal3D)(vae.get_submodule("encoder")),
    ),
    latents=LatentLayout(suffix=CARD.name, shape=latent_shape),
    layouts=LAYOUTS,
    expected=expected,
    block_lists=BLOCK_LISTS,
    encode_images=encode_images,
    step_inputs=step_inputs,
    loss=loss,
    lora=TRANSFORMER,
    lora_text_encoders=TEXT_ENCODERS,
    sample=sample,
)
