"""Qwen-Image-Edit, as the page, the options and the file recognition see it: Qwen-Image with control images."""

from dataclasses import replace

from sd_scripts.families.qwen_image.card import CARD as QWEN_IMAGE
from sd_scripts.families.qwen_image.card import PREFIXES, TRANSFORMER
from sd_scripts.families.qwen_image_edit.card.checks import version_without_training
from sd_scripts.families.qwen_image_edit.card.hub_files import FILES
from sd_scripts.families.qwen_image_edit.card.memory_facts import MEMORY
from sd_scripts.formats.models.safetensors_header import Header
from sd_scripts.options.dataset import ControlOptions

HUB_MODEL, FIRST_MODEL = "Qwen/Qwen-Image-Edit-2509", "Qwen/Qwen-Image-Edit"

EDIT, EDIT_PLUS = "edit", "edit-2509"
"""Values of model_version: the first release, and the one for several control images."""
ARCHITECTURES = {EDIT: "Qwen-Image-Edit", EDIT_PLUS: "Qwen-Image-Edit-Plus"}
"""modelspec.architecture of files saved here, by model_version."""
PIPELINES = {EDIT: "QwenImageEditPipeline", EDIT_PLUS: "QwenImageEditPlusPipeline"}
VARIANTS = {EDIT: "Qwen-Image-Edit", EDIT_PLUS: "Qwen-Image-Edit-2509"}


def told_version(header: Header) -> str | None:
    """Return the model_version in a file's metadata: its keys and shapes equal Qwen-Image's."""
    architecture = header.metadata.get("modelspec.architecture", "").lower()
    return next((version for version, name in ARCHITECTURES.items() if architecture == name.lower()), None)


def recognise(header: Header) -> tuple[str, str] | None:
    version = told_version(header)
    if version and any(prefix + TRANSFORMER in header.shapes for prefix in PREFIXES):
        return CARD.name, VARIANTS[version]
    return None


CARD = replace(
    QWEN_IMAGE,
    name="qwen_image_edit",
    title="Qwen-Image-Edit",
    derived_from=QWEN_IMAGE.name,
    order=4,
    scripts={
        "lora": "qwen_image_edit_train_network.py",
        "full": "qwen_image_edit_train.py",
        "generate": "qwen_image_edit_generate.py",
    },
    groups=(*QWEN_IMAGE.groups, ControlOptions),
    capabilities=QWEN_IMAGE.capabilities | {"control_images"},
    longest_control=200,  # in the image processor of its text encoder
    notes={
        "pretrained_model_name_or_path": f"Qwen-Image-Edit's IDs are {FIRST_MODEL} and {HUB_MODEL}.",
        "model_version": "For Qwen-Image-Edit edit or edit-2509. Default: what the model specifies, else edit-2509.",
        "text_encoder": "For Qwen-Image-Edit the file must contain its vision tower, as the usual ones do.",
        "control_resolution": "Qwen-Image-Edit was trained with an area of 1024.",
    },
    files=replace(
        QWEN_IMAGE.files,
        components=tuple(
            replace(each, title=f"{each.title} with its vision tower") if each.option == "text_encoder" else each
            for each in QWEN_IMAGE.files.components
        ),
        base_file="a Qwen-Image-Edit file",
        base_model="a Qwen-Image-Edit transformer",
    ),
    plan=replace(QWEN_IMAGE.plan, memory=MEMORY),
    recognition=replace(
        QWEN_IMAGE.recognition,
        hub_words=("qwen-image-edit",),
        marks=(),
        recognise=recognise,
        lora_marks=(),
        pipelines=tuple(
            (pipeline.removesuffix("Pipeline"), "qwen_image_edit", f"{VARIANTS[version]} diffusers folder")
            for version, pipeline in PIPELINES.items()
        ),
        widths=(),
    ),
    hub=replace(QWEN_IMAGE.hub, model=HUB_MODEL, variants={ARCHITECTURES[EDIT]: FIRST_MODEL}, files=FILES),
    page=replace(QWEN_IMAGE.page, model_panel=()),
    problems=(version_without_training,),
)
