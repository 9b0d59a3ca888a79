"""Write model files, completely or not at all, with the hashes by which other programs look them up."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from sd_scripts.formats.atomic_files import atomic_file
from sd_scripts.formats.disk import saving
from sd_scripts.library.files.safetensors_stream import TensorSpec, bytes_of, header_of

PRECISIONS = {"no": torch.float32, "float": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
"""mixed_precision or save_precision -> dtype."""

OLD_HASH_START, OLD_HASH_LENGTH = 0x100000, 0x10000


def save_model(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str], dtype: torch.dtype | None = None
) -> None:
    """Write a .safetensors file, or by its suffix a .ckpt or .pt, which have no metadata; floats in `dtype`.

    A .safetensors file is written tensor by tensor, from any device, without a second copy of the model in memory.
    Raises OSError with one sentence if it cannot be written; an existing file is then unchanged.
    """
    with saving(path), atomic_file(path) as part:
        if path.suffix == ".safetensors":
            write_tensors(part, tensors, metadata, dtype)
        else:
            torch.save({key: _alone(on_cpu(tensor, dtype)) for key, tensor in tensors.items()}, part)


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str], dtype: torch.dtype | None = None
) -> None:
    """Write a .safetensors file in place, byte for byte like the safetensors library, one tensor after another."""
    first, spans = header_of({key: TensorSpec.of(tensor, dtype) for key, tensor in tensors.items()}, metadata)
    with path.open("wb") as file:
        file.write(first)
        for key in spans:
            file.write(bytes_of(on_cpu(tensors[key], dtype)))


def on_cpu(tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return the tensor contiguous on the CPU, floats in `dtype`; cast first, so that less is copied if it is
    narrower."""
    narrowed = tensor.detach().to(dtype) if dtype and tensor.is_floating_point() else tensor.detach()
    return narrowed.cpu().contiguous()


def _alone(tensor: Tensor) -> Tensor:
    """Return the tensor with memory of its own: torch.save writes all memory that a view belongs to."""
    return tensor if tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone()


def with_hashes(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> dict[str, str]:
    """Return a LoRA's metadata with sshs_legacy_hash and sshs_model_hash; by the latter WebUI recognises a file whose
    metadata was edited."""
    training = {key: value for key, value in metadata.items() if key.startswith("ss_")}
    first, spans = header_of({key: TensorSpec.of(tensor) for key, tensor in tensors.items()}, training)
    data = b"".join([first, *(bytes_of(on_cpu(tensors[key])) for key in spans)])
    payload = memoryview(data)[len(first) :]
    legacy = data[OLD_HASH_START : OLD_HASH_START + OLD_HASH_LENGTH]
    return {
        **metadata,
        "sshs_model_hash": hashlib.sha256(payload).hexdigest(),
        "sshs_legacy_hash": hashlib.sha256(legacy).hexdigest()[:8],
    }


def old_model_hash(path: Path) -> str:
    """Return the short hash of old WebUIs: eight hex digits over a part of the file."""
    with path.open("rb") as file:
        file.seek(OLD_HASH_START)
        return hashlib.sha256(file.read(OLD_HASH_LENGTH)).hexdigest()[:8]


def model_hash(path: Path) -> str:
    """Return the SHA-256 of the whole file; takes seconds for a checkpoint."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 22):
            digest.update(piece)
    return digest.hexdigest()
