"""Chroma, as the page, the options and the file recognition see it: FLUX.1 without CLIP and without guidance."""

from dataclasses import replace

from sd_scripts.families.cards.shared_components import PREFIXES
from sd_scripts.families.chroma.card.checks import PROBLEMS, REMARKS
from sd_scripts.families.chroma.card.hub_files import FILES
from sd_scripts.families.chroma.card.memory_facts import MEMORY
from sd_scripts.families.chroma.card.options import RECOMMENDED
from sd_scripts.families.chroma.card.speeds import SPEEDS
from sd_scripts.families.flux.card import CARD as FLUX
from sd_scripts.families.flux.card import limit_of
from sd_scripts.families.flux.card.options import FluxModelOptions
from sd_scripts.formats.models.safetensors_header import Header
from sd_scripts.options.generating.prompt_lines import SamplePrompt

HUB_MODEL = "lodestones/Chroma1-HD"
ARCHITECTURE = "chroma"
"""modelspec.architecture, as in sd-scripts."""
T5_LENGTH = 512
"""Tokens that T5 reads."""

APPROXIMATOR = "distilled_guidance_layer.in_proj.weight"
"""A key of a transformer of this kind, in every layout."""
VARIANTS = (("nerf_blocks.", "Chroma1-Radiance"), ("quant_state.bitsandbytes", "Chroma in 4 bits"))
"""(substring of a key, variant) of models with such a transformer that cannot be trained as Chroma."""


def recognise(header: Header) -> tuple[str | None, str] | None:
    """Return (family, variant) of a file with an approximator; None for any other file."""
    if not any(prefix + APPROXIMATOR in header.shapes for prefix in PREFIXES):
        return None
    other = next((variant for mark, variant in VARIANTS if any(mark in key for key in header.shapes)), "")
    return (None, other) if other else (CARD.name, CARD.title)


DENOISER, _, T5, VAE = FLUX.files.components

CARD = replace(
    FLUX,
    name="chroma",
    title="Chroma",
    derived_from=FLUX.name,
    selected_by=("model_type", "chroma"),
    order=2,
    capabilities=FLUX.capabilities - {"guidance", "pooled_captions"},
    notes={
        "pretrained_model_name_or_path": f"Chroma's ID is {HUB_MODEL}.",
        "t5xxl_max_token_length": "Chroma's default is 512, and only captions of that length make it slower.",
        "timestep_sampling": "For Chroma sigmoid is recommended.",
        "cache_text_encoder_outputs": "Chroma's T5 cannot be trained then.",
        "blocks_to_swap": "Chroma takes up to 35, and each saves about 0.4 GB.",
        "equal_token_buckets": "All buckets of Chroma then share one set of graphs for each length of captions.",
        "fp8_base": "Of Chroma's components it is T5, too.",
        "quantize_text_encoders": "Of Chroma's it is T5.",
    },
    page=replace(
        FLUX.page,
        recommended=RECOMMENDED,
        recommended_note="The sd-scripts defaults do not match what Chroma predicts.",
        recommend=None,
        model_panel=(),
        panels=(),
        demo={"t5xxl_max_token_length": 64, **RECOMMENDED},
        kohya=None,
    ),
    files=replace(
        FLUX.files,
        components=(
            replace(DENOISER, kind="Chroma transformer", signature_keys=(APPROXIMATOR,)),
            replace(T5, name="text_encoder1", folder="text_encoder"),
            VAE,
        ),
        base_file="a Chroma file",
        base_model="a Chroma transformer",
    ),
    text_limit=lambda settings, variant: limit_of(settings[FluxModelOptions].t5xxl_max_token_length or T5_LENGTH),
    model_remarks=lambda settings, variant: (),
    plan=replace(FLUX.plan, speeds=SPEEDS, memory=MEMORY),
    sample_defaults=SamplePrompt(steps=30, scale=4.0),
    recognition=replace(
        FLUX.recognition,
        hub_words=("chroma",),
        recognise=recognise,
        lora_marks=("distilled_guidance_layer",),
        lora_encoder_marks=(),
        pipelines=(("Chroma", "chroma", "Chroma diffusers folder"),),
        folder_variant=lambda folder, variant: variant,
        widths=(),
    ),
    hub=replace(FLUX.hub, model=HUB_MODEL, variants={}, tags=("chroma",), files=FILES),
    problems=PROBLEMS,
    remarks=REMARKS,
)
