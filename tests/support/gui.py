"""Shared parts of the page's tests, with a browser and without."""

import json
import shlex
import struct
from pathlib import Path
from typing import Any

import psutil

from kohya_gui.runs.plan_process import PROGRAM
from sd_scripts.options.launch import LaunchOptions
from sd_scripts.settings.command_line import given_flags
from sd_scripts.settings.family_options import each_option
from sd_scripts.settings.reading import from_values
from sd_scripts.settings.settings import Script
from tests.support.scripts import SDXL_LORA

SIX = {
    "compile": True,
    "compile_backend": "inductor",
    "compile_mode": "reduce-overhead",
    "compile_dynamic": "false",
    "compile_fullgraph": True,
    "compile_cache_size_limit": 64,
}
"""The six compile options, each but the backend other than its default."""


def planners() -> list[psutil.Process]:
    """Return the processes that make plans for this one."""
    living = [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]
    return [child for child in living if PROGRAM in child.cmdline()]


def settings_in(line: str, script: Script = SDXL_LORA) -> dict[str, Any]:
    """The arguments of a printed command: the flags of accelerate, and those of the script."""
    argv = shlex.split(line)
    at = next(at for at, word in enumerate(argv) if word.endswith(script.file))
    launch = {
        o.name: argv[:at][argv.index(f"--{o.name}") + 1]
        for o in each_option(LaunchOptions)
        if f"--{o.name}" in argv[:at]
    }
    return from_values(script, launch, given_flags(script, argv[at + 1 :]).values).changed()


def startable(folder: Path) -> dict[str, Any]:
    """Settings without problems, as far as headers and names show."""
    (folder / "data" / "10_cat").mkdir(parents=True, exist_ok=True)
    (folder / "data" / "10_cat" / "one.png").touch()
    keys = ("conditioner.embedders.1.model.ln_final.weight", "first_stage_model.decoder.conv_in.weight")
    empty = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    header = json.dumps(dict.fromkeys(keys, empty)).encode()
    (folder / "m.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    return {
        "pretrained_model_name_or_path": str(folder / "m.safetensors"),
        "train_data_dir": str(folder / "data"),
        "resolution": "64",
    }
