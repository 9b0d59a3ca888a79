"""HunyuanVideo, as the page, the options and the file recognition see it."""

from dataclasses import replace
from functools import partial

from sd_scripts.families.cards.clip_facts import ClipFacts
from sd_scripts.families.cards.family_card import FamilyCard, FilesCard, FirstLayer, HubCard, PlanCard, RecognitionCard
from sd_scripts.families.cards.flow_defaults import MUSUBI_GUIDED, musubi_page
from sd_scripts.families.cards.graph_counts import DOUBLE_AND_SINGLE
from sd_scripts.families.cards.layer_patterns import read_rules
from sd_scripts.families.cards.shared_components import (
    CLIP_L,
    HUNYUAN_VAE,
    HUNYUAN_VAE_MARKS,
    LLAMA,
    LLAMA_MARKS,
    LLAMA_TOKENS,
    LLAMA_WIDTHS,
    PREFIXES,
    transformer,
)
from sd_scripts.families.hunyuan_video.card.hub_files import FILES
from sd_scripts.families.hunyuan_video.card.memory_facts import MEMORY, tokens
from sd_scripts.families.hunyuan_video.card.options import RECOMMENDED, HunyuanModelOptions
from sd_scripts.formats.models.safetensors_header import Header
from sd_scripts.formats.text_limit import TextLimit
from sd_scripts.options.generating.prompt_lines import SamplePrompt
from sd_scripts.options.memory import MemoryOptions
from sd_scripts.options.optimization.flow import FlowOptions

HUB_MODEL = "hunyuanvideo-community/HunyuanVideo"
TRANSFORMERS = (
    "txt_in.individual_token_refiner.blocks.0.self_attn_qkv.weight",
    "context_embedder.token_refiner.refiner_blocks.0.attn.to_q.weight",
)
"""Keys of a transformer of this kind, in the official layout and in diffusers'."""
VARIANTS = (
    ("clean_x_embedder.", ""),
    ("byt5_in.", "HunyuanVideo 1.5"),
    ("context_embedder_2.", "HunyuanVideo 1.5"),
    ("quant_state.bitsandbytes", "HunyuanVideo in 4 bits"),
)
"""(substring of a key, variant) of models with such a transformer that cannot be trained as HunyuanVideo; empty: of a
family of its own."""
TEXT_TO_VIDEO, IMAGE_TO_VIDEO = "HunyuanVideo", "SkyReels-V1 I2V"
IMAGE_INPUTS = 32
"""Input channels of SkyReels-V1 I2V, half of them for the latents of the start image."""
FIRST_LAYER = FirstLayer(
    keys=("img_in.proj.weight", "x_embedder.proj.weight"),
    channels=16,
    kind="HunyuanVideo model",
    also=(IMAGE_INPUTS,),
    variants={33: "HunyuanVideo I2V"},
)


def recognise(header: Header) -> tuple[str | None, str] | None:
    """Return (family, variant) of a file with a transformer of this kind; None for any other file."""
    prefixes = [p for p in PREFIXES if any(p + key in header.shapes for key in TRANSFORMERS)]
    if not prefixes:
        return None
    for mark, variant in VARIANTS:
        if any(mark in key for key in header.shapes):
            return (None, variant) if variant else None
    if other := FIRST_LAYER.other_variant(header.shapes, prefixes[0]):
        return None, other
    from_image = any(header.shapes.get(prefixes[0] + key, ())[1:2] == (IMAGE_INPUTS,) for key in FIRST_LAYER.keys)
    return CARD.name, IMAGE_TO_VIDEO if from_image else TEXT_TO_VIDEO


TEXT_AND_VAE = (
    LLAMA,
    replace(CLIP_L, name="text_encoder2", option="text_encoder2", folder="text_encoder_2"),
    HUNYUAN_VAE,
)

CARD = FamilyCard(
    name="hunyuan_video",
    title="HunyuanVideo",
    order=7,
    groups=(HunyuanModelOptions, FlowOptions, MemoryOptions),
    capabilities=frozenset(
        {
            *("blockwise_updates", "flow_shift", "fp8", "guidance", "offload_activations", "own_vae"),
            *("sample_model", "start_image"),
        }
    ),
    clips=ClipFacts(fps=24, from_image={TEXT_TO_VIDEO: False, IMAGE_TO_VIDEO: True}),
    defaults=MUSUBI_GUIDED,
    notes={
        "pretrained_model_name_or_path": f"HunyuanVideo's ID is {HUB_MODEL}.",
        "vae": "HunyuanVideo's files have none: choose its VAE, such as hunyuan_video_vae_bf16.safetensors. Not needed "
        "for a diffusers folder.",
        "discrete_flow_shift": "7 suits HunyuanVideo; 3 trains details.",
        "weighting_scheme": "For HunyuanVideo sigma_sqrt and cosmap weight every timestep_sampling.",
        "guidance_scale": "For HunyuanVideo 1.0 is recommended; the model reads 1000 times its value, in training as "
        "when generating. musubi-tuner trains with the value itself.",
        "network_args": "HunyuanVideo: exclude_patterns and include_patterns, lists of regular expressions: layers "
        "that are not adapted, and exceptions to them. Modulations are adapted only if they are included.",
        "blocks_to_swap": "HunyuanVideo takes up to 37, and each saves about 0.6 GB.",
        "tokenizer_cache_dir": "LLaMA-3's tokenizer, which HunyuanVideo needs, is not part of this package because of "
        "its licence: it comes from a folder tokenizer next to the base model, or from Hugging Face.",
    },
    page=musubi_page(RECOMMENDED, ("text_encoder1", "text_encoder2"), demo_prompts="--s 16"),
    files=FilesCard(
        components=(
            transformer("HunyuanVideo transformer", *TRANSFORMERS, first_layer=FIRST_LAYER),
            *TEXT_AND_VAE,
        ),
        base_file="a HunyuanVideo file",
        base_model="a HunyuanVideo transformer",
    ),
    network_modules=("networks.lora", "networks.lora_hunyuan_video"),
    network_rules=partial(read_rules, title="HunyuanVideo", excluded=r".*(img_mod|txt_mod|modulation).*"),
    text_limit=lambda settings, variant: TextLimit(tokens=LLAMA_TOKENS),
    plan=PlanCard(tokens=tokens, graphs=DOUBLE_AND_SINGLE, memory=MEMORY),
    sample_defaults=SamplePrompt(width=848, height=480, frames=61, steps=30, scale=1.0, guidance=6.0),
    recognition=RecognitionCard(
        hub_words=("hunyuanvideo", "hunyuan-video"),
        marks=(*HUNYUAN_VAE_MARKS, *LLAMA_MARKS),
        recognise=recognise,
        lora_marks=(
            *("double_blocks_0_img_mlp_fc1", "double_blocks.0.img_mlp.fc1", "single_blocks.38.", "single_blocks_38_"),
            *("single_transformer_blocks.38.", "transformer.transformer_blocks.19."),
        ),
        pipelines=(
            ("HunyuanVideo15", None, "HunyuanVideo 1.5 diffusers folder"),
            ("HunyuanVideoImageToVideo", None, "HunyuanVideo I2V diffusers folder"),
            ("HunyuanVideo", "hunyuan_video", "HunyuanVideo diffusers folder"),
        ),
        widths=LLAMA_WIDTHS,
    ),
    hub=HubCard(model=HUB_MODEL, tags=("text-to-video",), files=FILES),
)
