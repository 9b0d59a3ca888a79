"""Anima as a record for the trainer."""

from diffusers.models.autoencoders.autoencoder_kl_qwenimage import QwenImageResidualBlock
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer

from sd_scripts.families.anima import text
from sd_scripts.families.anima.card import CARD
from sd_scripts.families.anima.card.options import LONGEST, part_of
from sd_scripts.families.anima.load import BLOCK_LISTS, LAYOUTS, expected, prepare
from sd_scripts.families.anima.lora import TEXT_ENCODERS, TRANSFORMER
from sd_scripts.families.anima.objective import loss
from sd_scripts.families.anima.sampling import prompt_captions, sample, sample_batch
from sd_scripts.families.common.encoders.causal_vae import encode_images, image_latents
from sd_scripts.families.common.family import Blocks, Family, FileIdentity, Saving, TextEncoding, blocks_of
from sd_scripts.families.common.objective import FLOW_METADATA, flow_inputs
from sd_scripts.options.model import ModelOptions

FAMILY = ANIMA = Family(
    card=CARD,
    identity=FileIdentity(
        base_model_version=CARD.name,
        architecture=lambda components: "anima-preview",
        implementation="https://huggingface.co/circlestone-labs/Anima",
        lora_options=FLOW_METADATA,
    ),
    text=TextEncoding(
        tokenize=text.tokenize,
        encode=text.encode_text,
        prompt_captions=prompt_captions,
        cache_suffix="anima_te",
        cache_key=lambda components, options: (LONGEST,),
        cache_fits=text.cache_fits,
        limit=text.limit,
        trim=text.trim,
        pad=text.pad,
    ),
    blocks=Blocks(
        title=CARD.title,
        denoiser=BLOCK_LISTS.of,
        graph_kinds=lambda transformer: {"AnimaBlock": 1},
        index=part_of,
        text_encoder=blocks_of(Qwen3DecoderLayer),
        vae=lambda vae: blocks_of(QwenImageResidualBlock)(vae.get_submodule("encoder")),
    ),
    latents=image_latents(CARD.name),
    layouts=LAYOUTS,
    prepare=lambda components, settings: prepare(components, settings[ModelOptions]),
    expected=expected,
    block_lists=BLOCK_LISTS,
    encode_images=encode_images,
    step_inputs=flow_inputs,
    loss=loss,
    lora=TRANSFORMER,
    lora_text_encoders=TEXT_ENCODERS,
    sample=sample,
    sample_batch=sample_batch,
    saving=Saving(
        tensors=lambda components, weights: {f"net.{name}": each for name, each in weights.denoiser.items()},
        writes_all=False,
    ),
)
