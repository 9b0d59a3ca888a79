"""FLUX.1, as the page, the options and the file recognition see it."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from sd_scripts.families.cards.family_card import (
    ComponentCard,
    FamilyCard,
    FilesCard,
    FirstLayer,
    HubCard,
    PageCard,
    PanelCard,
    PlanCard,
    RecognitionCard,
)
from sd_scripts.families.cards.graph_counts import DOUBLE_AND_SINGLE
from sd_scripts.families.cards.shared_components import CLIP_L, FLUX_VAE, FLUX_VAE_KIND, PREFIXES, transformer
from sd_scripts.families.flux.card.checks import PROBLEMS, REMARKS
from sd_scripts.families.flux.card.hub_files import FILES
from sd_scripts.families.flux.card.kohya import KOHYA
from sd_scripts.families.flux.card.layer_rules import read_flux_rules
from sd_scripts.families.flux.card.memory_facts import MEMORY
from sd_scripts.families.flux.card.options import RECOMMENDED, FluxModelOptions, FluxNetworkOptions
from sd_scripts.families.flux.card.speeds import SPEEDS
from sd_scripts.formats.documents import read_json
from sd_scripts.formats.models.safetensors_header import Header
from sd_scripts.formats.text_limit import TextLimit
from sd_scripts.options.generating.prompt_lines import SamplePrompt
from sd_scripts.options.memory import MemoryOptions
from sd_scripts.options.optimization.flow import FlowOptions
from sd_scripts.options.spec import OptionValues

HUB_MODEL, SCHNELL_MODEL = "black-forest-labs/FLUX.1-dev", "black-forest-labs/FLUX.1-schnell"
SCHNELL = "flux-1-schnell"
"""modelspec.architecture of files that are trained on schnell."""

TRANSFORMERS = ("double_blocks.0.img_attn.qkv.weight", "single_transformer_blocks.0.proj_mlp.bias")
"""Keys of a transformer of this kind, in the original layout and in diffusers'."""
VARIANTS = (("quant_state.bitsandbytes", "FLUX.1 in 4 bits"),)
"""(substring of a key, variant) of models with such a transformer that cannot be trained as FLUX.1."""
OTHERS = ("context_embedder.token_refiner.", "double_stream_modulation_img.")
"""Substrings of keys of other families' transformers that have some of these keys, too."""
FIRST_LAYER = FirstLayer(
    keys=("img_in.weight", "x_embedder.weight"),
    channels=64,
    kind="FLUX.1 model",
    variants={384: "FLUX.1 Fill", 128: "FLUX.1 Canny or Depth"},
)
PIPELINE = "FLUX.1 diffusers folder"


def recognise(header: Header) -> tuple[str | None, str] | None:
    """Return (family, variant) of a file with a transformer of this kind; None for any other file."""
    prefixes = [p for p in PREFIXES if any(p + key in header.shapes for key in TRANSFORMERS)]
    if not prefixes or any(mark in key for key in header.shapes for mark in OTHERS):
        return None
    for mark, variant in VARIANTS:
        if any(mark in key for key in header.shapes):
            return None, variant
    if other := FIRST_LAYER.other_variant(header.shapes, prefixes[0]):
        return None, other
    guided = any("guidance_in." in key or "guidance_embedder." in key for key in header.shapes)
    return "flux", "FLUX.1 dev" if guided else "FLUX.1 schnell"


def folder_variant(folder: Path, variant: str) -> str:
    """Distinguish dev from schnell by the transformer's configuration in a diffusers folder."""
    try:
        guided = read_json(folder / "transformer" / "config.json").get("guidance_embeds")
    except (OSError, ValueError, AttributeError):
        return variant
    return f"FLUX.1 {'dev' if guided else 'schnell'} diffusers folder" if variant == PIPELINE else variant


T5_LENGTHS = {"dev": 512, "schnell": 256}
"""Variant -> tokens that T5 reads."""


def text_limit(settings: OptionValues, variant: str) -> TextLimit:
    """Return the number of tokens that T5 reads."""
    default = T5_LENGTHS["schnell" if is_schnell(variant) else "dev"]
    return limit_of(settings[FluxModelOptions].t5xxl_max_token_length or default)


def limit_of(tokens: int) -> TextLimit:
    return TextLimit(tokens=tokens, remedy="raise t5xxl_max_token_length")


def model_remarks(settings: OptionValues, variant: str) -> Iterator[str]:
    if is_schnell(variant) and settings[FlowOptions].guidance_scale == RECOMMENDED["guidance_scale"]:  # others: load.py
        yield "guidance_scale: has no effect on FLUX.1 schnell, which has no guidance"


def is_schnell(variant: str) -> bool:
    return variant.startswith("FLUX.1 schnell")


