"""Options of the image tools: which images, what happens to their copies, and the models that find things in them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

from sd_scripts.formats.images.folder_names import is_ending
from sd_scripts.options.images.known_models import IMAGE_MODELS
from sd_scripts.options.spec import OptionGroup, option, optional, path_option, switch

COLOUR = re.compile(r"#[0-9a-fA-F]{6}")


class ImageToolOptions(OptionGroup, title="Images"):
    """The images, what is done, and where the copies go; originals are never changed."""

    task: Literal["convert", "bars", "crop", "resize", "upscale", "mask"] = option(
        "convert",
        "What is done: convert odd formats, remove bars, crop to faces or to the area without text, resize, upscale "
        "with a model, or make masks.",
        label="Task",
    )
    train_data_dir: str | None = path_option("Folder of the images.", label="Image folder")
    image_list: str | None = path_option(
        "Text file with the path of an image in each line: only these of the folder.", label="Image list"
    )
    recursive: bool = option(True, "Include images in subfolders.", label="Subfolders")
    output_dir: str | None = path_option(
        "Folder for the copies, which must not exist yet. Default: next to the image folder; masks go into the folder "
        "masks in it.",
        label="Folder for copies",
    )
    conditioning_data_dir: str | None = path_option(
        "Folder of masks that are cropped and resized with their images. Default: masks in the image folder.",
        label="Mask folder",
    )
    caption_extension: str = option(".txt", "Extension of the caption files.", label="Caption extension")
    try_images: int = option(0, "Try this many images, and write nothing; 0 does all.", within=(0, 100), label="Try on")

    def check(self) -> Iterable[tuple[str, str]]:
        if not self.train_data_dir and not self.image_list:
            yield "train_data_dir", "not set; choose the folder of the images"
        if not is_ending(self.caption_extension):
            yield "caption_extension", f"{self.caption_extension!r} is not a file extension; use .txt"


class CopyOptions(OptionGroup, title="Copies"):
    """The files that are written."""

    image_format: Literal["png", "jpeg", "webp"] = option(
        "png", "Format of changed images; jpeg has no transparency.", label="Format"
    )
    quality: int = option(95, "Quality of jpeg and webp; 100 makes webp lossless.", within=(1, 100), label="Quality")
    frames: int = option(
        1,
        "Images made of an animated file, evenly spaced; 1 is its first.",
        within=(1, 1000),
        label="Frames",
    )


class CropOptions(OptionGroup, title="Crop"):
    """What an image is cropped to."""

    crop_to: Literal["faces", "text_free"] = option(
        "faces", "Crop to faces, or to the largest area without text.", label="Crop to"
    )
    faces: Literal["largest", "all", "each"] = option(
        "largest",
        "Faces of an image: one crop around the largest or around all, or one crop for each.",
        label="Faces",
    )
    margin: float = option(0.6, "Space around a face, in sizes of the face.", within=(0.0, 10.0), label="Margin")
    square: bool = switch("Make crops around faces square, as far as the image reaches.", label="Square")
    min_kept: float = option(
        0.3,
        "Leave an image out if less than this share of its area is without text.",
        within=(0.0, 1.0),
        label="Smallest area",
    )
    min_face: int = option(32, "Faces with fewer pixels a side are ignored.", within=(1, 4096), label="Smallest face")


class SizeOptions(OptionGroup, title="Size"):
    """The size of the copies."""

    resize_by: Literal["area", "longest", "shortest"] = option(
        "area",
        "What size means: the area of a square with this side, as buckets have, the longest side or the shortest side.",
        label="Resize by",
    )
    size: int = option(1024, "Pixels, as resize_by says.", within=(16, 8192), label="Size")
    enlarge: bool = switch("Also enlarge images that are smaller, without a model.", label="Enlarge")
    upscale_model: str | None = path_option(
        "File of an upscaling model, .safetensors or .pth; images smaller than size are upscaled with it.",
        label="Upscaling model",
    )
    tile: int = option(
        512, "Pixels a side that are upscaled together; fewer need less memory.", within=(32, 4096), label="Tile"
    )


class MaskOptions(OptionGroup, title="Masks"):
    """What is trained: white in the mask; black is left out."""

    mask_from: Literal["background", "faces", "colour", "alpha"] = option(
        "background",
        "Leave out the background, train faces alone, leave out a colour, or use the transparency of the image.",
        label="Masks from",
    )
    colour: str = option("#00ff00", "Colour that is left out, as #rrggbb.", label="Colour")
    tolerance: int = option(
        40, "How far a colour may be from it, from 0 to 255 in each channel.", within=(0, 255), label="Tolerance"
    )
    invert: bool = switch("Swap what is trained and what is left out.", label="Invert")
    grow: float = option(
        0.0,
        "Widen the white area by this share of the longer side; less than 0 narrows it.",
        within=(-0.5, 0.5),
        label="Grow",
    )
    feather: float = option(
        0.0, "Soften the edge over this share of the longer side.", within=(0.0, 0.5), label="Feather"
    )
    floor: float = option(
        0.0,
        "Weight of what is left out, from 0 to 1: 0.1 still trains it a little.",
        within=(0.0, 1.0),
        label="Weight outside",
    )
    save_as: Literal["folder", "alpha"] = option(
        "folder",
        "Files in a folder, for conditioning_data_dir with masked_loss; or the transparency of copies, for alpha_mask.",
        label="Save as",
    )

    def check(self) -> Iterable[tuple[str, str]]:
        if not COLOUR.fullmatch(self.colour):
            yield "colour", f"{self.colour!r} is not a colour; write it as #rrggbb, such as #00ff00"


class ImageModelOptions(OptionGroup, title="Model"):
    """The model that finds faces, text or the background."""

    model: str | None = optional(
        "Repository on the Hub, folder or .onnx file of the model. Default: the first suggestion of the task.",
        suggestions=tuple(model.repo for model in IMAGE_MODELS),
        label="Model",
    )
    model_dir: str | None = path_option(
        "Folder for downloaded models. Default: the cache of the Hub.", label="Download folder"
    )
    download: bool = switch(
        "Download the model if it is not on this machine; without this, its size and licence are shown first.",
        label="Download the model",
    )
    confidence: float = option(
        0.6, "Confidence from which a face or text counts.", within=(0.05, 1.0), label="Confidence"
    )
    device: str | None = optional("Device that upscales, such as cpu. Default: the GPU, if there is one.")
