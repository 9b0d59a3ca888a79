"""Try everything without a download: a miniature SDXL checkpoint, drawn pictures, and settings to train on them.

python -m sd_scripts.demo [--folder demo] [--make]
"""

import argparse
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sd_scripts.options.toml_files import write_toml

SETTINGS: dict[str, Any] = {
    "output_name": "demo_lora",
    "caption_extension": ".txt",
    "resolution": "256,256",
    "train_batch_size": 2,
    "max_data_loader_n_workers": 0,
    "cache_latents": True,
    "cache_text_encoder_outputs": True,
    "network_module": "networks.lora",
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
"""What the demo trains with; the paths are added where the demo is made."""
TRAINER = Path(__file__).with_name("sdxl_train_network.py")


@dataclass(frozen=True)
class Demo:
    """What `make` has made."""

    config: Path
    """Settings to train with; the GUI opens them too."""
    lora: Path
    """Where the trained LoRA will be."""


def make(folder: Path) -> Demo:
    """A checkpoint with its tokenizers, pictures with captions, and `demo.toml`, all below `folder`: about 22 MB."""
    from sd_scripts.families.sdxl.tiny import write_miniature  # torch is slow to import: --help need not wait

    folder = folder.expanduser().resolve()
    miniature = write_miniature(folder)
    output_dir = folder / "output"
    paths = {
        "pretrained_model_name_or_path": str(miniature.checkpoint),
        "train_data_dir": str(miniature.data_dir),
        "output_dir": str(output_dir),
    }
    config = folder / "demo.toml"
    write_toml(config, {**SETTINGS, **paths})
    return Demo(config, output_dir / f"{SETTINGS['output_name']}.safetensors")


def main(argv: list[str] | None = None) -> int:
    """Make the demo and, without --make, train on it; returns the exit status of the training."""
    parser = argparse.ArgumentParser(description="Train a LoRA on a miniature SDXL model; nothing is downloaded.")
    parser.add_argument("--folder", type=Path, default=Path("demo"), help="where the model and the pictures go")
    parser.add_argument("--make", action="store_true", help="only make them, with demo.toml, and do not train")
    arguments = parser.parse_args(argv)

    demo = make(arguments.folder)
    print(f"Made a miniature SDXL model and twelve pictures; the settings are in {demo.config}")
    if arguments.make:
        return 0
    command = [sys.executable, str(TRAINER), "--config_file", str(demo.config)]
    one_thread = {"OMP_NUM_THREADS": "1", **os.environ}  # as fast at this size, and much faster on a busy machine
    status = subprocess.run(command, env=one_thread, check=False).returncode
    if status == 0:
        print(f"The LoRA is {demo.lora}")
        print("Next: `bash gui.sh`, open demo.toml there, then put your own SDXL model and pictures in its place.")
    return status


if __name__ == "__main__":
    sys.exit(main())
