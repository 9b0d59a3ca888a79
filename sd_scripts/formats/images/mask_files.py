"""Finds the mask of each image by its name, and names the file of a new one."""

from collections.abc import Iterable
from pathlib import Path

from sd_scripts.formats.images.folder_names import MASKS, ByName, existing_folder, numbered
from sd_scripts.formats.images.image_folders import find_images


def find_masks(root: Path, subset: str, images: Iterable[Path]) -> dict[Path, Path]:
    """Return the mask of each image that has one: of the same stem, in the folder of masks or, preferred, in its
    subfolder named like the subset."""
    folders = (root, existing_folder(root / subset))
    masks = {path.stem: path for folder in folders if folder.is_dir() for path in find_images(folder)}
    lookup = ByName(masks)
    return {image: mask for image in images if (mask := lookup.get(image.stem))}


def usual_root(folder: Path) -> Path:
    """Return the folder for the masks of a folder of images, where none is named."""
    return (folder.parent if numbered(folder.name) else folder) / MASKS


def new_mask(root: Path, image: Path) -> Path:
    """Return the file for the mask of an image that has none; images of other folders may have the same name."""
    return existing_folder(root / image.parent.name) / f"{image.stem}.png"
