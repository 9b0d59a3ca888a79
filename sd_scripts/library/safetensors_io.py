"""Model files as they are written: whole or not at all, with the hashes that other programs look them up by."""

import contextlib
import errno
import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

PRECISIONS = {"float": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
"""save_precision -> dtype of the saved tensors."""

OLD_HASH_START, OLD_HASH_LENGTH = 0x100000, 0x10000


def save_model(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write a .safetensors file, or by its ending a .ckpt or .pt, which hold no metadata.

    Raises OSError in one sentence when it cannot be written; nothing is left behind then, and a file that was there
    before is untouched.
    """
    ready = {key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()}
    with whole_file(path) as part:
        if path.suffix == ".safetensors":
            safetensors.torch.save_file(ready, part, dict(metadata))
        else:
            torch.save(ready, part)


UMASK = os.umask(0)
"""What new files are not allowed, by the custom of this process; it can only be read by changing it."""
os.umask(UMASK)


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A path beside `path` to write to; at the end of the block it takes its place, or is removed if that failed."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield part
        part.chmod(0o666 & ~UMASK)  # safetensors lets only the owner read
        with part.open("r+b") as file:
            os.fsync(file.fileno())
        os.replace(part, path)
    except (OSError, SafetensorError, RuntimeError) as error:  # torch.save tells of a full disk as RuntimeError
        raise OSError(f"'{path}' could not be written: {_reason(error)}") from error
    finally:
        with contextlib.suppress(OSError):  # it was renamed, or never came to be
            part.unlink()


def _reason(error: Exception) -> str:
    code = error.errno if isinstance(error, OSError) else None
    if code == errno.ENOSPC or "No space left" in str(error) or "os error 28" in str(error):
        return "the disk is full; free some space"
    if code in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "the folder may not be written to; choose another output_dir"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def with_hashes(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> dict[str, str]:
    """The metadata of a LoRA with sshs_model_hash, by which WebUI looks up a file whose metadata were edited, and
    sshs_legacy_hash."""
    training = {key: value for key, value in metadata.items() if key.startswith("ss_")}
    ready = {key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()}
    data = safetensors.torch.save(ready, training)
    payload = memoryview(data)[8 + int.from_bytes(data[:8], "little") :]
    legacy = data[OLD_HASH_START : OLD_HASH_START + OLD_HASH_LENGTH]
    return {
        **metadata,
        "sshs_model_hash": hashlib.sha256(payload).hexdigest(),
        "sshs_legacy_hash": hashlib.sha256(legacy).hexdigest()[:8],
    }


def old_model_hash(path: Path) -> str:
    """Eight hex digits over a piece of the file, as old WebUIs name a checkpoint."""
    with path.open("rb") as file:
        file.seek(OLD_HASH_START)
        return hashlib.sha256(file.read(OLD_HASH_LENGTH)).hexdigest()[:8]


def model_hash(path: Path) -> str:
    """SHA-256 of the whole file; several seconds for a checkpoint."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 22):
            digest.update(piece)
    return digest.hexdigest()
