"""Try everything without a download: a miniature model, drawn images, and settings to train on them.

python -m sd_scripts.demo [sdxl | flux] [--full] [--folder FOLDER] [--make] [flags of the training script]
"""

import argparse
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from sd_scripts.formats.toml_files import write_toml
from sd_scripts.options.catalog import FAMILY_TITLES, script_for
from sd_scripts.options.flux import RECOMMENDED

COMMON: dict[str, Any] = {
    "caption_extension": ".txt",
    "resolution": "256,256",
    "train_batch_size": 2,
    "max_data_loader_n_workers": 0,
    "cache_latents": True,
    "cache_text_encoder_outputs": True,
    "optimizer_type": "AdamW",
    "lr_scheduler": "constant",
    "max_train_steps": 60,
    "seed": 1,
    "save_model_as": "safetensors",
    "compile": True,
}
OF_FAMILY: dict[str, dict[str, Any]] = {"sdxl": {}, "flux": {"t5xxl_max_token_length": 64, **RECOMMENDED}}
NETWORK = {"network_dim": 8, "network_alpha": 8.0, "network_train_unet_only": True}
OF_METHOD: dict[str, dict[str, dict[str, Any]]] = {
    "lora": {
        family: {"output_name": "demo_lora", "learning_rate": 1e-3, "network_module": module, **NETWORK}
        for family, module in (("sdxl", "networks.lora"), ("flux", "networks.lora_flux"))
    },
    "full": {
        family: {"output_name": "demo_model", "learning_rate": 2e-4, "fused_backward_pass": True}
        for family in OF_FAMILY
    },
}
"""Options of the demo by method and family; `make` adds the paths."""
FOLDERS = {"sdxl": Path("demo"), "flux": Path("demo/flux")}


def make(folder: Path, family: str = "sdxl", method: str = "lora") -> Path:
    """Write a model with its tokenizers, captioned images and `demo.toml` below `folder`, at most 22 MB.

    Returns the path of `demo.toml`, which training and the GUI read.
    """
    tiny = import_module(
        f"sd_scripts.families.{family}.tiny"
    )  # torch is slow to import, and --help should not wait for it

    folder = folder.expanduser().resolve()
    miniature = tiny.write_miniature(folder)
    paths = {**miniature.files, "train_data_dir": miniature.data_dir, "output_dir": folder / "output"}
    config = folder / "demo.toml"
    chosen = {**COMMON, **OF_FAMILY[family], **OF_METHOD[method][family]}
    write_toml(config, chosen | {option: str(path) for option, path in paths.items()})
    return config


def main(argv: list[str] | None = None) -> int:
    """Make the demo and, without --make, train on it; return the exit status of the training."""
    parser = argparse.ArgumentParser(
        description="Train a LoRA, or a whole model, on a miniature; nothing is downloaded.",
        usage="%(prog)s [sdxl | flux] [--full] [--folder FOLDER] [--make] [flags of the training script]",
        epilog="All other flags are passed to the training script and override demo.toml, for example "
        "--blocks_to_swap 2 or --no-compile.",
        allow_abbrev=False,
    )
    parser.add_argument("--full", action="store_true", help="train the whole model instead of a LoRA")
    parser.add_argument("--folder", type=Path, help="folder for the model and the images; default: demo or demo/flux")
    parser.add_argument("--make", action="store_true", help="only write the files, do not train")
    arguments, flags = parser.parse_known_args(argv)
    family = flags.pop(0) if flags and not flags[0].startswith("-") else "sdxl"
    if family not in OF_FAMILY:
        parser.error(f"'{family}' has no demo; choose {' or '.join(OF_FAMILY)}")
    if arguments.make and flags:
        parser.error(f"--make does not train, so {flags[0]} would do nothing; leave one of them out")

    method, title = "full" if arguments.full else "lora", FAMILY_TITLES[family]
    config = make(arguments.folder or FOLDERS[family], family, method)
    print(f"Made a miniature {title} model and twelve images; the settings are in {config}", flush=True)
    if arguments.make:
        return 0
    trainer = Path(__file__).with_name(script_for(family, method).file)
    command = [sys.executable, str(trainer), "--config_file", str(config), *flags]
    one_thread = {"OMP_NUM_THREADS": "1", **os.environ}  # as fast at this size, much faster on a busy machine
    status = subprocess.run(command, env=one_thread, check=False).returncode
    if status == 0:
        print(f"Next: `bash gui.sh`, open demo.toml there, then put your own {title} model and images in its place.")
    return status


if __name__ == "__main__":
    sys.exit(main())
