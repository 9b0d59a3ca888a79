"""Options: metadata."""

from sd_scripts.options.spec import OptionGroup, option


class MetadataOptions(OptionGroup, title="Metadata"):
    """What the saved file says of itself."""

    metadata_title: str | None = option(None, "modelspec.title; falls back to output_name.")
    metadata_author: str | None = option(None, "modelspec.author.")
    metadata_description: str | None = option(None, "modelspec.description.")
    metadata_license: str | None = option(None, "modelspec.license.")
    metadata_tags: str | None = option(None, "modelspec.tags, comma separated.")
    metadata_usage_hint: str | None = option(None, "modelspec.usage_hint.")
    metadata_thumbnail: str | None = option(None, "modelspec.thumbnail; a file path is converted into a data URL.")
    metadata_merged_from: str | None = option(None, "modelspec.merged_from.")
    metadata_trigger_phrase: str | None = option(None, "modelspec.trigger_phrase.")
    metadata_preprocessor: str | None = option(None, "modelspec.preprocessor.")
    metadata_is_negative_embedding: str | None = option(None, "modelspec.is_negative_embedding.")
    training_comment: str | None = option(None, "Free text stored as ss_training_comment.")
    no_metadata: bool = option(False, "Reduce ss_* metadata to the minimum key set.")
