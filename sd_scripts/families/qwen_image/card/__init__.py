"""Qwen-Image, as the page, the options and the file recognition see it."""

from functools import partial

from sd_scripts.families.cards.family_card import (
    ComponentCard,
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
from sd_scripts.families.cards.shared_components import CAUSAL_VAE, CAUSAL_VAE_MARKS, PREFIXES, transformer
from sd_scripts.families.qwen_image.card.checks import PROBLEMS, REMARKS
from sd_scripts.families.qwen_image.card.hub_files import FILES
from sd_scripts.families.qwen_image.card.memory_facts import MEMORY
from sd_scripts.families.qwen_image.card.options import RECOMMENDED, QwenImageModelOptions
from sd_scripts.families.qwen_image.card.timesteps import share_above
from sd_scripts.formats.models.safetensors_header import Header
from sd_scripts.formats.text_limit import TextLimit
from sd_scripts.options.generating.prompt_lines import SamplePrompt
from sd_scripts.options.memory import MemoryOptions
from sd_scripts.options.optimization.flow import FlowOptions

HUB_MODEL = "Qwen/Qwen-Image"
LONGEST = 1024
"""Tokens of caption and suffix; longer captions are truncated."""

TRANSFORMER = "transformer_blocks.0.txt_mlp.net.0.proj.weight"
"""A key of a transformer of this kind."""
ZERO_COND_T = "__index_timestep_zero__"
"""An empty tensor that marks Qwen-Image-Edit-2511 in ComfyUI's files."""
VARIANTS = (
    ("addition_t_embedding", "Qwen-Image-Layered"),
    ("quant_state.bitsandbytes", "Qwen-Image in 4 bits"),
)
"""(substring of a key, variant) of models with such a transformer that cannot be trained as Qwen-Image."""
ENCODERS = ("visual.blocks.0.mlp.gate_proj.weight", "model.visual.blocks.0.mlp.gate_proj.weight")
"""Keys of its vision tower, as ComfyUI's files and transformers name them."""
ENCODER, ENCODER_7B = "Qwen2.5-VL text encoder", "Qwen2.5-VL-7B text encoder"


def recognise(header: Header) -> tuple[str | None, str] | None:
    """Return (family, variant) of a file with a transformer of this kind; None for any other file. The first versions
    of Qwen-Image-Edit have the same tensors as Qwen-Image."""
    if not any(prefix + TRANSFORMER in header.shapes for prefix in PREFIXES):
        return None
    for mark, variant in VARIANTS:
        if any(mark in key for key in header.shapes):
            return None, variant
    return "qwen_image", "Qwen-Image"


CARD = FamilyCard(
    name="qwen_image",
    title="Qwen-Image",
    order=3,
    groups=(QwenImageModelOptions, FlowOptions, MemoryOptions),
    capabilities=frozenset(
        {
            *("batches", "blockwise_updates", "fp8", "offload_activations", "own_vae"),
            *("sample_model", "smaller_at_high_noise"),
        }
    ),
    choices={"timestep_sampling": ("qwen_shift", "logsnr", "qinglong_qwen")},
    defaults=MUSUBI,
    notes={
        "pretrained_model_name_or_path": f"Qwen-Image's ID is {HUB_MODEL}.",
        "vae": "Qwen-Image's files have none: choose its VAE, such as qwen_image_vae.safetensors. Not needed for a "
        "diffusers folder.",
        "timestep_sampling": "qwen_shift shifts as Qwen-Image was trained, more for larger images; logsnr samples "
        "the signal-to-noise ratio with logit_mean and logit_std; qinglong_qwen takes qwen_shift for 95% of images "
        "and hardly any noise for the others.",
        "weighting_scheme": "For Qwen-Image sigma_sqrt and cosmap weight every timestep_sampling.",
        "network_args": "Qwen-Image: exclude_patterns and include_patterns, lists of regular expressions: layers "
        "that are not adapted, and exceptions to them.",
        "blocks_to_swap": "Qwen-Image takes up to 58, and each saves about 0.7 GB of GPU memory.",
        "equal_token_buckets": "All buckets of Qwen-Image then share one graph for each length of captions.",
    },
    page=musubi_page(RECOMMENDED, ("text_encoder",)),
    files=FilesCard(
        components=(
            transformer(
                "Qwen-Image transformer",
                TRANSFORMER,
                first_layer=FirstLayer(keys=("img_in.weight",), channels=64, kind="Qwen-Image model"),
            ),
            ComponentCard(
                name="text_encoder1",
                option="text_encoder",
                kind="Qwen2.5-VL text encoder",
                title="the Qwen2.5-VL-7B text encoder",
                folder="text_encoder",
                fitting=(ENCODER_7B, ENCODER),
                prefixes=("", "text_encoders.qwen25_7b.transformer."),
                signature_keys=ENCODERS,
            ),
            CAUSAL_VAE,
        ),
        base_file="a Qwen-Image file",
        base_model="a Qwen-Image transformer",
    ),
    network_modules=("networks.lora", "networks.lora_qwen_image"),
    network_rules=partial(read_rules, title="Qwen-Image"),
    text_limit=lambda settings, variant: TextLimit(tokens=LONGEST),
    plan=PlanCard(graphs=ONE_KIND, memory=MEMORY, share_above=share_above),
    sample_defaults=SamplePrompt(width=1024, height=1024, steps=30, scale=4.0),
    recognition=RecognitionCard(
        hub_words=("qwen",),
        marks=(*CAUSAL_VAE_MARKS, *((key, None, ENCODER) for key in ENCODERS)),
        recognise=recognise,
        lora_marks=("img_mlp_net_", "img_mlp.net.", "attn_add_q_proj", "attn.add_q_proj", "img_mod_1", "img_mod.1"),
        pipelines=(
            ("QwenImageLayered", None, "Qwen-Image-Layered diffusers folder"),
            ("QwenImage", "qwen_image", "Qwen-Image diffusers folder"),
        ),
        widths=((ENCODER, "layers.0.self_attn.q_proj.weight", 1, 3584, ENCODER_7B),),
    ),
    hub=HubCard(model=HUB_MODEL, files=FILES),
    problems=PROBLEMS,
    remarks=REMARKS,
)
