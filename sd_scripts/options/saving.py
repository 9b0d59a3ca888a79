"""Options: saving, hugging face."""

from typing import Literal

from sd_scripts.options.spec import OptionGroup, option


class SavingOptions(OptionGroup, title="Saving"):
    """Where the results go, how often and in which form."""

    output_dir: str | None = option(None, "Destination folder.")
    output_name: str | None = option(None, "Base file name; default at/epoch/last.")
    save_model_as: Literal["ckpt", "pt", "safetensors"] = option("safetensors", "Container/layout of the output.")
    save_precision: Literal["float", "fp16", "bf16"] | None = option(
        None, "Dtype of saved tensors; unset keeps parameter dtype."
    )
    save_every_n_epochs: int | None = option(None, "Save period in epochs.")
    save_every_n_steps: int | None = option(None, "Save period in steps.")
    save_n_epoch_ratio: int | None = option(
        None, "Save about this many files in total; when > 0 it overwrites save_every_n_epochs."
    )
    save_last_n_epochs: int | None = option(None, "Retention window for epoch files.")
    save_last_n_steps: int | None = option(None, "Retention window (in steps) for step files.")


class HuggingFaceOptions(OptionGroup, title="Hugging Face"):
    """Upload of results to the Hugging Face Hub."""

    huggingface_repo_id: str | None = option(None, "Hub repository that receives saves.")
    huggingface_repo_type: str | None = option(None, "Hub repository type.")
    huggingface_path_in_repo: str | None = option(None, "Folder inside the repository.")
    huggingface_token: str | None = option(None, "Hub token.", secret=True)
    huggingface_repo_visibility: str | None = option(None, "public, otherwise private.")
    save_state_to_huggingface: bool = option(False, "Upload states too.")
    resume_from_huggingface: bool = option(False, "Interpret resume as repo_id/path:revision:repo_type.")
    async_upload: bool = option(False, "Upload in a background thread.")
