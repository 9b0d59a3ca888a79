"""What a path holds, told in a few words beside its field: read from headers and file names, without torch."""

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PICTURES = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".avif", ".jxl"}
PICKLED = {".ckpt", ".pt", ".pth", ".bin"}
MOST_FILES = 20_000
"""A folder is counted up to here, so that a glance at a disk's root stays a glance."""
LONGEST_HEADER = 100_000_000

SIGNS: tuple[tuple[str, str, str], ...] = (
    ("lora_", "lora", "a LoRA, not a base model"),
    ("model.diffusion_model.joint_blocks.", "sd3", "SD 3 checkpoint"),
    ("conditioner.embedders.0.model.", "sdxl-refiner", "SDXL refiner checkpoint"),
    ("conditioner.embedders.1.model.", "sdxl", "SDXL checkpoint"),
    ("cond_stage_model.model.", "sd2", "SD 2 checkpoint"),
    ("cond_stage_model.transformer.", "sd15", "SD 1.5 checkpoint"),
    ("model.diffusion_model.double_blocks.", "flux", "FLUX.1 checkpoint"),
    ("double_blocks.", "flux", "FLUX.1 model"),
    ("transformer_blocks.", "flux", "FLUX.1 model in diffusers' layout"),
    ("first_stage_model.", "vae", "VAE"),
    ("encoder.conv_in.", "vae", "VAE"),
)
"""The first key prefix that a file has says what it is."""

PIPELINES = {
    "StableDiffusionXLPipeline": ("sdxl", "SDXL"),
    "StableDiffusionPipeline": ("sd15", "SD 1.5 or 2"),
    "FluxPipeline": ("flux", "FLUX.1"),
}
DTYPES = {"F16": "fp16", "BF16": "bf16", "F32": "fp32", "F8_E4M3": "fp8", "F8_E5M2": "fp8"}


@dataclass(frozen=True)
class Recognised:
    """`good` None: nothing is wrong, nothing is known."""

    text: str
    good: bool | None = None
    family: str | None = None


NOTHING = Recognised("")


def model(path: str, family: str) -> Recognised:
    """What the base model at `path` is, and whether `family` can train on it."""
    path = path.strip().strip('"')
    if not path:
        return NOTHING
    place = Path(path).expanduser()
    if place.is_dir():
        found = _diffusers_folder(place)
    elif place.suffix == ".safetensors":
        found = safetensors_file(place)
    elif place.is_file() and place.suffix in PICKLED:
        return Recognised(f"{size(place.stat().st_size)}, {place.suffix}: looked into when the run starts")
    elif place.is_file():
        return Recognised("This is no model file: choose a .safetensors or .ckpt file", good=False)
    elif _is_hub_id(path):
        return Recognised("Hugging Face id: looked up in the local cache, else downloaded, when the run starts")
    else:
        return Recognised("There is no such file or folder", good=False)
    if found.good and found.family != family:
        return Recognised(f"{found.text}: not a base model for {family.upper()}", good=False, family=found.family)
    return found


def safetensors_file(path: Path) -> Recognised:
    """Name, precision and size of a model, from the header alone."""
    try:
        header, wanted = _header(path)
    except OSError as error:
        return Recognised(f"This file cannot be read ({error.strerror})", good=False)
    except ValueError:
        return Recognised("This is not a safetensors file", good=False)
    bytes_ = path.stat().st_size
    if bytes_ < wanted:
        return Recognised(f"This file is cut off: {size(bytes_)} of {size(wanted)}; download it again", good=False)
    tensors = {key: value for key, value in header.items() if key != "__metadata__"}
    for sign, family, name in SIGNS:
        if any(key.startswith(sign) for key in tensors):
            return Recognised(f"{name}, {_precision(tensors)}{size(bytes_)}", good=True, family=family)
    return Recognised(f"A model of another kind, {size(bytes_)}", good=False)


def _header(path: Path) -> tuple[dict[str, Any], int]:
    """The header of a safetensors file, and how long the whole file should be."""
    with path.open("rb") as file:
        first = file.read(8)
        if len(first) < 8 or (length := struct.unpack("<Q", first)[0]) > LONGEST_HEADER:
            raise ValueError("no header")
        header = json.loads(file.read(length))
    ends = [entry["data_offsets"][1] for key, entry in header.items() if key != "__metadata__"]
    return header, 8 + length + max(ends, default=0)


def _precision(tensors: dict[str, Any]) -> str:
    kinds = [entry["dtype"] for entry in tensors.values()]
    most = max(set(kinds), key=kinds.count)
    return f"{DTYPES[most]}, " if most in DTYPES else ""


def _diffusers_folder(folder: Path) -> Recognised:
    try:
        pipeline = json.loads((folder / "model_index.json").read_text(encoding="utf-8"))["_class_name"]
    except (OSError, ValueError, KeyError):
        return Recognised("This folder has no model_index.json: not a diffusers model", good=False)
    family, name = PIPELINES.get(pipeline, (None, pipeline))
    return Recognised(f"{name} model in a diffusers folder", good=True, family=family)


def _is_hub_id(text: str) -> bool:
    owner, _, name = text.partition("/")
    return bool(owner and name) and "/" not in name and "\\" not in text and not text.startswith((".", "~"))


def data_folder(path: str, caption_extension: str) -> Recognised:
    """How many pictures a data folder holds, in which subfolders, and how many have a caption."""
    if not path.strip():
        return NOTHING
    folder = Path(path.strip().strip('"')).expanduser()
    if not folder.is_dir():
        return Recognised("There is no such folder", good=False)
    subsets = [sub for sub in sorted(folder.iterdir()) if sub.is_dir() and repeats(sub.name) is not None]
    if not subsets:
        here = "pictures lie in the folder itself" if _pictures(folder) else "no pictures here"
        return Recognised(f"No subfolders named like 10_cat ({here}): make one and move them into it", good=False)
    counted = [(sub, _pictures(sub)) for sub in subsets]
    total = sum(len(pictures) for _, pictures in counted)
    if not total:
        return Recognised(f"No pictures in {', '.join(sub.name for sub, _ in counted)}", good=False)
    captioned = sum(p.with_suffix(caption_extension).exists() for _, pictures in counted for p in pictures)
    shown = ", ".join(f"{sub.name} ({len(pictures)})" for sub, pictures in counted[:4])
    more = f" and {len(counted) - 4} more" if len(counted) > 4 else ""
    steps = sum((repeats(sub.name) or 0) * len(pictures) for sub, pictures in counted)
    some = f"{captioned or 'none'} with a {caption_extension} file"
    words = "all captioned" if captioned == total else some
    return Recognised(f"{total} pictures, {words}, {steps} an epoch: {shown}{more}", good=True)


def repeats(name: str) -> int | None:
    """10 of "10_cat"; None for a folder that is not of that form."""
    number, line, _ = name.partition("_")
    return int(number) if line and number.isdigit() else None


def _pictures(folder: Path) -> list[Path]:
    found = []
    for path in folder.iterdir():
        if path.suffix.lower() in PICTURES:
            found.append(path)
            if len(found) >= MOST_FILES:
                break
    return found


def size(bytes_: float) -> str:
    """6.9 GB: as the shops and download pages count."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if bytes_ < 1000:
            return f"{bytes_:.0f} {unit}" if unit in ("bytes", "kB") or bytes_ >= 100 else f"{bytes_:.1f} {unit}"
        bytes_ /= 1000
    return f"{bytes_:.1f} TB"
