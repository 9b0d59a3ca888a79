"""FramePack, as the page, the options and the file recognition see it: HunyuanVideo section by section."""

from dataclasses import replace
from functools import partial

from sd_scripts.families.cards.clip_facts import ClipFacts
from sd_scripts.families.cards.family_card import FilesCard, FirstLayer, HubCard, PanelCard, PlanCard, RecognitionCard
from sd_scripts.families.cards.flow_defaults import MUSUBI_GUIDED, musubi_page
from sd_scripts.families.cards.graph_counts import DOUBLE_AND_SINGLE
from sd_scripts.families.cards.layer_patterns import read_rules
from sd_scripts.families.cards.shared_components import PREFIXES, SIGLIP, SIGLIP_MARKS, transformer
from sd_scripts.families.framepack.card.hub_files import FILES
from sd_scripts.families.framepack.card.memory_facts import MEMORY, tokens
from sd_scripts.families.framepack.card.options import RECOMMENDED, FramePackOptions
from sd_scripts.families.hunyuan_video.card import CARD as HUNYUAN_VIDEO
from sd_scripts.families.hunyuan_video.card import TEXT_AND_VAE
from sd_scripts.formats.models.safetensors_header import Header
from sd_scripts.options.dataset import ControlOptions
from sd_scripts.options.generating.prompt_lines import SamplePrompt
from sd_scripts.options.spec import Findings, OptionValues

HUB_MODEL = "lllyasviel/FramePackI2V_HY"
TRANSFORMER = "clean_x_embedder.proj.weight"
"""A key of a transformer of this kind."""
SECTION = 36
"""Frames of a section."""


def recognise(header: Header) -> tuple[str, str] | None:
    """Return (family, variant) of a file with a transformer of this kind; F1's has the same tensors."""
    return (CARD.name, CARD.title) if any(prefix + TRANSFORMER in header.shapes for prefix in PREFIXES) else None


def control_images_of_other_sizes(values: OptionValues) -> Findings:
    control = values[ControlOptions]
    for option in ("control_resolution", "no_resize_control"):
        if getattr(control, option):
            yield option, "FramePack's control images need the size of their image; leave it unset"


CARD = replace(
    HUNYUAN_VIDEO,
    name="framepack",
    title="FramePack",
    derived_from=HUNYUAN_VIDEO.name,
    order=8,
    groups=(*HUNYUAN_VIDEO.groups, FramePackOptions, ControlOptions),
    capabilities=HUNYUAN_VIDEO.capabilities | {"control_images", "start_image"},
    clips=ClipFacts(fps=30, frame_step=SECTION, begin_with_image=True),
    token_multiple=64,  # context that is four times coarser has whole tokens too
    defaults=MUSUBI_GUIDED,
    notes={
        "pretrained_model_name_or_path": f"FramePack's ID is {HUB_MODEL}: a folder or file of the transformer.",
        "vae": "FramePack's is HunyuanVideo's VAE, such as hunyuan_video_vae_bf16.safetensors.",
        "discrete_flow_shift": "3 suits FramePack.",
        "guidance_scale": "For FramePack 1.0 is recommended; the model reads 1000 times its value.",
        "network_args": "FramePack: exclude_patterns and include_patterns, as HunyuanVideo.",
        "blocks_to_swap": "FramePack takes up to 37, and each saves about 0.6 GB.",
    },
    page=musubi_page(
        RECOMMENDED,
        ("text_encoder1", "text_encoder2", "image_encoder", "f1"),
        panels=(
            PanelCard(
                group=FramePackOptions,
                names=(
                    *("fp_1f_target_index", "fp_1f_clean_indices", "fp_1f_no_post"),
                    *("one_frame_no_2x", "one_frame_no_4x"),
                ),
            ),
        ),
        demo_prompts="--s 16",
    ),
    files=FilesCard(
        components=(
            transformer(
                "FramePack transformer",
                TRANSFORMER,
                first_layer=FirstLayer(keys=("x_embedder.proj.weight",), channels=16, kind="FramePack model"),
            ),
            *TEXT_AND_VAE[:2],
            SIGLIP,
            *TEXT_AND_VAE[2:],
        ),
        base_file="a FramePack file",
        base_model="a FramePack transformer",
    ),
    network_modules=("networks.lora", "networks.lora_framepack"),
    network_rules=partial(read_rules, title="FramePack", excluded=r".*norm.*"),
    plan=PlanCard(tokens=tokens, graphs=DOUBLE_AND_SINGLE, memory=MEMORY),
    sample_defaults=SamplePrompt(width=640, height=640, frames=145, steps=25, scale=1.0, guidance=10.0),
    recognition=RecognitionCard(
        hub_words=("framepack",),
        marks=SIGLIP_MARKS,
        recognise=recognise,
        lora_marks=("lora_unet_single_transformer_blocks",),
        pipelines=(("HunyuanVideoFramepack", "framepack", "FramePack diffusers folder"),),
    ),
    hub=HubCard(model=HUB_MODEL, tags=("image-to-video",), files=FILES),
    problems=(*HUNYUAN_VIDEO.problems, control_images_of_other_sizes),
)
