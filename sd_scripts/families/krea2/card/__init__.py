"""Krea 2, as the page, the options and the file recognition see it."""

import re
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
from sd_scripts.families.cards.graph_counts import ONE_KIND
from sd_scripts.families.cards.layer_patterns import read_rules
from sd_scripts.families.cards.shared_components import CAUSAL_VAE, PREFIXES, transformer
from sd_scripts.families.krea2.card.hub_files import FILES
from sd_scripts.families.krea2.card.memory_facts import MEMORY
from sd_scripts.families.krea2.card.options import RECOMMENDED, Krea2ModelOptions
from sd_scripts.families.krea2.card.speeds import SPEEDS
from sd_scripts.families.krea2.card.timesteps import share_above
from sd_scripts.formats.models.safetensors_header import Header
from sd_scripts.formats.text_limit import TextLimit
from sd_scripts.options.generating.prompt_lines import SamplePrompt
from sd_scripts.options.memory import MemoryOptions
from sd_scripts.options.optimization.flow import FlowOptions

HUB_MODEL = "krea/Krea-2-Raw"
LONGEST = 512
"""Tokens of caption and suffix; longer captions are truncated."""
TRANSFORMERS = ("txtfusion.projector.weight", "text_fusion.projector.weight")
"""Keys of a transformer of this kind, in the original layout and in diffusers'."""
INPUTS = ("first.weight", "img_in.weight")
QWEN3_VL = "visual.deepstack_merger_list.0.norm.weight"
"""A key of its vision tower: its language model has the keys of a Qwen3."""
ENCODERS = (QWEN3_VL, f"model.{QWEN3_VL}")
ENCODER, ENCODER_4B = "Qwen3-VL text encoder", "Qwen3-VL-4B text encoder"


def recognise(header: Header) -> tuple[str | None, str] | None:
    """Return (family, variant) of a file with a transformer or a text encoder of this kind; None for any other file.
    Raw and Turbo have the same tensors, and the language model of a Qwen3-VL has the keys of a Qwen3."""
    if any(key in header.shapes for key in ENCODERS):
        tables = (shape for key, shape in header.shapes.items() if key.endswith("embed_tokens.weight"))
        return None, ENCODER_4B if any(shape[1:] == (2560,) for shape in tables) else ENCODER
    if not any(prefix + key in header.shapes for prefix in PREFIXES for key in TRANSFORMERS):
        return None
    if any("quant_state.bitsandbytes" in key for key in header.shapes):
        return None, "Krea 2 in 4 bits"
    return CARD.name, CARD.title


CARD = FamilyCard(
    name="krea2",
    title="Krea 2",
    order=3,
    groups=(Krea2ModelOptions, FlowOptions, MemoryOptions),
    capabilities=frozenset(
        {
            *("batches", "blockwise_updates", "flow_shift", "fp8", "offload_activations", "own_vae"),
            *("sample_model", "smaller_at_high_noise"),
        }
    ),
    choices={"timestep_sampling": ("krea2_shift",)},
    defaults=MUSUBI,
    notes={
        "pretrained_model_name_or_path": f"Krea 2's ID is {HUB_MODEL}. Train Raw, from which Turbo was distilled.",
        "vae": "Krea 2's files have none: choose Qwen-Image's VAE, such as qwen_image_vae.safetensors. Not needed for "
        "a diffusers folder.",
        "timestep_sampling": "krea2_shift samples more noise for larger images, as Krea 2 was trained.",
        "sample_model": "For Krea 2 Raw choose Turbo, and samples take 8 steps without guidance.",
        "shift": "For Krea 2 Turbo set 3.16 at every size.",
        "network_args": "Krea 2: exclude_patterns and include_patterns, lists of regular expressions: layers that are "
        "not adapted, and exceptions to them.",
        "blocks_to_swap": "Krea 2 takes up to 26, and each saves about 0.9 GB of GPU memory.",
        "equal_token_buckets": "All buckets of Krea 2 then share one graph for each length of captions.",
    },
    page=musubi_page(RECOMMENDED, ("qwen3_vl",)),
    files=FilesCard(
        components=(
            transformer(
                "Krea 2 transformer",
                *TRANSFORMERS,
                first_layer=FirstLayer(keys=INPUTS, channels=64, kind="Krea 2 model"),
            ),
            ComponentCard(
                name="text_encoder1",
                option="qwen3_vl",
                kind="Qwen3-VL text encoder",
                title="the Qwen3-VL-4B text encoder",
                folder="text_encoder",
                fitting=(ENCODER_4B, ENCODER),
                prefixes=("", "text_encoders.qwen3vl_4b.transformer."),
                signature_keys=ENCODERS,
            ),
            CAUSAL_VAE,
        ),
        base_file="a Krea 2 file",
        base_model="a Krea 2 transformer",
    ),
    network_modules=("networks.lora", "networks.lora_krea2"),
    network_rules=partial(read_rules, title="Krea 2"),
    text_limit=lambda settings, variant: TextLimit(tokens=LONGEST),
    plan=PlanCard(graphs=ONE_KIND, speeds=SPEEDS, memory=MEMORY, share_above=share_above),
    sample_defaults=SamplePrompt(width=1024, height=1024, steps=28, scale=5.5),
    distilled=DistilledCard(
        named=re.compile("turbo", re.IGNORECASE),
        sample_defaults=SamplePrompt(width=1024, height=1024, steps=8, scale=1.0, flow_shift=3.16),
    ),
    recognition=RecognitionCard(
        hub_words=("krea-2", "krea2"),
        recognise=recognise,
        lora_marks=("attn_wq", "attn.wq", "txtfusion", "text_fusion", "attn.to_gate."),
        pipelines=(("Krea2", "krea2", "Krea 2 diffusers folder"),),
    ),
    hub=HubCard(model=HUB_MODEL, tags=("krea-2",), files=FILES),
    aliases={"text_encoder": "qwen3_vl"},
)
