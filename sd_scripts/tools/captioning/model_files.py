"""The files of a captioning model: in a folder, in the cache, or downloaded once somebody who knows the size agreed."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sd_scripts.families.cards.model_file import is_hub_id
from sd_scripts.formats.disk import format_bytes, free_bytes
from sd_scripts.library.files.hub import hub_reason
from sd_scripts.options.captioning.known_models import KNOWN_MODELS, KnownModel, known_model

CAPTIONER_FILES = ("*.json", "*.txt", "*.jinja", "*.model", "*.safetensors")
"""Code in a repository is never downloaded."""
PICKLES = ("*.json", "*.txt", "*.jinja", "*.model", "pytorch_model*.bin")
"""Of a repository without safetensors."""


def model_folder(
    name: str,
    files: Sequence[str],
    *,
    model_dir: str | None,
    download: bool,
    say: Callable[[str], None],
    known: Sequence[KnownModel] = KNOWN_MODELS,
) -> Path:
    """Return the folder with a model's files (names or patterns).

    `say` prints size and licence before a download. Raises ValueError, one sentence, if the model is neither here nor
    may be downloaded.
    """
    folder = Path(name).expanduser()
    if folder.is_dir():
        return _complete(folder, files)
    if folder.is_file():
        raise ValueError(f"model: '{name}' is a file; name the folder that contains it")
    if not is_hub_id(name):
        raise ValueError(f"model: folder not found: '{name}'")
    found = _on_this_machine(name, files, model_dir)
    if found is not None:
        return _complete(found, files)
    if not download:
        raise ValueError(f"model: '{name}' is not on this machine; {offer(name, known)}; turn on download to get it")
    return _complete(_downloaded(name, files, model_dir, say), files)


def offer(name: str, known: Sequence[KnownModel] = KNOWN_MODELS) -> str:
    """Return size and licence of a model, in words."""
    if (model := known_model(name, known)) is None:
        return "its size and licence are on its page of the Hub"
    return f"it is a download of {model.size} under the licence {model.licence}"


def _on_this_machine(name: str, files: Sequence[str], model_dir: str | None) -> Path | None:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        found = snapshot_download(name, allow_patterns=list(files), local_files_only=True, cache_dir=model_dir)
    except (LocalEntryNotFoundError, OSError, ValueError):
        return None
    return Path(found) if not missing_files(Path(found), files) else None


def _downloaded(name: str, files: Sequence[str], model_dir: str | None, say: Callable[[str], None]) -> Path:
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()
    try:
        licence = getattr(HfApi().model_info(name).card_data, "license", None)
        plan: Any = snapshot_download(name, allow_patterns=list(files), cache_dir=model_dir, dry_run=True)
    except Exception as error:  # the Hub's and the connection's
        raise ValueError(f"model: '{name}' cannot be downloaded: {hub_reason(error)}") from error
    size = sum(file.file_size or 0 for file in plan if file.will_download)
    say(f"Downloading {name}: {format_bytes(size)}, licence: {licence or 'not stated'}")
    free = free_bytes(Path(model_dir or Path.home()))
    if free is not None and free < size:
        raise ValueError(f"model_dir: {format_bytes(size)} are needed and {format_bytes(free)} are free")
    try:
        return Path(snapshot_download(name, allow_patterns=list(files), cache_dir=model_dir))
    except Exception as error:  # the disk's, too
        raise ValueError(f"model: '{name}' cannot be downloaded: {hub_reason(error)}") from error


def _complete(folder: Path, files: Sequence[str]) -> Path:
    if missing := missing_files(folder, files):
        raise ValueError(f"model: '{folder}' contains no {missing[0]}; choose the folder of a model of this method")
    return folder


def missing_files(folder: Path, files: Sequence[str]) -> list[str]:
    """Return the names of required files that a folder lacks; patterns are not required."""
    return [name for name in files if "*" not in name and not (folder / name).is_file()]
