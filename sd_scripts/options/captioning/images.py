"""Options of captioning: the images, the model, and what happens to captions that are there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from sd_scripts.formats.images.folder_names import is_ending
from sd_scripts.options.captioning.known_models import KNOWN_MODELS
from sd_scripts.options.spec import OptionGroup, option, optional, path_option, switch


class CaptionImagesOptions(OptionGroup, title="Images"):
    """The images to caption, and what happens to captions that exist."""

    train_data_dir: str | None = path_option("Folder of the images.", label="Image folder")
    image_list: str | None = path_option(
        "Text file with the path of an image in each line: only these of the folder are captioned.", label="Image list"
    )
    recursive: bool = switch("Include images in subfolders.", label="Recursive")
    caption_extension: str = option(".txt", "Extension of the caption files.", label="Caption extension")
    existing: Literal["skip", "append", "prepend", "replace"] = option(
        "skip",
        "Images that have a caption: skip them, append to it, put the new text before it, or replace it.",
        label="Existing captions",
    )
    overwrite_hand: bool = switch(
        "Also change captions that were written by hand or by a different program.", label="Also hand-written ones"
    )
    trigger: str | None = optional(
        "Trigger word: the first word of every caption, and {trigger} in a prompt.", label="Trigger word"
    )
    try_images: int = option(
        0,
        "Caption only this many images, print the results next to the existing captions, and write nothing; 0 captions "
        "all.",
        within=(0, 100),
        label="Try on",
    )

    def check(self) -> Iterable[tuple[str, str]]:
        if not self.train_data_dir and not self.image_list:
            yield "train_data_dir", "not set; choose the folder of the images"
        if not is_ending(self.caption_extension):
            yield "caption_extension", f"{self.caption_extension!r} is not a file extension; use .txt"


class CaptionModelOptions(OptionGroup, title="Model"):
    """Which model writes the captions, and where it runs."""

    method: Literal["tagger", "captioner", "endpoint"] = option(
        "tagger",
        "A tagger gives tags (WD14 and its successors), a captioner text (Florence-2, BLIP-2, Qwen-VL); an endpoint is "
        "a server with OpenAI's interface, on this machine or elsewhere.",
        label="Method",
    )
    model: str | None = optional(
        "Repository on the Hub, or folder of the model; with an endpoint its name for the model. Default: the first "
        "suggestion of the method.",
        suggestions=tuple(model.repo for model in KNOWN_MODELS),
        label="Model",
    )
    model_dir: str | None = path_option(
        "Folder for downloaded models. Default: the cache of the Hub.", label="Download folder"
    )
    download: bool = switch(
        "Download the model if it is not on this machine; without this, its size and licence are shown first.",
        label="Download the model",
    )
    batch_size: int = option(4, "Images per batch of a tagger or captioner.", within=(1, 512), label="Batch size")
    device: str | None = optional("Device that computes, such as cpu. Default: the GPU, if there is one.")
    family: str | None = optional(
        "Name of the model family that is trained with the captions; it decides between prose and tags.",
        label="Captions for",
    )
