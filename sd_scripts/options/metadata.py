"""Options: metadata."""

from sd_scripts.options.spec import OptionGroup, option


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
        "Picture of it: a file, which is put into the metadata, or a data URL.",
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
