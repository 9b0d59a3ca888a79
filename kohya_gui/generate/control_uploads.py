"""Control images that the browser uploads: saved next to the images generated with them, and removed once unused."""

import contextlib
import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from sd_scripts.formats.atomic_files import atomic_file
from sd_scripts.formats.clips.mp4 import MP4
from sd_scripts.formats.disk import saving
from sd_scripts.formats.images.generated_files import read_generated
from sd_scripts.formats.images.image_files import read_with
from sd_scripts.formats.images.image_folders import readable_suffixes

CONTROL_FOLDER = "control_images"
"""Folder for uploaded control images, in the folder of the images."""
KEPT_SECONDS = 30 * 24 * 3600
"""Age at which an upload that no image names is removed: a form or a prompt may still name a younger one."""


def keep_control(folder: Path, name: str, content: bytes) -> Path:
    """Write an image into the folder, under its name and hash. Raises ValueError, one sentence, if it is not an image
    or cannot be written."""
    suffix = Path(name).suffix.lower()
    if suffix not in readable_suffixes():
        raise ValueError(f"{name or 'The file'} is not a PNG, JPEG or WebP file; convert it")
    try:
        read_with(content, lambda image: image.load())
    except Exception as error:  # broken files raise different errors by format
        raise ValueError(f"{name} cannot be read as an image; choose a PNG, JPEG or WebP file") from error
    stem = "".join(letter for letter in Path(name).stem if letter.isalnum() or letter in "-_ ")[:60].strip()
    path = folder / f"{stem or 'image'}-{_digest(content)}{suffix}"
    try:
        with saving(path), atomic_file(path) as part:
            part.write_bytes(content)
    except OSError as error:
        raise ValueError(f"image_dir: {error}") from error
    return path


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:8]


def _is_upload(path: Path) -> bool:
    """Return whether `keep_control` wrote a file; other files in its folder are the user's own."""
    return path.stem.endswith(f"-{_digest(path.read_bytes())}")


def remove_unused(image_dir: Path) -> None:
    """Remove uploads older than KEPT_SECONDS that no image in `image_dir`, or in a folder in it, was generated with.
    Files that cannot be read or removed stay."""
    before = time.time() - KEPT_SECONDS
    with contextlib.suppress(OSError):
        files = [path for path in (image_dir / CONTROL_FOLDER).iterdir() if path.is_file()]
        old = {path.name: path for path in files if path.stat().st_mtime < before and _is_upload(path)}
        if not old:
            return
        for name in _named_controls(image_dir):
            if used := old.pop(name, None):
                os.utime(used)  # so that the images are not all read again at the next upload
        for path in old.values():
            path.unlink()


def _named_controls(image_dir: Path) -> Iterator[str]:
    """Yield the names of the control images that images and clips were made with."""
    for path in (each for end in (".png", MP4) for each in (*image_dir.glob(f"*{end}"), *image_dir.glob(f"*/*{end}"))):
        try:
            parameters = read_generated(path).parameters
        except Exception:  # no image, or one without parameters
            continue
        ends = [parameters[name] for name in ("start_image", "end_image", "control_clip") if name in parameters]
        for control in [*(parameters.get("control_images") or ()), *ends]:
            yield Path(control.get("path") or control.get("name") or "").name
