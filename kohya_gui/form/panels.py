"""The panels of the training tabs, and a tab made of them."""

from collections.abc import Mapping
from typing import Any

from kohya_gui.form import recognise
from kohya_gui.form.controls import Advice, Panel
from kohya_gui.form.presets import BASE_MODEL
from kohya_gui.form.prompt_editor import PromptEditor
from kohya_gui.form.training import Training
from kohya_gui.tabs import TABS
from sd_scripts.families.cards.family_card import FamilyCard
from sd_scripts.families.cards.registry import cards
from sd_scripts.options.clips import ClipOptions
from sd_scripts.options.dataset import CacheOptions, ControlOptions
from sd_scripts.options.full import FullOptions, FusedOptions, ModelFileOptions
from sd_scripts.options.generating.sampling import SampleOptions
from sd_scripts.options.memory import MemoryOptions
from sd_scripts.options.metadata import MetadataOptions
from sd_scripts.options.networks.embedding import EmbeddingFileOptions, EmbeddingOptions
from sd_scripts.options.networks.network import NetworkOptions
from sd_scripts.options.optimization.flow import FlowOptions
from sd_scripts.options.saving import EmaOptions, LoraFileOptions, SavingOptions
from sd_scripts.options.spec import ALL_METHODS


def _advice(card: FamilyCard) -> Advice:
    """Return the advice to use the recommended values of a family."""
    values = ", ".join(f"`{name} = {value}`" for name, value in card.page.recommended.items())
    return Advice(
        family=card.name,
        about=(BASE_MODEL, *card.page.recommended),
        good=lambda shown: _recommended(card, shown.get(BASE_MODEL) or ""),
        text=f"**Recommended for {card.title}:** {values}. {card.page.recommended_note}",
        button="Apply",
    )


def _recommended(card: FamilyCard, base_model: str) -> Mapping[str, Any]:
    if not card.page.recommend:
        return card.page.recommended
    return card.page.recommend(recognise.model(base_model, card.name).text)


MODEL = Panel(
    "Model",
    (
        BASE_MODEL,
        *(name for card in cards() for name in card.page.model_panel),
        *("vae", "max_token_length", "clip_skip", "no_half_vae", "v_parameterization"),
    ),
    rest=tuple(group for card in cards() if card.page.model_panel for group in card.groups[:1]),
    open=True,
)
SAVING = Panel(
    "Saving",
    ("output_dir", "output_name"),
    rest=(ModelFileOptions, SavingOptions, LoraFileOptions, EmbeddingFileOptions),
    open=True,
)
NETWORK = Panel(
    "Network",
    (
        *("network_type", "network_dim", "network_alpha"),
        *("conv_dim", "conv_alpha", "factor", "full_matrix", "decompose_both", "dora_wd", "wd_on_output", "use_tucker"),
        *("constraint", "rescaled"),
        *("network_train_unet_only", "network_train_text_encoder_only", "network_args"),
    ),
    rest=(NetworkOptions,),
    open=True,
)
TOKEN = (
    *("token_string", "init_word", "num_vectors_per_token", "embedding_lr"),
    *("use_object_template", "use_style_template", "weights"),
)
EMBEDDING = Panel(EmbeddingOptions.title, TOKEN, open=True)
PIVOTAL = Panel("Pivotal tuning", TOKEN)
FULL = Panel(FullOptions.title, ("train_text_encoder", "learning_rate_te1", "learning_rate_te2", "block_lr"), open=True)
BASIC = Panel(
    "Basic",
    (
        *("max_train_steps", "max_train_epochs", "train_batch_size"),
        *("resolution", "caption_extension", "enable_bucket"),
        *("learning_rate", "unet_lr", "text_encoder_lr"),
        *("optimizer_type", "lr_scheduler", "lr_warmup_steps"),
        *("mixed_precision", "seed", "gradient_accumulation_steps"),
        *("cache_latents", "cache_text_encoder_outputs", "shuffle_caption"),
    ),
    rest=(CacheOptions,),
    open=True,
)
TIMESTEPS = Panel(
    FlowOptions.title,
    (
        *("timestep_sampling", "discrete_flow_shift", "model_prediction_type"),
        *("guidance_scale", "sigmoid_scale", "weighting_scheme"),
    ),
    rest=(FlowOptions,),
    advice=tuple(_advice(card) for card in cards() if card.page.recommended),
    open=True,
)
MEMORY = Panel(
    "Memory",
    (
        *("gradient_checkpointing", "cpu_offload_checkpointing", "blocks_to_swap"),
        *("quantize_base", "quantize_text_encoders", "fp8_base", "fp8_base_unet", "fp8_compute", "lowram"),
    ),
    rest=(MemoryOptions,),
    open=True,
)
MEMORY_OF_FULL = Panel(
    MEMORY.title,
    (
        *("gradient_checkpointing", "full_bf16", "fused_backward_pass"),
        *("fused_optimizer_groups", "blockwise_fused_optimizers"),
        *("blocks_to_swap", "cpu_offload_checkpointing", "lowram"),
    ),
    rest=(FusedOptions, MemoryOptions),
    open=True,
)
OF_FAMILIES = tuple(
    Panel(panel.group.title, panel.names, rest=(panel.group,))
    for panel in sorted(
        (panel for card in cards() for panel in card.page.panels),
        key=lambda panel: panel.group.methods == ALL_METHODS,
    )
)
"""Options that only one family has; options of a single method first."""
CONTROLS = Panel(ControlOptions.title, rest=(ControlOptions,), open=True)
CLIPS = Panel(ClipOptions.title, rest=(ClipOptions,), open=True)
EMA = Panel(EmaOptions.title, rest=(EmaOptions,))
SAMPLES = Panel("Samples", rest=(SampleOptions,), tool=PromptEditor, tool_inside=True, late=True)
METADATA = Panel("Metadata", rest=(MetadataOptions,), late=True)


OF_METHOD: Mapping[str, tuple[Panel, Panel, tuple[Panel, ...]]] = {
    "lora": (NETWORK, MEMORY, (PIVOTAL,)),
    "full": (FULL, MEMORY_OF_FULL, ()),
    "textual_inversion": (EMBEDDING, MEMORY, ()),
}
"""Method -> the panel of the trained parts, the panel about memory, and further ones."""


def training(tab: str, data: Panel) -> Training:
    """Return a training tab with this dataset panel."""
    first, memory, last = OF_METHOD[TABS[tab].method]
    basic = (MODEL, SAVING, data, CLIPS, CONTROLS, first, BASIC, TIMESTEPS, memory)
    panels = (*basic, *last, *OF_FAMILIES, EMA, SAMPLES, METADATA)
    return Training(tab=TABS[tab], panels=panels)
