"""Wan 2.1 and 2.2, as the page, the options and the file recognition see them."""

from dataclasses import replace
from functools import partial

from sd_scripts.families.cards.clip_facts import ClipFacts
from sd_scripts.families.cards.family_card import FamilyCard, FilesCard, HubCard, PanelCard, PlanCard, RecognitionCard
from sd_scripts.families.cards.flow_defaults import MUSUBI, musubi_page
from sd_scripts.families.cards.graph_counts import ONE_KIND
from sd_scripts.families.cards.layer_patterns import read_rules
from sd_scripts.families.cards.shared_components import (
    CAUSAL_VAE,
    CLIP_VISION,
    CLIP_VISION_MARKS,
    PREFIXES,
    UMT5,
    UMT5_MARKS,
    UMT5_TOKENS,
    UMT5_WIDTHS,
    transformer,
)
from sd_scripts.families.wan.card.checks import PROBLEMS, REMARKS
from sd_scripts.families.wan.card.experts import trains_both
from sd_scripts.families.wan.card.hub_files import FILES
from sd_scripts.families.wan.card.memory_facts import MEMORY, MEMORY_OF_1_3B, tokens
from sd_scripts.families.wan.card.options import RECOMMENDED, WanModelOptions, WanSamplingOptions
from sd_scripts.formats.models.safetensors_header import Header
from sd_scripts.formats.text_limit import TextLimit
from sd_scripts.options.dataset import ControlOptions
from sd_scripts.options.generating.prompt_lines import SamplePrompt
from sd_scripts.options.memory import MemoryOptions
from sd_scripts.options.optimization.flow import FlowOptions

HUB_MODEL = "Wan-AI/Wan2.1-T2V-14B-Diffusers"
OFFICIAL, DIFFUSERS = "blocks.0.self_attn.norm_q.weight", "condition_embedder.time_proj.weight"
"""Keys of a transformer, in official and in diffusers' files."""
TRANSFORMER = transformer("Wan transformer", OFFICIAL, DIFFUSERS)
PATCH = "patch_embedding.weight"
SIZES = {1536: "1.3B", 3072: "5B", 5120: "14B"}
HIGH_NOISE = "high_noise"
FUN_CONTROL = "Fun-Control"
KINDS = {16: "T2V", 36: "I2V", 48: FUN_CONTROL}


def variant_of(kind: str, size: str) -> str:
    return " ".join(filter(None, ("Wan", kind, size)))


MODELS = tuple(variant_of(kind, size) for kind in ("T2V", "I2V") for size in ("14B", ""))
"""Variants that may be one of two models for different noise."""


def recognise(header: Header) -> tuple[str, str] | None:
    """Return (family, variant) of a file with Wan's transformer; None for any other file."""
    shapes = header.shapes
    for prefix in PREFIXES:
        known = prefix + OFFICIAL in shapes or prefix + DIFFUSERS in shapes
        if known and prefix + PATCH in shapes:
            width, channels = (*shapes[prefix + PATCH], 0, 0)[:2]
            return "wan", variant_of(KINDS.get(channels, ""), SIZES.get(width, ""))
    return None


CARD = FamilyCard(
    name="wan",
    title="Wan",
    order=5,
    groups=(WanModelOptions, WanSamplingOptions, FlowOptions, MemoryOptions, ControlOptions),
    capabilities=frozenset(
        {
            *("blockwise_updates", "flow_shift", "end_image", "experts", "fp8", "offload_activations", "own_vae"),
            *("control_clips", "start_image"),
        }
    ),
    clips=ClipFacts(fps=16, controlled=frozenset(variant_of(FUN_CONTROL, size) for size in ("14B", "1.3B", ""))),
    defaults=MUSUBI,
    notes={
        "pretrained_model_name_or_path": f"Wan's ID is {HUB_MODEL}.",
        "vae": "Wan's files have none: choose its VAE, Wan2.1_VAE.pth or wan_2.1_vae.safetensors. Not needed for a "
        "diffusers folder.",
        "discrete_flow_shift": "Wan trains well with 3 and timestep_sampling = shift.",
        "min_timestep": "Wan 2.2 A14B's expert of high noise is trained from 875 to 1000, the one of low noise from "
        "0 to 875; for image to video the boundary is 900.",
        "network_args": "Wan: exclude_patterns and include_patterns, lists of regular expressions: layers that are not "
        "adapted, and exceptions to them.",
        "control_directory": "Wan: control clips of a Fun-Control model, under the names of the clips.",
        "blocks_to_swap": "Wan 14B takes up to 38, and each saves about 0.7 GB of GPU memory.",
    },
    page=musubi_page(
        RECOMMENDED,
        ("t5", "clip", "dit_high_noise", "task"),
        panels=(
            PanelCard(
                group=WanSamplingOptions, names=("sample_solver", "timestep_boundary", "guidance_scale_high_noise")
            ),
        ),
    ),
    files=FilesCard(
        components=(
            TRANSFORMER,
            UMT5,
            replace(CAUSAL_VAE, title="Wan's VAE"),
            CLIP_VISION,
            replace(
                TRANSFORMER,
                name=HIGH_NOISE,
                option="dit_high_noise",
                title="Wan 2.2's model for high noise",
                folder="",
                fitting=MODELS,
                optional=True,
            ),
        ),
        base_file="a Wan file",
        base_model="a Wan transformer",
    ),
    network_modules=("networks.lora", "networks.lora_wan"),
    network_rules=partial(read_rules, title="Wan"),
    bucket_multiple=16,
    text_limit=lambda settings, variant: TextLimit(tokens=UMT5_TOKENS),
    plan=PlanCard(
        tokens=tokens, graphs=ONE_KIND, memory=MEMORY, memory_of_others=(MEMORY_OF_1_3B,), trains_two=trains_both
    ),
    sample_defaults=SamplePrompt(width=832, height=480, frames=81, steps=50, scale=5.0),
    recognition=RecognitionCard(
        hub_words=("wan2", "wan-2"),
        marks=(*UMT5_MARKS, *CLIP_VISION_MARKS),
        recognise=recognise,
        lora_marks=("_cross_attn_o.", ".cross_attn.o.", ".ffn.net.0.proj."),
        pipelines=(("Wan", "wan", "Wan diffusers folder"),),
        widths=UMT5_WIDTHS,
    ),
    hub=HubCard(model=HUB_MODEL, files=FILES),
    problems=PROBLEMS,
    remarks=REMARKS,
)
