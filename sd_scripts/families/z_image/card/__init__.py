"""Z-Image, as the page, the options and the file recognition see it."""

from functools import partial

from sd_scripts.families.cards.family_card import (
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
from sd_scripts.families.cards.layer_patterns import read_rules
from sd_scripts.families.cards.shared_components import FLUX_VAE, PREFIXES, transformer
from sd_scripts.families.z_image.card.checks import DISTILLED, REMARKS
from sd_scripts.families.z_image.card.hub_files import FILES
from sd_scripts.families.z_image.card.memory_facts import MEMORY, image_tokens
from sd_scripts.families.z_image.card.options import RECOMMENDED
from sd_scripts.families.z_image.card.speeds import GRAPHS, SPEEDS
from sd_scripts.formats.models.safetensors_header import Header
from sd_scripts.formats.text_limit import TextLimit
from sd_scripts.options.generating.prompt_lines import SamplePrompt
from sd_scripts.options.memory import MemoryOptions
from sd_scripts.options.model import Qwen3Options
from sd_scripts.options.optimization.flow import FlowOptions

HUB_MODEL, TURBO_MODEL = "Tongyi-MAI/Z-Image", "Tongyi-MAI/Z-Image-Turbo"
LONGEST = 512
"""Tokens of a caption with the text around it; longer ones are truncated."""
FILLING = "cap_pad_token"
"""A key of a transformer of this kind, in every layout."""
INPUTS = ("x_embedder.weight", "all_x_embedder.2-1.weight")
VARIANTS = (
    ("siglip_embedder.", "Z-Image-Omni"),
    ("dec_net.cond_embed.", "Z-Image for pixels"),
    ("quant_state.bitsandbytes", "Z-Image in 4 bits"),
)
"""(substring of a key, variant) of models with such a transformer that cannot be trained as Z-Image."""
ENCODER, ENCODER_4B = "Qwen3 text encoder", "Qwen3-4B text encoder"


def recognise(header: Header) -> tuple[str | None, str] | None:
    """Return (family, variant) of a file with a transformer of this kind; None for any other file. Base, Turbo and
    De-Turbo have the same tensors."""
    if not any(prefix + FILLING in header.shapes for prefix in PREFIXES):
        return None
    other = next((variant for mark, variant in VARIANTS if any(mark in key for key in header.shapes)), "")
    return (None, other) if other else (CARD.name, CARD.title)


CARD = FamilyCard(
    name="z_image",
    title="Z-Image",
    order=4,
    groups=(Qwen3Options, FlowOptions, MemoryOptions),
    capabilities=frozenset(
        {
            *("batches", "blockwise_updates", "flow_shift", "fp8", "offload_activations", "own_vae"),
            *("sample_model", "smaller_at_high_noise"),
        }
    ),
    defaults=MUSUBI,
    notes={
        "pretrained_model_name_or_path": f"Z-Image's IDs are {HUB_MODEL} and {TURBO_MODEL}.",
        "qwen3": "Z-Image reads Qwen3-4B.",
        "vae": "Z-Image's is FLUX.1's autoencoder, such as ae.safetensors. Not needed for a diffusers folder.",
        "timestep_sampling": "For Z-Image shift with discrete_flow_shift = 2 is recommended.",
        "network_args": "Z-Image: exclude_patterns and include_patterns, lists of regular expressions: layers "
        "that are not adapted, and exceptions to them, such as modulations and refiners.",
        "sample_model": "For Z-Image's base model choose Turbo, and samples take 8 steps without guidance.",
        "training_adapter": "Z-Image Turbo is trained with zimage_turbo_training_adapter_v2.safetensors.",
        "blocks_to_swap": "Z-Image takes up to 28, and each saves about 0.4 GB.",
    },
    page=musubi_page(RECOMMENDED, ("qwen3",)),
    files=FilesCard(
        components=(
            transformer(
                "Z-Image transformer", FILLING, first_layer=FirstLayer(keys=INPUTS, channels=64, kind="Z-Image model")
            ),
            ComponentCard(
                name="text_encoder1",
                option="qwen3",
                kind="Qwen3 text encoder",
                title="the Qwen3-4B text encoder",
                folder="text_encoder",
                fitting=(ENCODER_4B, ENCODER),
                prefixes=("model.", "", "text_encoders.qwen3_4b.transformer.model."),
                signature_keys=("layers.0.self_attn.q_norm.weight",),
            ),
            FLUX_VAE,
        ),
        base_file="a Z-Image file",
        base_model="a Z-Image transformer",
    ),
    network_modules=("networks.lora", "networks.lora_zimage"),
    network_rules=partial(read_rules, title="Z-Image", excluded=r".*(_modulation|_refiner).*"),
    text_limit=lambda settings, variant: TextLimit(tokens=LONGEST),
    plan=PlanCard(tokens=image_tokens, graphs=GRAPHS, speeds=SPEEDS, memory=MEMORY),
    sample_defaults=SamplePrompt(width=1024, height=1024, steps=30, scale=5.0),
    distilled=DistilledCard(named=DISTILLED, sample_defaults=SamplePrompt(width=1024, height=1024, steps=8, scale=1.0)),
    recognition=RecognitionCard(
        hub_words=("z-image", "zimage"),
        recognise=recognise,
        lora_marks=("_attention_to_", ".attention.to_", "_attention_qkv", ".attention.qkv", "feed_forward"),
        pipelines=(
            ("ZImageOmni", None, "Z-Image-Omni diffusers folder"),
            ("ZImage", "z_image", "Z-Image diffusers folder"),
        ),
    ),
    hub=HubCard(model=HUB_MODEL, tags=("z-image",), files=FILES),
    no_guidance=0.0,
    remarks=REMARKS,
    aliases={"text_encoder": "qwen3"},
)
