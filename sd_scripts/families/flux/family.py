"""FLUX.1, dev and schnell, as a record for the trainer."""

from sd_scripts.families.common.family import Blocks, Family, FileIdentity, TextEncoding, blocks_named, blocks_of
from sd_scripts.families.common.objective import flow_inputs
from sd_scripts.families.flux.card import CARD
from sd_scripts.families.flux.card.options import FluxModelOptions, FluxNetworkOptions, trains_t5xxl
from sd_scripts.families.flux.load import BLOCK_LISTS, LAYOUTS, expected, prepare, problems
from sd_scripts.families.flux.lora import BLOCKS, TEXT_ENCODERS, TRANSFORMER
from sd_scripts.families.flux.objective import OBJECTIVE_METADATA, architecture, loss
from sd_scripts.families.flux.sampling import prompt_captions, sample, sample_batch
from sd_scripts.families.flux.text import encode_text, text_cache_fits, text_cache_key, text_limit, tokenize
from sd_scripts.families.flux.vae import LATENTS, encode_images
from sd_scripts.library.files.lean_diffusers import ResnetBlock2D
from sd_scripts.library.text.tokenizers import CLIP_LENGTH
from sd_scripts.options.networks.network import NetworkOptions
from sd_scripts.options.optimization.flow import FlowOptions

FAMILY = FLUX = Family(
    card=CARD,
    identity=FileIdentity(
        base_model_version="flux1",
        architecture=architecture,
        implementation="https://github.com/black-forest-labs/flux",
        lora_options=("model_type", "apply_t5_attn_mask", *OBJECTIVE_METADATA),
    ),
    text=TextEncoding(
        tokenize=tokenize,
        encode=encode_text,
        prompt_captions=prompt_captions,
        adapted=lambda settings: (True, trains_t5xxl(settings[NetworkOptions], settings[FluxNetworkOptions])),
        cache_suffix="flux_te",
        cache_key=text_cache_key,
        cache_fits=text_cache_fits,
        limit=text_limit,
        reads=lambda limit: (CLIP_LENGTH - 2, limit - 1),  # without CLIP's start and end, and T5's end
    ),
    blocks=Blocks(
        title="FLUX",
        denoiser=BLOCK_LISTS.of,
        graph_kinds=lambda flux: {"DoubleBlock": 1, "SingleBlock": 1},
        text_encoder=blocks_named("CLIPEncoderLayer", "T5Block"),
        vae=lambda vae: blocks_of(ResnetBlock2D)(vae.get_submodule("encoder")),
    ),
    latents=LATENTS,
    layouts=LAYOUTS,
    prepare=lambda components, settings: prepare(components, settings[FluxModelOptions]),
    expected=expected,
    problems=lambda sources, settings: problems(sources, settings[FlowOptions]),
    block_lists=BLOCK_LISTS,
    encode_images=encode_images,
    objective_group=FluxModelOptions,
    step_inputs=flow_inputs,
    loss=loss,
    lora=TRANSFORMER,
    lora_text_encoders=TEXT_ENCODERS,
    lora_blocks=BLOCKS,
    sample=sample,
    sample_batch=sample_batch,
)
