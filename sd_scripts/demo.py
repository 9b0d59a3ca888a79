"""Try everything without a download: a miniature model, drawn pictures, and settings to train on them.

python -m sd_scripts.demo [sdxl | flux] [--folder FOLDER] [--make]
"""

import argparse
import os
import subprocess
import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from sd_scripts.options.catalog import FAMILY_TITLES, script_for
from sd_scripts.options.flux import RECOMMENDED
from sd_scripts.options.toml_files import write_toml

COMMON: dict[str, Any] = {
    "output_name": "demo_lora",
    "caption_extension": ".txt",
    "resolution": "256,256",
    "train_batch_size": 2,
    "max_data_loader_n_workers": 0,
    "cache_latents": True,
    "cache_text_encoder_outputs": True,
    "network_dim": 8,
    "network_alpha": 8.0,
    "network_train_unet_only": True,
    "learning_rate": 1e-3,
    "optimizer_type": "AdamW",
    "lr_scheduler": "constant",
    "max_train_steps": 60,
    "seed": 1,
    "save_model_as": "safetensors",
    "compile": True,
}
OF_FAMILY: dict[str, dict[str, Any]] = {
    "sdxl": {"network_module": "networks.lora"},
    "flux": {
        "network_module": "networks.lora_flux",
        "t5xxl_max_token_length": 64,
        **RECOMMENDED,
    },
}
"""What the demo of each family trains with; the paths are added where the demo is made."""
FOLDERS = {"sdxl": Path("demo"), "flux": Path("demo/flux")}


@dataclass(frozen=True)
class Demo:
    """What `make` has made."""

    config: Path
    """Settings to train with; the GUI opens them too."""
    lora: Path
    """Where the trained LoRA will be."""


def make(folder: Path, family: str = "sdxl") -> Demo:
    """A model with its tokenizers, pictures with captions, and `demo.toml`, all below `folder`: at most 22 MB."""
    tiny = import_module(f"sd_scripts.families.{family}.tiny")  # torch is slow to import: --help need not wait

    folder = folder.expanduser().resolve()
    miniature = tiny.write_miniature(folder)
    output_dir = folder / "output"
    paths = {**miniature.files, "train_data_dir": miniature.data_dir, "output_dir": output_dir}
    config = folder / "demo.toml"
    write_toml(config, {**COMMON, **OF_FAMILY[family], **{option: str(path) for option, path in paths.items()}})
    return Demo(config, output_dir / f"{COMMON['output_name']}.safetensors")


def main(argv: list[str] | None = None) -> int:
    """Make the demo and, without --make, train on it; returns the exit status of the training."""
    parser = argparse.ArgumentParser(description="Train a LoRA on a miniature model; nothing is downloaded.")
    parser.add_argument("family", nargs="?", choices=list(OF_FAMILY), default="sdxl", help="default: sdxl")
    parser.add_argument(
        "--folder", type=Path, help="where the model and the pictures go; default: demo, for flux demo/flux"
    )
    parser.add_argument("--make", action="store_true", help="only make them, with demo.toml, and do not train")
    arguments = parser.parse_args(argv)
    family, title = arguments.family, FAMILY_TITLES[arguments.family]

    demo = make(arguments.folder or FOLDERS[family], family)
    print(f"Made a miniature {title} model and twelve pictures; the settings are in {demo.config}", flush=True)
    if arguments.make:
        return 0
    trainer = Path(__file__).with_name(script_for(family, "lora").file)
    command = [sys.executable, str(trainer), "--config_file", str(demo.config)]
    one_thread = {"OMP_NUM_THREADS": "1", **os.environ}  # as fast at this size, and much faster on a busy machine
    status = subprocess.run(command, env=one_thread, check=False).returncode
    if status == 0:
        print(f"The LoRA is {demo.lora}")
        print(f"Next: `bash gui.sh`, open demo.toml there, then put your own {title} model and pictures in its place.")
    return status


if __name__ == "__main__":
    sys.exit(main())
