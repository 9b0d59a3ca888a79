"""FLUX.2 klein, as the page, the options and the file recognition see it."""

import re
from functools import partial

from sd_scripts.families.cards.family_card import (
    VAE,
    ComponentCard,
    DistilledCard,
    FamilyCard,
    FilesCard,
    FirstLayer,
    HubCard,
    PlanCard,
    RecognitionCard,
)
from sd_scripts.families.cards.flow_defaults import MUSUBI, musubi_page
from sd_scripts.families.cards.graph_counts import DOUBLE_AND_SINGLE
from sd_scripts.families.cards.layer_patterns import read_rules
from sd_scripts.families.cards.shared_components import PREFIXES, transformer
from sd_scripts.families.flux2.card.hub_files import FILES
from sd_scripts.families.flux2.card.memory_facts import KLEIN_4B, KLEIN_9B, memory_named
from sd_scripts.families.flux2.card.options import RECOMMENDED, Flux2ModelOptions
from sd_scripts.formats.models.safetensors_header import Header
from sd_scripts.formats.text_limit import TextLimit
from sd_scripts.options.dataset import ControlOptions
from sd_scripts.options.generating.prompt_lines import SamplePrompt
from sd_scripts.options.memory import MemoryOptions
from sd_scripts.options.model import Qwen3Options
from sd_scripts.options.optimization.flow import FlowOptions

HUB_MODEL = "black-forest-labs/FLUX.2-klein-base-4B"
LONGEST = 512
"""Tokens of a caption with the text around it; longer ones are truncated, shorter ones padded."""
TRANSFORMERS = ("double_stream_modulation_img.lin.weight", "double_stream_modulation_img.linear.weight")
"""Keys of a transformer of this kind, in the original layout and in diffusers'."""
INPUTS = ("img_in.weight", "x_embedder.weight")
SIZES = {3072: "FLUX.2 klein 4B", 4096: "FLUX.2 klein 9B"}
"""Width -> variant; base and distilled models have the same tensors."""
QWEN3 = "layers.0.self_attn.q_norm.weight"
ENCODER, ENCODER_4B, ENCODER_8B = "Qwen3 text encoder", "Qwen3-4B text encoder", "Qwen3-8B text encoder"
AUTOENCODER = "FLUX.2 autoencoder"


def recognise(header: Header) -> tuple[str | None, str] | None:
    """Return (family, variant) of a file with a transformer of this kind; None for any other file."""
    prefix = next((p for p in PREFIXES if any(p + key in header.shapes for key in TRANSFORMERS)), None)
    if prefix is None:
        return None
    if any("guidance_in." in key or "guidance_embedder." in key for key in header.shapes):
        return None, "FLUX.2 dev"
    if any("quant_state.bitsandbytes" in key for key in header.shapes):
        return None, "FLUX.2 in 4 bits"
    width = next((header.shapes[prefix + key][0] for key in INPUTS if prefix + key in header.shapes), 0)
    return CARD.name, SIZES.get(width, CARD.title)


CARD = FamilyCard(
    name="flux2",
    title="FLUX.2 klein",
    order=2,
    groups=(Qwen3Options, Flux2ModelOptions, FlowOptions, MemoryOptions, ControlOptions),
    capabilities=frozenset(
        {
            *("batches", "blockwise_updates", "control_images", "fp8", "offload_activations", "own_vae"),
            *("sample_model", "smaller_at_high_noise"),
        }
    ),
    needs_controls=False,
    choices={"timestep_sampling": ("flux2_shift",)},
    defaults=MUSUBI,
    notes={
        "sample_model": "For a base model of FLUX.2 klein choose the distilled one, and samples take 4 steps without "
        "guidance.",
        "pretrained_model_name_or_path": f"FLUX.2 klein's IDs are {HUB_MODEL} and its 9B counterpart.",
        "qwen3": "FLUX.2 klein 4B reads Qwen3-4B, klein 9B Qwen3-8B.",
        "vae": "FLUX.2's autoencoder, such as flux2-vae.safetensors. Not needed for a diffusers folder.",
        "timestep_sampling": "flux2_shift samples more noise for larger images.",
        "network_args": "FLUX.2 klein: exclude_patterns and include_patterns, lists of regular expressions: layers "
        "that are not adapted, and exceptions to them.",
        "blocks_to_swap": "FLUX.2 klein takes up to 11 with 4B and 16 with 9B.",
    },
    page=musubi_page(RECOMMENDED, ("qwen3", "flux2_version")),
    files=FilesCard(
        components=(
            transformer(
                "FLUX.2 transformer",
                *TRANSFORMERS,
                first_layer=FirstLayer(keys=INPUTS, channels=128, kind="FLUX.2 model"),
            ),
            ComponentCard(
                name="text_encoder1",
                option="qwen3",
                kind="Qwen3 text encoder",
                title="the Qwen3 text encoder",
                folder="text_encoder",
                fitting=(ENCODER_4B, ENCODER_8B, ENCODER),
                prefixes=("model.", "", "text_encoders.qwen3_4b.transformer.model."),
                signature_keys=(QWEN3,),
            ),
            ComponentCard(
                name=VAE,
                option="vae",
                kind="autoencoder",
                title="FLUX.2's autoencoder",
                folder="vae",
                fitting=(AUTOENCODER,),
                prefixes=("", "vae."),
                signature_keys=("bn.running_mean",),
            ),
        ),
        base_file="a FLUX.2 klein file",
        base_model="a FLUX.2 klein transformer",
    ),
    network_modules=("networks.lora", "networks.lora_flux_2"),
    network_rules=partial(read_rules, title="FLUX.2 klein"),
    text_limit=lambda settings, variant: TextLimit(tokens=LONGEST),
    plan=PlanCard(graphs=DOUBLE_AND_SINGLE, memory=KLEIN_9B, memory_of_others=(KLEIN_4B,), memory_named=memory_named),
    sample_defaults=SamplePrompt(width=1024, height=1024, steps=50, scale=4.0),
    distilled=DistilledCard(
        named=re.compile("^(?!.*base).*klein", re.IGNORECASE),
        sample_defaults=SamplePrompt(width=1024, height=1024, steps=4, scale=1.0),
    ),
    recognition=RecognitionCard(
        hub_words=("flux.2-klein",),
        marks=tuple((prefix + QWEN3, None, ENCODER) for prefix in ("model.", "")),
        recognise=recognise,
        lora_marks=("single_stream_modulation", "attn.to_qkv_mlp_proj"),
        pipelines=(("Flux2Klein", "flux2", "FLUX.2 klein diffusers folder"),),
        widths=(
            (ENCODER, "embed_tokens.weight", 1, 2560, ENCODER_4B),
            (ENCODER, "embed_tokens.weight", 1, 4096, ENCODER_8B),
            ("VAE", "decoder.conv_in.weight", 1, 32, AUTOENCODER),
        ),
    ),
    hub=HubCard(model=HUB_MODEL, tags=("flux2",), files=FILES),
    aliases={"text_encoder": "qwen3", "model_version": "flux2_version"},
)
