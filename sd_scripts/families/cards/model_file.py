"""Identifies a model file from its first kilobytes, without torch or weights, so that the page can use it too."""

import contextlib
import math
import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sd_scripts.families.cards.family_card import FilesCard
from sd_scripts.families.cards.registry import card_of, cards, names
from sd_scripts.formats.documents import check_name, read_json
from sd_scripts.formats.models.model_objective import ModelObjective, objective_of_file, objective_of_folder
from sd_scripts.formats.models.pickle_file import read_pickle_file
from sd_scripts.formats.models.safetensors_header import COMPILED, SAFETENSORS, Header, read_header
from sd_scripts.options.model import MODEL

HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
SUFFIXES = {*SAFETENSORS, ".ckpt", ".pt"}


@dataclass(frozen=True, kw_only=True)
class ModelFile:
    """The kind of a model file or folder, in the user's terms."""

    family: str | None = None
    """Name of a family here, or of a different model: sd15, sd2, sd3; None if not recognised."""
    variant: str = ""
    """Such as "Stable Diffusion 1.5 LoRA"; empty if it was not recognised."""
    precision: str = ""
    """Precision of most of its weights: fp32, fp16, bf16, fp8; empty if unknown."""
    bytes: int = 0
    parts: tuple[str, ...] = ()
    """Options whose components it contains too, such as t5xxl."""
    lacks: tuple[str, ...] = ()
    """Options of components that whole models of its family contain, and it does not, such as vae."""
    other_inputs: bool = False
    """Whether its denoiser reads more than noisy latents, such as a mask: LoRAs can be merged into it, but it can
    neither be trained nor generate here."""
    objective: ModelObjective = field(default_factory=ModelObjective)
    """Its statement of how it was trained."""
    problem: str | None = None
    """Why it cannot be used, to follow an option's name."""

    @property
    def is_base_model(self) -> bool:
        """Whether it is a whole model that can be trained, or its denoiser in a file of its own."""
        return bool(self.family) and not self.other_inputs and not self.variant.endswith(("LoRA", "alone"))

    @property
    def is_a(self) -> str:
        """Its variant as part of a sentence."""
        return with_article(self.variant)


NOUNS = ("LoRA", "checkpoint", "model", "encoder", "VAE", "autoencoder", "refiner", "folder", "alone", "file")
"""Last words of variants that are not names."""


def with_article(variant: str) -> str:
    """Return a variant as part of a sentence: "Stable Diffusion 1.5 LoRA" with an article, a name without one."""
    if not variant.partition(",")[0].partition(" (")[0].endswith(NOUNS):
        return variant
    article = "an" if variant.startswith("SD") else "a"  # as it is pronounced: an SD checkpoint
    return f"{article} {variant}"


def is_hub_id(name: str) -> bool:
    """Whether a name that is not a file could be a model on the Hugging Face Hub, such as "owner/model-1.0"."""
    return bool(HUB_ID.fullmatch(name)) and Path(name).suffix not in SUFFIXES


def locate(name: str | None, kind: str = "a model file") -> Path | str:
    """Return the file or folder of the base model, or the Hugging Face ID if none has that name.

    `kind` describes the expected file, such as "a model file". Raises ValueError, one sentence that names the option.
    """
    if not name:
        raise ValueError(f"{MODEL}: not set; choose {kind}, a diffusers folder or a Hugging Face ID")
    path = Path(name)
    if path.exists():
        return path
    if is_hub_id(name):
        return name
    raise ValueError(f"{MODEL}: file or folder not found: '{name}'")


def shards_of(file: Path) -> tuple[Path, ...]:
    """Return the files that are read for one that is named: all shards if it is one of `x-00001-of-00004`."""
    shard = re.fullmatch(r"(.+-)\d{5}(-of-\d{5})", file.stem)
    if not shard:
        return (file,)
    others = (each for each in file.parent.iterdir() if each.suffix == file.suffix)
    return tuple(sorted(e for e in others if re.fullmatch(re.escape(shard[1]) + r"\d{5}" + shard[2], e.stem)))


def header_of(file: Path) -> Header:
    """Return the header of a .safetensors file, or that which its shards would have in one. Raises ValueError."""
    return _joined([read_header(each) for each in shards_of(file)])


