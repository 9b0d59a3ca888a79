"""Options: saving, Hugging Face."""

import re
from collections.abc import Iterable
from typing import Literal

from sd_scripts.options.spec import OptionGroup, count, option, optional, path_option, switch

LONGEST_NAME = 180
"""In bytes: file systems allow 255, and the step, -state and the extension are added to the name."""
WINDOWS_DEVICES = {"con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(10))}
"""Reserved names that no file on Windows can have, whatever its extension."""
CONTROL_CHARACTER = re.compile(r"[\x00-\x1f\x7f]")
REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")
"""A repository of the Hub: its owner and its name."""
SD_SCRIPTS, DIFFUSERS, BOTH = "sd-scripts", "diffusers", "both"
"""Key names of saved LoRA files."""


class SavingOptions(OptionGroup, title="Saving"):
    """Where results are saved, how often, and in which precision."""

    output_dir: str | None = path_option(
        "Folder for the results, created if missing. A relative path starts at the folder the program was started in.",
        label="Output folder",
    )
    output_name: str | None = optional(
        "Name of the saved files, without extension. Default: last.", label="Output name", placeholder="mycat"
    )
    overwrite: bool = switch(
        "Replace the files and states of an earlier run with this output name. Otherwise they are kept and renamed "
        "with their date. A resumed run continues with its own files either way.",
        label="Overwrite",
    )
    save_precision: Literal["float", "fp16", "bf16"] | None = optional(
        "Precision of the saved weights; fp16 and bf16 halve the file size. Default: the precision of training."
    )
    save_every_n_epochs: int | None = count("Save after every n epochs.", most=1_000_000)
    save_every_n_steps: int | None = count("Save after every n steps.")
    save_n_epoch_ratio: int | None = count(
        "Save about this many files over the whole run. Replaces save_every_n_epochs.",
        label="Number of saves",
        most=1_000_000,
    )
    save_last_n_epochs: int | None = count("Keep only the files of the last n epochs.", most=1_000_000)
    save_last_n_steps: int | None = count("Keep only the files of the last n steps.")

    def check(self) -> Iterable[tuple[str, str]]:
        if not self.output_dir:
            yield "output_dir", "not set; choose a folder for the results"
        if self.output_name and any(mark in self.output_name for mark in '/\\:*?"<>|'):
            yield (
                "output_name",
                f"{self.output_name!r} has a character that file names cannot contain; put folders in output_dir",
            )
        if self.output_name and len(self.output_name.encode()) > LONGEST_NAME:
            yield "output_name", f"is longer than {LONGEST_NAME} bytes; choose a shorter one"
        if self.output_dir and CONTROL_CHARACTER.search(self.output_dir):
            yield "output_dir", f"{self.output_dir!r} has a control character; remove it"
        if self.output_name and CONTROL_CHARACTER.search(self.output_name):
            yield "output_name", f"{self.output_name!r} has a control character or a line break; remove it"
        if self.output_name and (self.output_name.endswith(".") or not self.output_name.strip()):
            yield "output_name", f"{self.output_name!r} is empty or ends with a dot; choose another name"
        if self.output_name and self.output_name.partition(".")[0].strip().lower() in WINDOWS_DEVICES:
            yield "output_name", f"{self.output_name!r} is a reserved name on Windows; choose another"


class LoraFileOptions(OptionGroup, title="LoRA file", methods=("lora",)):
    """The format in which a LoRA is saved."""

    save_model_as: Literal["ckpt", "pt", "safetensors"] = option(
        "safetensors", "safetensors works in every program; choose ckpt or pt only for an old one.", label="File format"
    )
    save_as_format: Literal["sd-scripts", "diffusers", "both"] = option(
        SD_SCRIPTS,
        "Key names of the saved LoRA. ComfyUI, WebUI and diffusers read the key names of sd-scripts; diffusers writes "
        "the key names of PEFT. With both, each file has a second one next to it, with -diffusers in its name.",
        label="Key names",
    )


class EmaOptions(OptionGroup, title="EMA", shown_when="use_ema"):
    """Save a moving average of the trained weights too; it is often better than the last step."""

    use_ema: bool = switch(
        "Keep a moving average of the trained weights and save it next to each file, with -ema in its name.",
        label="EMA",
    )
    ema_decay: float = option(
        0.999,
        "Fraction of the average kept at each step: 0.999 averages about 1,000 steps. It is lower at the start.",
        label="EMA decay",
        within=(0.0, 0.999999),
    )
    ema_update_interval: int = option(
        1,
        "Update the average every n steps. More than 1 saves time if the EMA device is cpu.",
        label="EMA interval",
        within=(1, 100_000),
    )
    ema_device: Literal["gpu", "cpu"] = option(
        "gpu", "Where the average is kept. cpu saves GPU memory, but each update waits for a copy.", label="EMA device"
    )


class HuggingFaceOptions(OptionGroup, title="Hugging Face"):
    """Your account on the Hugging Face Hub, and the repository that saved files are uploaded to."""

    huggingface_token: str | None = optional(
        "Access token for models that need a login and for uploads. Passed to the run as HF_TOKEN and never saved.",
        label="Hugging Face token",
        secret="HF_TOKEN",
    )
    huggingface_repo_id: str | None = optional(
        "Upload each saved file to this repository, which is created if it does not exist. A failed upload is reported "
        "and does not end the run.",
        label="Upload to repository",
        placeholder="me/my-lora",
    )
    huggingface_repo_type: Literal["model", "dataset", "space"] | None = optional(
        "Type of that repository. Default: model.", label="Repository type"
    )
    huggingface_path_in_repo: str | None = optional(
        "Folder in that repository. Default: its root.", label="Folder in repository"
    )
    huggingface_repo_visibility: Literal["private", "public"] | None = optional(
        "Who can see a repository that is created. Default: private.", label="Visibility"
    )
    save_state_to_huggingface: bool = switch(
        "Upload saved states too. They include the optimizer, so they are larger than the file.", label="Upload states"
    )
    resume_from_huggingface: bool = switch(
        "Read resume as the name of a repository.",
        not_yet="a state is read from a local folder; download it and set resume to that folder",
    )
    async_upload: bool = switch(
        "Upload while training continues.", not_yet="uploads always run alongside the training; leave it out"
    )

    def check(self) -> Iterable[tuple[str, str]]:
        if self.huggingface_repo_id and not REPOSITORY.fullmatch(self.huggingface_repo_id):
            yield (
                "huggingface_repo_id",
                f"{self.huggingface_repo_id!r} is not a repository name; write owner/name, such as me/my-lora",
            )