CARD = FamilyCard(
    name="flux",
    title="FLUX.1",
    order=1,
    groups=(FluxModelOptions, FlowOptions, MemoryOptions, FluxNetworkOptions),
    capabilities=frozenset(
        {
            *("batches", "blockwise_updates", "fp8", "guidance", "offload_activations", "partial_text_cache"),
            *("pooled_captions", "prediction_types", "sample_model", "smaller_at_high_noise"),
        }
    ),
    choices={"timestep_sampling": ("flux_shift",)},
    notes={
        "pretrained_model_name_or_path": f"FLUX.1's IDs are {HUB_MODEL} and {SCHNELL_MODEL}.",
        "equal_token_buckets": "All buckets of FLUX.1 then share one set of graphs.",
        "timestep_sampling": "flux_shift shifts as FLUX.1 was trained: more noise for larger images.",
        "cache_text_encoder_outputs": "FLUX.1's CLIP-L can still be trained.",
        "huber_schedule": "FLUX.1 takes constant or exponential.",
        "min_timestep": "FLUX.1's timesteps are sampled from the whole range, then rescaled to between "
        "min_timestep and max_timestep.",
        "network_args": "FLUX.1: network_reg_dims, network_reg_lrs.",
        "guidance_scale": "For FLUX.1 dev 1.0 is recommended; schnell has none: leave it at 3.5.",
        "fp8_base": "Of FLUX.1's text encoders it is T5.",
        "quantize_text_encoders": "Of FLUX.1's it is T5.",
        "blocks_to_swap": "FLUX.1 takes up to 35, and each saves about 0.6 GB.",
    },
    page=PageCard(
        recommended=RECOMMENDED,
        recommended_note=(
            f"Schnell has no guidance and keeps {FlowOptions.guidance_scale}. The sd-scripts defaults do not "
            "match what FLUX.1 predicts."
        ),
        recommend=lambda model: (
            {**RECOMMENDED, "guidance_scale": FlowOptions.guidance_scale} if is_schnell(model) else RECOMMENDED
        ),
        model_panel=("clip_l", "t5xxl", "ae", "t5xxl_max_token_length", "apply_t5_attn_mask"),
        panels=(
            PanelCard(
                group=FluxNetworkOptions,
                names=(
                    *("train_double_block_indices", "train_single_block_indices"),
                    *("train_blocks", "split_qkv", "train_t5xxl"),
                    *("img_attn_dim", "img_mlp_dim", "img_mod_dim", "txt_attn_dim", "txt_mlp_dim", "txt_mod_dim"),
                    *("single_dim", "single_mod_dim", "in_dims"),
                ),
            ),
        ),
        use_hints={
            "full": "Your model. To use it, put it into <b>models/diffusion_models</b> (ComfyUI) or "
            "<b>models/Stable-diffusion</b> (WebUI Forge)."
        },
        demo={"t5xxl_max_token_length": 64, **RECOMMENDED},  # the trained miniature knows no other length
        demo_prompts="--s 16",
        demo_first=True,  # its miniature learns in the shortest time
        kohya=KOHYA,
    ),
    files=FilesCard(
        components=(
            transformer("FLUX.1 transformer", *TRANSFORMERS, first_layer=FIRST_LAYER),
            CLIP_L,
            ComponentCard(
                name="text_encoder2",
                option="t5xxl",
                kind="T5 text encoder",
                title="the T5-XXL text encoder",
                folder="text_encoder_2",
                fitting=("T5-XXL text encoder", "T5 text encoder"),
                prefixes=("", "text_encoders.t5xxl.transformer."),
                signature_keys=("encoder.block.0.layer.0.SelfAttention.q.weight",),
            ),
            replace(FLUX_VAE, option="ae"),
        ),
        base_file="a FLUX.1 file",
        base_model="a FLUX.1 transformer",
    ),
    network_modules=("networks.lora", "networks.oft_flux", "networks.lora_flux"),
    network_groups=(FluxNetworkOptions,),
    network_rules=read_flux_rules,
    text_limit=text_limit,
    model_remarks=model_remarks,
    plan=PlanCard(graphs=DOUBLE_AND_SINGLE, speeds=SPEEDS, memory=MEMORY),
    sample_defaults=SamplePrompt(steps=20, scale=1.0),
    recognition=RecognitionCard(
        hub_words=("flux",),
        recognise=recognise,
        lora_marks=(
            *("double_blocks", "single_transformer_blocks", "ff_context", "norm1_context"),
            *("lora_te2_encoder_block_", "text_encoder_2.encoder.block."),  # T5 as the second encoder
        ),
        lora_encoder_marks=("lora_te3_encoder_block_",),
        pipelines=(
            ("FluxFill", None, "FLUX.1 Fill diffusers folder"),
            ("FluxControl", None, "FLUX.1 Canny or Depth diffusers folder"),
            ("Flux2", None, "FLUX.2 diffusers folder"),
            ("Flux", "flux", PIPELINE),
        ),
        folder_variant=folder_variant,
        widths=(("VAE", "decoder.conv_in.weight", 1, 16, FLUX_VAE_KIND),),
    ),
    hub=HubCard(model=HUB_MODEL, variants={SCHNELL: SCHNELL_MODEL}, tags=("flux",), files=FILES),
    problems=PROBLEMS,
    remarks=REMARKS,
)
