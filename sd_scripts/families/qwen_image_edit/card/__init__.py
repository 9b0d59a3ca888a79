"""Qwen-Image-Edit, as the page, the options and the file recognition see it: Qwen-Image with control images."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from sd_scripts.families.cards.flow_defaults import MUSUBI
from sd_scripts.families.cards.shared_components import PREFIXES
from sd_scripts.families.qwen_image.card import CARD as QWEN_IMAGE
from sd_scripts.families.qwen_image.card import TRANSFORMER, ZERO_COND_T
from sd_scripts.families.qwen_image_edit.card.checks import version_without_training
from sd_scripts.families.qwen_image_edit.card.hub_files import FILES
from sd_scripts.families.qwen_image_edit.card.memory_facts import MEMORY
from sd_scripts.formats.documents import read_json
from sd_scripts.formats.models.safetensors_header import Header
from sd_scripts.options.dataset import ControlOptions

HUB_MODEL, FIRST_MODEL = "Qwen/Qwen-Image-Edit-2509", "Qwen/Qwen-Image-Edit"
MODEL_2511 = "Qwen/Qwen-Image-Edit-2511"

EDIT, EDIT_PLUS, EDIT_2511 = "edit", "edit-2509", "edit-2511"
"""Values of model_version: the first release, and the two for several control images."""
ARCHITECTURES = {EDIT: "Qwen-Image-Edit", EDIT_PLUS: "Qwen-Image-Edit-Plus", EDIT_2511: "Qwen-Image-Edit-2511"}
"""modelspec.architecture of files saved here, by model_version."""
PIPELINES = {EDIT: "QwenImageEditPipeline", EDIT_PLUS: "QwenImageEditPlusPipeline"}
VARIANTS = {EDIT: "Qwen-Image-Edit", EDIT_PLUS: "Qwen-Image-Edit-2509", EDIT_2511: "Qwen-Image-Edit-2511"}


def told_version(header: Header) -> str | None:
    """Return the model_version in a file's metadata: its keys and shapes equal Qwen-Image's, but for ComfyUI's mark of
    Edit-2511."""
    if any(prefix + ZERO_COND_T in header.shapes for prefix in PREFIXES):
        return EDIT_2511
    architecture = header.metadata.get("modelspec.architecture", "").lower()
    return next((version for version, name in ARCHITECTURES.items() if architecture == name.lower()), None)


def is_edit_2511(folder: Path) -> bool:
    """Return whether the configuration of a transformer's folder has the switch of Edit-2511."""
    with suppress(OSError, ValueError, AttributeError):  # or JSON that is not an object
        return bool(read_json(folder / "config.json").get("zero_cond_t"))
    return False


def folder_version(folder: Path) -> str | None:
    """Return the model_version of a diffusers folder, or of its transformer's."""
    if is_edit_2511(folder) or is_edit_2511(folder / "transformer"):
        return EDIT_2511
    with suppress(OSError, ValueError, AttributeError):  # or JSON that is not an object
        pipeline = read_json(folder / "model_index.json").get("_class_name")
        return next((version for version, name in PIPELINES.items() if name == pipeline), None)
    return None


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
    groups=(*QWEN_IMAGE.groups, ControlOptions),
    capabilities=QWEN_IMAGE.capabilities | {"control_images"},
    longest_control=200,  # in the image processor of its text encoder
    defaults=MUSUBI,
    notes={
        "pretrained_model_name_or_path": f"Qwen-Image-Edit's IDs are {FIRST_MODEL}, {HUB_MODEL} and {MODEL_2511}.",
        "model_version": "For Qwen-Image-Edit edit, edit-2509 or edit-2511. Default: what the model specifies, else "
        "edit-2509; the shards of Qwen-Image-Edit-2511 do not specify it.",
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
        folder_variant=lambda folder, variant: (
            f"{VARIANTS[EDIT_2511]} diffusers folder" if folder_version(folder) == EDIT_2511 else variant
        ),
        widths=(),
    ),
    hub=replace(
        QWEN_IMAGE.hub,
        model=HUB_MODEL,
        variants={ARCHITECTURES[EDIT]: FIRST_MODEL, ARCHITECTURES[EDIT_2511]: MODEL_2511},
        files=FILES,
    ),
    page=replace(QWEN_IMAGE.page, model_panel=()),
    problems=(version_without_training,),
)
