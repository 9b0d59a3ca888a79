"""FLUX.1 Kontext, as the page, the options and the file recognition see it: FLUX.1 dev with control images."""

from dataclasses import replace

from sd_scripts.families.cards.flow_defaults import MUSUBI_GUIDED
from sd_scripts.families.flux.card import CARD as FLUX
from sd_scripts.families.flux.card import TRANSFORMERS
from sd_scripts.families.flux.card.options import RECOMMENDED
from sd_scripts.families.flux_kontext.card.hub_files import FILES
from sd_scripts.formats.models.safetensors_header import Header
from sd_scripts.options.dataset import ControlOptions

HUB_MODEL = "black-forest-labs/FLUX.1-Kontext-dev"

ARCHITECTURE = "flux-1-kontext-dev"
"""modelspec.architecture of files saved here."""


def recognise(header: Header) -> tuple[str, str] | None:
    """Return (family, variant) of a transformer whose metadata identify it: its keys and shapes equal FLUX.1 dev's."""
    architecture = header.metadata.get("modelspec.architecture", "").lower()
    if "kontext" in architecture and any(key in header.shapes for key in TRANSFORMERS):
        return CARD.name, CARD.title
    return None


CARD = replace(
    FLUX,
    name="flux_kontext",
    title="FLUX.1 Kontext",
    derived_from=FLUX.name,
    order=1,
    groups=(*FLUX.groups, ControlOptions),
    capabilities=FLUX.capabilities | {"control_images"},
    defaults=MUSUBI_GUIDED,
    notes={"pretrained_model_name_or_path": f"FLUX.1 Kontext's ID is {HUB_MODEL}."},
    page=replace(
        FLUX.page,
        recommended=RECOMMENDED,
        recommended_note="The sd-scripts defaults do not match what FLUX.1 predicts.",
        recommend=None,
        model_panel=(),
        panels=(),
        kohya=None,
    ),
    files=replace(FLUX.files, base_file="a FLUX.1 Kontext file", base_model="a FLUX.1 Kontext transformer"),
    plan=replace(FLUX.plan, speeds=()),
    sample_defaults=replace(FLUX.sample_defaults, guidance=2.5),
    recognition=replace(
        FLUX.recognition,
        hub_words=("kontext",),
        recognise=recognise,
        lora_marks=(),
        lora_encoder_marks=(),
        pipelines=(("FluxKontext", "flux_kontext", "FLUX.1 Kontext diffusers folder"),),
        folder_variant=lambda folder, variant: variant,
        widths=(),
    ),
    hub=replace(FLUX.hub, model=HUB_MODEL, files=FILES),
    aliases={
        "vae": "ae",
        "text_encoder1": "t5xxl",
        "text_encoder2": "clip_l",
    },
)