def describe(path: Path) -> ModelFile:
    """Describe the .safetensors, .ckpt or .pt file or the diffusers folder at `path`. Never raises."""
    try:
        check_name(path)
        if path.is_dir():
            return _describe_folder(path)
        if not path.is_file():
            there = "is not a file" if path.exists() else ""
            return ModelFile(problem=f"'{path}' {there}" if there else f"file not found: '{path}'")
        return _describe_file(path, path.stat().st_size)
    except OSError as error:
        return ModelFile(problem=f"'{path}' cannot be read: {error.strerror or error}")
    except ValueError as problem:
        return ModelFile(problem=str(problem))


def _describe_file(path: Path, size: int) -> ModelFile:
    if path.suffix == ".gguf":
        return ModelFile(
            bytes=size, problem=f"'{path}' is quantized for inference; choose the .safetensors file of the model"
        )
    try:
        if path.suffix not in SAFETENSORS:
            return _describe_pickle(path, size)
        header = header_of(path)
    except ValueError as problem:
        return ModelFile(bytes=size, problem=str(problem))
    return _described(header, size)


def _joined(headers: Sequence[Header]) -> Header:
    """Return the header that a component in these files would have in one."""
    shapes = {key: shape for header in headers for key, shape in header.shapes.items()}
    dtypes = {key: dtype for header in headers for key, dtype in header.dtypes.items()}
    return Header(metadata=headers[0].metadata, shapes=shapes, dtypes=dtypes)


def _describe_pickle(path: Path, size: int) -> ModelFile:
    """Describe a .ckpt or .pt file, from which the names of the tensors are read but not their shapes."""
    file = read_pickle_file(path)
    if file.strange:
        raise ValueError(
            f"'{path}' contains more than weights ({file.strange[0]}) and could run code; convert it to .safetensors"
        )
    keys = [text.replace(COMPILED, "") for text in file.texts]
    family, variant = recognise(Header(metadata={}, shapes=dict.fromkeys(keys, (0,)), dtypes={}))
    variant = variant or f"{path.suffix.lstrip('.') or 'unknown'} file"
    objective = objective_of_file(keys, {})
    return ModelFile(family=family, variant=variant, bytes=size, lacks=_lacking(family, keys), objective=objective)


def _described(header: Header, size: int) -> ModelFile:
    family, variant = recognise(header)
    files = _files_of(family)
    # an optional one may have the keys of the model itself
    usual = (part for part in files.separate_components if not part.optional)
    parts = tuple(part.option for part in usual if part.prefix_in(header.shapes) is not None)
    other = files.denoiser.other_variant(header.shapes) if files.denoiser else ""
    return ModelFile(
        family=family,
        variant=other or variant,
        precision=_precision(header),
        bytes=size,
        parts=parts,
        lacks=_lacking(family, header.shapes),
        other_inputs=bool(other),
        objective=objective_of_file(header.shapes, header.metadata),
    )


def _lacking(family: str | None, keys: Collection[str]) -> tuple[str, ...]:
    """Return the options of components that a whole model of the family contains, and a file with these keys does
    not."""
    components = _files_of(family).components
    within = (component for component in components if not component.fitting and component.option != MODEL)
    return tuple(component.option for component in within if component.prefix_in(keys) is None)


def _files_of(family: str | None) -> FilesCard:
    """Return the files of a family, or no files for a different model."""
    return card_of(family).files if family in names() else FilesCard()


CLIP_L, T5_XXL = "CLIP-L text encoder", "T5-XXL text encoder"
MARKS: tuple[tuple[str, str | None, str], ...] = (
    ("cond_stage_model.transformer.text_model.final_layer_norm.weight", "sd15", "Stable Diffusion 1.5 checkpoint"),
    ("cond_stage_model.model.ln_final.weight", "sd2", "Stable Diffusion 2.x checkpoint"),
    ("model.diffusion_model.joint_blocks.0.context_block.attn.qkv.weight", "sd3", "Stable Diffusion 3 checkpoint"),
    ("decoder.conv_in.weight", None, "VAE"),
    ("first_stage_model.decoder.conv_in.weight", None, "VAE"),
    ("text_model.final_layer_norm.weight", None, "CLIP text encoder"),
    ("final_layer_norm.weight", None, "CLIP text encoder"),
    ("encoder.block.0.layer.0.SelfAttention.q.weight", None, "T5 text encoder"),
)
"""Key that only such a file has -> family and variant, for files that are not models of a family here; the first match
decides."""

