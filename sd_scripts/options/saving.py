"""Options: saving, Hugging Face."""

import re
from collections.abc import Iterable
from typing import Literal

from sd_scripts.options.spec import OptionGroup, option

LONGEST_NAME = 180
"""Bytes: file systems take 255, and steps, states and endings are added to the name."""
WINDOWS_DEVICES = {"con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(10))}
"""No file can have such a name there, whatever ending follows."""
CONTROL_CHARACTER = re.compile(r"[\x00-\x1f\x7f]")
NO_UPLOAD = "nothing is uploaded; upload the saved file with `hf upload`"


class SavingOptions(OptionGroup, title="Saving"):
    """Where the results go, how often and in which form."""

    output_dir: str | None = option(
        None,
        "Folder for the results, made if it is not there. A relative one lies where the program was started.",
        label="Output folder",
        path=True,
    )
    output_name: str | None = option(
        None,
        "Name of the saved files without ending; if unset, they are called last.",
        label="Output name",
        placeholder="mycat",
    )
    overwrite: bool = option(
        False,
        "Replace the files and states of an earlier run of this output name. Otherwise they are kept under a name with "
        "its date. A run that resumes goes on with its own files either way.",
        label="Overwrite",
    )
    save_precision: Literal["float", "fp16", "bf16"] | None = option(
        None,
        "Number format in the file; fp16 halves its size. Unset keeps the precision of training.",
    )
    save_every_n_epochs: int | None = option(
        None, "Save after every n epochs.", within=(0, 1_000_000), zero_is_off=True
    )
    save_every_n_steps: int | None = option(None, "Save after every n steps.", within=(0, 10_000_000), zero_is_off=True)
    save_n_epoch_ratio: int | None = option(
        None,
        "Save about so many files in the whole run; takes the place of save_every_n_epochs.",
        label="Number of saves",
        within=(0, 1_000_000),
        zero_is_off=True,
    )
    save_last_n_epochs: int | None = option(
        None, "Keep only the files of the last n epochs.", within=(0, 1_000_000), zero_is_off=True
    )
    save_last_n_steps: int | None = option(
        None, "Keep only the files of the last n steps.", within=(0, 10_000_000), zero_is_off=True
    )

    def check(self) -> Iterable[tuple[str, str]]:
        if not self.output_dir:
            yield "output_dir", "no folder for the results is named; set it"
        if self.output_name and any(mark in self.output_name for mark in '/\\:*?"<>|'):
            yield (
                "output_name",
                f"{self.output_name!r} holds a character that file names cannot have; put folders in output_dir",
            )
        if self.output_name and len(self.output_name.encode()) > LONGEST_NAME:
            yield "output_name", f"is longer than {LONGEST_NAME} bytes; choose a shorter one"
        if self.output_dir and CONTROL_CHARACTER.search(self.output_dir):
            yield "output_dir", f"{self.output_dir!r} holds a control character; remove it"
        if self.output_name and CONTROL_CHARACTER.search(self.output_name):
            yield "output_name", f"{self.output_name!r} holds a control character or a line break; remove it"
        if self.output_name and (self.output_name.endswith(".") or not self.output_name.strip()):
            yield (
                "output_name",
                f"{self.output_name!r} is empty or ends with a dot; choose another name",
            )
        if self.output_name and self.output_name.partition(".")[0].strip().lower() in WINDOWS_DEVICES:
            yield "output_name", f"{self.output_name!r} is the name of a device on Windows; choose another"


class LoraFileOptions(OptionGroup, title="LoRA file"):
    """In which form a LoRA is saved."""

    save_model_as: Literal["ckpt", "pt", "safetensors"] = option(
        "safetensors",
        "File format. safetensors is what every program loads.",
        label="File format",
        methods=("lora",),
    )


class EmaOptions(OptionGroup, title="EMA"):
    """A moving average of what is trained, saved beside it: often better than the last step."""

    use_ema: bool = option(
        False,
        "Keep a moving average of the trained weights and save it beside each file, with -ema in its name.",
        label="EMA",
    )
    ema_decay: float = option(
        0.999,
        "How much of the average stays at each step: 0.999 looks back about 1,000 steps. At first it is less.",
        label="EMA decay",
        within=(0.0, 0.999999),
        shown_when="use_ema",
    )
    ema_update_interval: int = option(
        1,
        "Update the average every n steps; more than 1 pays where it lies in main memory.",
        label="EMA interval",
        within=(1, 100_000),
        shown_when="use_ema",
    )
    ema_device: Literal["gpu", "cpu"] = option(
        "gpu",
        "Where the average lies. In main memory it takes none of the GPU's, and each update waits for a copy.",
        label="EMA device",
        shown_when="use_ema",
    )


class HuggingFaceOptions(OptionGroup, title="Hugging Face"):
    """Your account on the Hugging Face Hub."""

    huggingface_token: str | None = option(
        None,
        "Token of your account, for models that need a login. It is handed to the run as HF_TOKEN and never saved.",
        label="Hugging Face token",
        secret=True,
    )
    huggingface_repo_id: str | None = option(None, "Repository that receives what is saved.", not_yet=NO_UPLOAD)
    huggingface_repo_type: str | None = option(None, "Type of that repository.", not_yet=NO_UPLOAD)
    huggingface_path_in_repo: str | None = option(None, "Folder in that repository.", not_yet=NO_UPLOAD)
    huggingface_repo_visibility: str | None = option(None, "public, otherwise private.", not_yet=NO_UPLOAD)
    save_state_to_huggingface: bool = option(False, "Upload states too.", not_yet=NO_UPLOAD)
    resume_from_huggingface: bool = option(
        False,
        "Read resume as the name of a repository.",
        not_yet="a state is read from a folder; download it and name the folder in resume",
    )
    async_upload: bool = option(False, "Upload while training goes on.", not_yet=NO_UPLOAD)
