"""The form with which the page publishes a run."""

from __future__ import annotations

from sd_scripts.options.spec import OptionGroup, option, optional, switch


class PublishOptions(OptionGroup, title="Publish"):
    """The model card of a run, and where it is uploaded to."""

    text: str = option("", "What the Hub shows. Edit it first; it is saved next to the file.", label="Model card")
    repo_id: str | None = optional(
        "Upload to this repository, which is created if it does not exist.",
        label="Repository",
        placeholder="me/my-lora",
    )
    token: str | None = optional(
        "A token with write access. Default: HF_TOKEN of the GUI, or its login.",
        label="Hugging Face token",
        secret="HF_TOKEN",
    )
    public: bool = switch("Let everyone see a repository that is created.", label="Make a new repository public")