WIDTHS: tuple[tuple[str, str, int, int, str], ...] = (
    ("CLIP text encoder", "embeddings.token_embedding.weight", 1, 768, CLIP_L),
    ("CLIP text encoder", "embeddings.token_embedding.weight", 1, 1280, "CLIP-G text encoder"),
    ("T5 text encoder", "encoder.block.0.layer.0.SelfAttention.q.weight", 1, 4096, T5_XXL),
)
"""(variant, end of a key, axis, size of that axis, exact variant); families add their own."""

LORA_PARTS = (
    *(".lora_down.", ".lora_A.", ".hada_w1_a", ".lokr_w"),
    *("_lora.down.", ".lora.down.", ".lora_linear_layer.down.", "_lora1.down.", "_lora2.down."),
)
"""Substrings of keys that identify a LoRA: ours and LyCORIS', then diffusers' before peft, and XLabs'."""

SD15_LORA = "Stable Diffusion 1.5 LoRA"
LORA_MARKS: tuple[tuple[str, str, str], ...] = (
    ("down_blocks_0_attentions_0_", "sd15", SD15_LORA),
    ("down_blocks.0.attentions.0.", "sd15", SD15_LORA),
)
"""Substring of a key that only a LoRA for this model has, after the marks of the families."""


V_PREDICTION = ", v-prediction"


def recognise(header: Header) -> tuple[str | None, str]:
    """Return (family, variant) from keys and metadata; (None, "") if nothing matches."""
    keys = header.shapes
    every_key = "\n".join(keys)
    if "ss_network_module" in header.metadata or any(part in every_key for part in LORA_PARTS):
        return _recognise_lora(header)
    for card in sorted(cards(), key=lambda card: card.derived_from is None):  # its marks are in metadata, if anywhere
        if found := card.recognition.recognise(header):
            return found
    for mark, family, variant in (*(mark for card in cards() for mark in card.recognition.marks), *MARKS):
        if mark in keys:
            objective = objective_of_file(keys, header.metadata)
            return family, _by_width(variant, header) + (V_PREDICTION if objective.velocity else "")
    return None, ""


def _by_width(variant: str, header: Header) -> str:
    """Return the exact variant of a component that comes in several sizes."""
    for kind, end, axis, size, name in (*WIDTHS, *(width for card in cards() for width in card.recognition.widths)):
        shapes = (shape for key, shape in header.shapes.items() if key.endswith(end))
        if kind == variant and any(len(shape) > axis and shape[axis] == size for shape in shapes):
            return name
    return variant


PRECISIONS = {"F32": "fp32", "F16": "fp16", "BF16": "bf16", "F8_E4M3": "fp8", "F8_E5M2": "fp8"}


def _precision(header: Header) -> str:
    """Return the precision of most weights, not of most tensors: fp8 files have the same number of small scales in
    fp32."""
    counts: Counter[str] = Counter()
    for key, dtype in header.dtypes.items():
        counts[dtype] += math.prod(header.shapes[key])
    return PRECISIONS.get(counts.most_common(1)[0][0], "") if counts else ""


Mark = tuple[str, str, str]
"""Part of a layer's name, family, variant."""


def _containing_first(marks: list[Mark]) -> list[Mark]:
    """Return the marks in their order, but those that contain another family's before it."""
    return sorted(marks, key=lambda mark: -sum(other[0] in mark[0] for other in marks))


def _recognise_lora(header: Header) -> tuple[str | None, str]:
    version = header.metadata.get("ss_base_model_version", "")
    for card in sorted(cards(), key=lambda card: -len(card.name)):  # one name may be a prefix of another
        if version.startswith(card.name):
            return card.name, f"{card.title} LoRA"
    if version.startswith("sd_v1"):
        return "sd15", SD15_LORA
    of_denoisers = [(mark, card.name, f"{card.title} LoRA") for card in cards() for mark in card.recognition.lora_marks]
    of_encoders = (
        (mark, card.name, f"{card.title} LoRA") for card in cards() for mark in card.recognition.lora_encoder_marks
    )
    for mark, family, variant in (*_containing_first(of_denoisers), *LORA_MARKS, *of_encoders):
        if any(mark in key for key in header.shapes):
            return family, variant
    return None, "LoRA"


