"""Wan 2.2 TI2V 5B, as the page, the options and the file recognition see it: Wan with a VAE of its own."""

from dataclasses import replace

from sd_scripts.families.cards.clip_facts import ClipFacts, latent_frames
from sd_scripts.families.cards.family_card import VAE, PanelCard
from sd_scripts.families.cards.flow_defaults import MUSUBI
from sd_scripts.families.cards.shared_components import CAUSAL_VAE_KEYS, CAUSAL_VAE_KIND, PREFIXES
from sd_scripts.families.wan.card import CARD as WAN
from sd_scripts.families.wan.card import DIFFUSERS, OFFICIAL, PATCH
from sd_scripts.families.wan.card.memory_facts import memory_of
from sd_scripts.families.wan_5b.card.hub_files import FILES
from sd_scripts.families.wan_5b.card.options import Wan5BOptions
from sd_scripts.formats.models.safetensors_header import Header
from sd_scripts.options.dataset import ControlOptions
from sd_scripts.options.generating.prompt_lines import SamplePrompt

HUB_MODEL = "Wan-AI/Wan2.2-TI2V-5B-Diffusers"
CHANNELS = 48
IMAGE_PARTS = ("img_emb.", "condition_embedder.image_embedder.")
"""Keys of Fun-Control models, whose input has as many channels."""
AUTOENCODER_22 = "Wan 2.2 VAE"


def recognise(header: Header) -> tuple[str, str] | None:
    shapes = header.shapes
    for prefix in PREFIXES:
        known = prefix + OFFICIAL in shapes or prefix + DIFFUSERS in shapes
        if known and tuple(shapes.get(prefix + PATCH, ()))[1:2] == (CHANNELS,):
            image_parts = tuple(prefix + part for part in IMAGE_PARTS)
            if not any(key.startswith(image_parts) for key in shapes):
                return CARD.name, "Wan 2.2 TI2V 5B"
    return None


def tokens(width: int, height: int, frames: int) -> int:
    return width // 32 * (height // 32) * latent_frames(frames)


CARD = replace(
    WAN,
    name="wan_5b",
    title="Wan 2.2 5B",
    derived_from=WAN.name,
    order=6,
    capabilities=WAN.capabilities - {"control_clips", "end_image", "experts"},
    groups=(*(group for group in WAN.groups if group is not ControlOptions), Wan5BOptions),
    clips=ClipFacts(fps=24, bucket_steps=32),
    defaults=MUSUBI,
    notes={
        "pretrained_model_name_or_path": f"Wan 2.2 5B's ID is {HUB_MODEL}.",
        "vae": "Wan 2.2 5B has a VAE of its own: Wan2.2_VAE.pth or wan2.2_vae.safetensors.",
        "clip": "Wan 2.2 5B has no use for it.",
    },
    files=replace(
        WAN.files,
        components=tuple(
            replace(each, title="Wan 2.2's VAE", fitting=(AUTOENCODER_22, CAUSAL_VAE_KIND))
            if each.name == VAE
            else each
            for each in WAN.files.components
            if not each.optional
        ),
        base_file="a Wan 2.2 5B file",
        base_model="a Wan 2.2 5B transformer",
    ),
    side_multiple=32,
    bucket_multiple=32,
    token_multiple=32,
    plan=replace(
        WAN.plan,
        tokens=tokens,
        memory=memory_of(width=3072, mlp_width=14_336, blocks=30, values=4_999_787_712, vae=704_688_668, tokens=tokens),
    ),
    sample_defaults=SamplePrompt(width=1280, height=704, frames=121, steps=50, scale=5.0),
    recognition=replace(
        WAN.recognition,
        hub_words=("wan2.2-ti2v-5b",),
        marks=(),
        recognise=recognise,
        lora_marks=(),
        pipelines=(),
        widths=tuple((CAUSAL_VAE_KIND, key, 0, 1024, AUTOENCODER_22) for key in CAUSAL_VAE_KEYS),
    ),
    hub=replace(WAN.hub, model=HUB_MODEL, files=FILES),
    page=replace(
        WAN.page, model_panel=(), panels=(PanelCard(group=Wan5BOptions, names=("first_frame_conditioning_p",)),)
    ),
)
