"""Options: metadata."""

import base64
import mimetypes
from pathlib import Path

from sd_scripts.options.spec import OptionGroup, option

LARGEST_THUMBNAIL = 10_000_000
"""Bytes: programs read the metadata of each model that they list."""


class MetadataOptions(OptionGroup, title="Metadata"):
    """What the saved file says of itself."""

    metadata_title: str | None = option(None, "Title of the file; unset is output_name.", label="Title")
    metadata_author: str | None = option(None, "Who made it.", label="Author")
    metadata_description: str | None = option(None, "What it does.", label="Description")
    metadata_license: str | None = option(None, "How it may be used.", label="Licence")
    metadata_tags: str | None = option(None, "Words to find it by, with commas between.", label="Tags")
    metadata_usage_hint: str | None = option(None, "How to use it.", label="Usage hint")
    metadata_thumbnail: str | None = option(
        None,
        "Image of it: a file, which is put into the metadata, or a data URL.",
        label="Thumbnail",
        path=True,
    )
    metadata_merged_from: str | None = option(None, "Models it was merged from.", label="Merged from")
    metadata_trigger_phrase: str | None = option(None, "Words that call it up in a prompt.", label="Trigger phrase")
    metadata_preprocessor: str | None = option(None, "Preprocessor it needs.", label="Preprocessor")
    metadata_is_negative_embedding: str | None = option(
        None, "Whether it is an embedding for negative prompts.", label="Negative embedding"
    )
    training_comment: str | None = option(None, "A note to yourself, kept in the file.", label="Comment")
    no_metadata: bool = option(
        False,
        "Tell as little as possible: settings, folder names and captions stay out of the file.",
        label="Leave out the training details",
    )


def thumbnail_url(thumbnail: str) -> str:
    """An image file as text that a browser shows; a data URL is given back as it is."""
    if thumbnail.startswith("data:"):
        return thumbnail
    path = Path(thumbnail)
    kind = mimetypes.guess_type(path.name)[0] or ""
    try:
        is_image = kind.startswith("image/") and path.is_file()
        data = path.read_bytes() if is_image else b""
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ValueError(f"metadata_thumbnail: '{thumbnail}' cannot be read: {why}") from None
    if not is_image:
        raise ValueError(f"metadata_thumbnail: '{thumbnail}' is neither an image file nor a data URL; name an image")
    if len(data) > LARGEST_THUMBNAIL:
        raise ValueError(f"metadata_thumbnail: '{thumbnail}' is larger than 10 MB; choose a smaller image")
    return f"data:{kind};base64,{base64.b64encode(data).decode('ascii')}"