PIPELINES = (
    ("StableDiffusion3", "sd3", "Stable Diffusion 3 diffusers folder"),
    ("StableDiffusion", "sd15", "Stable Diffusion 1.5 or 2.x diffusers folder"),
)
"""(prefix of the pipeline's class name, family, variant), after the families' own; longer prefixes first."""


INDEXES = ("model_index.json", "modular_model_index.json")
"""A diffusers folder has one of these: of a pipeline, or of a modular one."""


def index_of(folder: Path) -> Path | None:
    """Return the file that makes a folder a whole model of diffusers; None if it is not one."""
    return next((folder / name for name in INDEXES if (folder / name).is_file()), None)


def _describe_folder(folder: Path) -> ModelFile:
    index = index_of(folder)
    if not index:
        return _describe_part(folder)
    try:
        pipeline = str(read_json(index)["_class_name"])
    except (ValueError, KeyError, TypeError):
        return ModelFile(problem=f"'{index}' cannot be read; download it again")
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    if shard := _missing_shard(folder):
        return ModelFile(bytes=size, problem=f"'{folder}' lacks {shard}; download it again")
    known = sorted((each for card in cards() for each in card.recognition.pipelines), key=lambda each: -len(each[0]))
    for beginning, family, variant in (*known, *PIPELINES):
        if pipeline.startswith(beginning):
            exact = card_of(family).recognition.folder_variant(folder, variant) if family in names() else variant
            other = _folder_inputs(family, folder)
            objective = objective_of_folder(folder)
            return ModelFile(
                family=family,
                variant=other or exact + (V_PREDICTION if objective.velocity else ""),
                precision=_folder_precision(folder),
                bytes=size,
                other_inputs=bool(other),
                objective=objective,
            )
    return ModelFile(variant=f"diffusers folder ({pipeline})", bytes=size)


def _folder_inputs(family: str | None, folder: Path) -> str:
    """Return the name of a diffusers folder whose denoiser has different input channels; else an empty text."""
    denoiser = _files_of(family).denoiser
    if not denoiser or not denoiser.first_layer:
        return ""
    for file in sorted((folder / denoiser.folder).glob("*.safetensors")):
        with contextlib.suppress(ValueError):  # damaged: reported when it is opened
            if other := denoiser.first_layer.other_variant(read_header(file).shapes):
                return other
    return ""


def _describe_part(folder: Path) -> ModelFile:
    """Describe the folder of one component, in one file or several."""
    files = sorted(folder.glob("*model*.safetensors"))
    if not files:
        return ModelFile(
            problem=f"'{folder}' is a folder without model_index.json; choose a file or a diffusers folder"
        )
    size = sum(file.stat().st_size for file in files)
    if shard := _first_missing_of(folder):
        return ModelFile(bytes=size, problem=f"'{folder}' lacks {shard}; download it again")
    try:
        headers = [read_header(file) for file in files]
    except ValueError as problem:
        return ModelFile(bytes=size, problem=str(problem))
    return _described(_joined(headers), size)


def _missing_shard(folder: Path) -> str:
    """Return the first missing shard as component/name; "" if none is missing."""
    for part in sorted({index.parent for index in folder.glob("*/*.safetensors.index.json")}):
        if missing := _first_missing_of(part):
            return f"{part.name}/{missing}"
    return ""


def _first_missing_of(part: Path) -> str:
    missing = [_first_missing(index) for index in sorted(part.glob("*.safetensors.index.json"))]
    whole = not all(missing) or any(part.glob("*model.safetensors"))  # one complete form of several is enough
    return "" if whole or not missing else missing[0]


def _first_missing(index: Path) -> str:
    try:
        shards = sorted({str(name) for name in read_json(index)["weight_map"].values()})
    except (ValueError, KeyError, TypeError, AttributeError):
        return index.name
    return next((shard for shard in shards if not (index.parent / shard).is_file()), "")


def _folder_precision(folder: Path) -> str:
    """Return the precision of the largest file of the U-Net or transformer."""
    files = [file for part in ("unet", "transformer") for file in (folder / part).glob("*.safetensors")]
    if not files:
        return ""
    try:
        return _precision(read_header(max(files, key=lambda file: file.stat().st_size)))
    except ValueError:
        return ""
