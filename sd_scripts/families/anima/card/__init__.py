"""Anima, as the page, the options and the file recognition see it."""

from sd_scripts.families.anima.card.checks import PROBLEMS
from sd_scripts.families.anima.card.hub_files import FILES
from sd_scripts.families.anima.card.kohya import KOHYA
from sd_scripts.families.anima.card.memory_facts import MEMORY
from sd_scripts.families.anima.card.options import DEFAULTS, LONGEST, AnimaModelOptions
from sd_scripts.families.anima.card.speeds import SPEEDS
from sd_scripts.families.cards.family_card import (
    ComponentCard,
    FamilyCard,
    FilesCard,
    FirstLayer,
    HubCard,
    PageCard,
    PlanCard,
    RecognitionCard,
)
from sd_scripts.families.cards.graph_counts import ONE_KIND
from sd_scripts.families.cards.layer_patterns import read_rules
from sd_scripts.families.cards.shared_components import CAUSAL_VAE, CAUSAL_VAE_MARKS, transformer
from sd_scripts.formats.models.safetensors_header import Header
from sd_scripts.formats.text_limit import TextLimit
from sd_scripts.options.generating.prompt_lines import SamplePrompt
from sd_scripts.options.memory import MemoryOptions
from sd_scripts.options.model import Qwen3Options
from sd_scripts.options.networks.layer_rules import Rules, Warn
from sd_scripts.options.networks.network_args import NetworkArguments
from sd_scripts.options.optimization.flow import FlowOptions

HUB_MODEL = "circlestone-labs/Anima-Base-v1.0-Diffusers"
ADAPTER, ADAPTER_FILE = "llm_adapter", "Anima LLM adapter"
PREFIXES = ("net.", "", "model.diffusion_model.", "diffusion_model.")
TRANSFORMERS = ("blocks.0.adaln_modulation_cross_attn.1.weight", "transformer_blocks.0.norm2.linear_1.weight")
"""Keys of a transformer of this kind, in the original layout and in diffusers'."""
IN_FILE, IN_FOLDER = "llm_adapter.blocks.0.cross_attn.q_proj.weight", "blocks.0.norm_cross_attn.weight"
"""Keys of the adapter in the transformer's file, and in a file of its own."""
QWEN3 = "layers.0.self_attn.q_norm.weight"
ENCODER, ENCODER_06B = "Qwen3 text encoder", "Qwen3-0.6B text encoder"
MODULATIONS, OF_ADAPTER = r".*adaln_modulation.*", r"llm_adapter\..*"
"""Layers that a LoRA adapts only if patterns include them, or if train_llm_adapter is on."""


def layer_rules(arguments: NetworkArguments, warn: Warn) -> Rules:
    excluded = MODULATIONS if arguments.flag("train_llm_adapter") else f"{MODULATIONS}|{OF_ADAPTER}"
    return read_rules(arguments, warn, title="Anima", excluded=excluded)


def recognise(header: Header) -> tuple[str | None, str] | None:
    """Return (family, variant) of a file with a transformer of this kind; None for any other file. Without the adapter
    it may be a diffusers folder's part, or Cosmos-Predict2, which has the same tensors."""
    prefix = next((p for p in PREFIXES if any(p + key in header.shapes for key in TRANSFORMERS)), None)
    if prefix is None:
        return None
    return CARD.name, CARD.title if prefix + IN_FILE in header.shapes else "Anima or Cosmos-Predict2 transformer alone"


CARD = FamilyCard(
    name="anima",
    title="Anima",
    order=3,
    groups=(Qwen3Options, AnimaModelOptions, FlowOptions, MemoryOptions),
    capabilities=frozenset(
        {
            *("batches", "block_rates", "blockwise_updates", "flow_shift", "fp8", "offload_activations", "own_vae"),
            "smaller_at_high_noise",
        }
    ),
    defaults=DEFAULTS,
    notes={
        "qwen3": "Anima reads Qwen3-0.6B base, such as qwen_3_06b_base.safetensors.",
        "vae": "Anima's files and folders have none: choose Qwen-Image's VAE, such as qwen_image_vae.safetensors.",
        "network_args": "Anima: exclude_patterns and include_patterns, lists of regular expressions: layers that are "
        "not adapted, and exceptions to them, such as modulations; network_reg_dims and network_reg_lrs, regular "
        "expressions with a rank or a learning rate; train_llm_adapter=True adapts the LLM adapter too.",
        "blocks_to_swap": "Anima takes up to 26.",
        "block_lr": "Anima has 6: self-attention, cross-attention, MLPs, modulations, LLM adapter, everything else.",
    },
    page=PageCard(
        recommended={"timestep_sampling": DEFAULTS["timestep_sampling"]},
        recommended_note="It is sd-scripts' default for Anima.",
        model_panel=("qwen3", "llm_adapter_path"),
        use_hints={"full": "Your model. To use it, put it into <b>models/diffusion_models</b> (ComfyUI)."},
        kohya=KOHYA,
    ),
    files=FilesCard(
        components=(
            transformer(
                "Anima transformer",
                *TRANSFORMERS,
                prefixes=PREFIXES,
                first_layer=FirstLayer(
                    keys=("x_embedder.proj.1.weight", "patch_embed.proj.weight"), channels=68, kind="Anima model"
                ),
            ),
            ComponentCard(
                name="text_encoder1",
                option="qwen3",
                kind="Qwen3 text encoder",
                title="the Qwen3-0.6B text encoder",
                folder="text_encoder",
                fitting=(ENCODER_06B, ENCODER),
                prefixes=("model.", "", "text_encoders.qwen3_06b.transformer.model."),
                signature_keys=(QWEN3,),
            ),
            CAUSAL_VAE,
            ComponentCard(
                name=ADAPTER,
                option="llm_adapter_path",
                kind="LLM adapter",
                title="Anima's LLM adapter",
                folder="text_conditioner",
                fitting=(ADAPTER_FILE,),
                prefixes=("", *(f"{prefix}llm_adapter." for prefix in PREFIXES)),
                signature_keys=(IN_FOLDER,),
                optional=True,
            ),
        ),
        base_file="an Anima file",
        base_model="an Anima transformer",
    ),
    network_modules=("networks.lora", "networks.lora_anima"),
    network_rules=layer_rules,
    text_limit=lambda settings, variant: TextLimit(tokens=LONGEST),
    plan=PlanCard(graphs=ONE_KIND, speeds=SPEEDS, memory=MEMORY),
    sample_defaults=SamplePrompt(width=1024, height=1024, steps=30, scale=4.0),
    recognition=RecognitionCard(
        hub_words=("anima",),
        marks=(
            *((prefix + QWEN3, None, ENCODER) for prefix in ("model.", "")),
            *CAUSAL_VAE_MARKS,
            (IN_FOLDER, None, ADAPTER_FILE),
        ),
        recognise=recognise,
        lora_marks=("cross_attn_q_proj", "cross_attn.q_proj", "mlp_layer1", "mlp.layer1"),
        pipelines=(("Anima", "anima", "Anima diffusers folder"),),
        widths=((ENCODER, "embed_tokens.weight", 1, 1024, ENCODER_06B),),
    ),
    hub=HubCard(model=HUB_MODEL, tags=("anima",), files=FILES),
    problems=PROBLEMS,
    aliases={
        "text_encoder": "qwen3",
        "unsloth_offload_checkpointing": "cpu_offload_checkpointing",
        **{f"{part}_lr": "block_lr" for part in ("self_attn", "cross_attn", "mlp", "mod", "llm_adapter")},
    },
)
