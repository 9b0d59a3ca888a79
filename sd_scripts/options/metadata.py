"""Options: metadata of the saved file."""

import base64
import mimetypes
from pathlib import Path

from sd_scripts.options.spec import OptionGroup, optional, path_option, switch

LARGEST_THUMBNAIL = 10_000_000
"""In bytes. Kept small, since programs read the metadata of every model that they list."""


class MetadataOptions(OptionGroup, title="Metadata"):
    """Information stored in the saved file."""

    metadata_title: str | None = optional("Title of the model. Default: output_name.", label="Title")
    metadata_author: str | None = optional("Creator of the model.", label="Author")
    metadata_description: str | None = optional("What the model does.", label="Description")
    metadata_license: str | None = optional("Terms under which the model may be used.", label="Licence")
    metadata_tags: str | None = optional("Search keywords, separated by commas.", label="Tags")
    metadata_usage_hint: str | None = optional("Advice on how to use the model.", label="Usage hint")
    metadata_thumbnail: str | None = path_option(
        "Preview image: a file, which is embedded in the metadata, or a data URL.", label="Thumbnail"
    )
    metadata_merged_from: str | None = optional("Models that this one was merged from.", label="Merged from")
    metadata_trigger_phrase: str | None = optional(
        "Words in a prompt that activate the trained concept.", label="Trigger phrase"
    )
    metadata_preprocessor: str | None = optional("Preprocessor that the model needs.", label="Preprocessor")
    metadata_is_negative_embedding: str | None = optional(
        "Whether the file is an embedding for negative prompts.", label="Negative embedding"
    )
    training_comment: str | None = optional("Note to yourself, stored in the file.", label="Comment")
    no_metadata: bool = switch(
        "Keep settings, folder names and captions out of the saved file.", label="Leave out training details"
    )


def thumbnail_url(thumbnail: str) -> str:
    """Return an image file as a data URL; a data URL is returned unchanged."""
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
        raise ValueError(f"metadata_thumbnail: '{thumbnail}' is neither an image file nor a data URL; choose an image")
    if len(data) > LARGEST_THUMBNAIL:
        raise ValueError(f"metadata_thumbnail: '{thumbnail}' is larger than 10 MB; choose a smaller image")
    return f"data:{kind};base64,{base64.b64encode(data).decode('ascii')}"
