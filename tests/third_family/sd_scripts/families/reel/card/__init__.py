"""Reel, a family of short clips that exists in tests only."""

from sd_scripts.families.reel.card.options import ReelOptions

from sd_scripts.families.cards.clip_facts import ClipFacts
from sd_scripts.families.cards.family_card import (
    ComponentCard,
    FamilyCard,
    FilesCard,
    PageCard,
    PanelCard,
    RecognitionCard,
)
from sd_scripts.options.optimization.flow import FlowOptions

CARD = FamilyCard(
    name="reel",
    title="Reel",
    order=9,
    side_multiple=8,
    groups=(FlowOptions, ReelOptions),
    capabilities=frozenset({"prediction_types", "trains_text"}),
    clips=ClipFacts(fps=8, frame_step=2, bucket_steps=32),
    notes={"discrete_flow_shift": "Reel was trained with 1."},
    page=PageCard(
        recommended={"model_prediction_type": "raw"},
        panels=(PanelCard(group=ReelOptions, names=("reel_text_scale",)),),
        use_hints={"full": "Your Reel model."},
        demo={"model_prediction_type": "raw"},
    ),
    files=FilesCard(
        components=tuple(
            ComponentCard(name=name, kind="Reel model", prefixes=(f"{name}.",), signature_keys=keys)
            for name, keys in {
                "denoiser": ("into.weight",),
                "vae": ("encoder.weight",),
                "text_encoder1": ("table.weight",),
            }.items()
        ),
    ),
    recognition=RecognitionCard(
        hub_words=("reel",),
        marks=(("denoiser.into.weight", "reel", "Reel checkpoint"),),
    ),
)
