"""Try everything without a download: a miniature model, drawn images, and settings to train on them.

python -m sd_scripts.demo [FAMILY] [--full] [--folder FOLDER] [--make] [flags of the training script]
"""

import argparse
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sd_scripts.families.cards.registry import card_of, cards, module_of
from sd_scripts.formats.toml_files import write_toml
from sd_scripts.runs import process
from sd_scripts.runs.comparison import FOLDER, GRID
from sd_scripts.runs.folder import new_run_folder
from sd_scripts.runs.store import RunStore
from sd_scripts.settings.catalog import FAMILY_TITLES, script_for, script_path
from sd_scripts.testing import clips, trained

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
CLIP_SIZE, CLIP_FRAMES = (128, 96), 17
OF_CLIPS: dict[str, Any] = {
    "resolution": "128,96",
    "target_frames": str(CLIP_FRAMES),
    "sample_every_n_steps": 30,
    "sample_at_first": True,
}
"""Options of the demo of a family that is trained on clips."""
OF_METHOD: dict[str, dict[str, Any]] = {
    "lora": {
        **{"output_name": "demo_lora", "learning_rate": 1e-3, "network_dim": 8, "network_alpha": 8.0},
        "network_train_unet_only": True,
    },
    "full": {"output_name": "demo_model", "learning_rate": 2e-4, "fused_backward_pass": True},
}
"""Options of the demo by method; the family adds its own and `make` the paths."""
FAMILIES = [card.name for card in cards()]
DEFAULT = next(card.name for card in cards() if card.page.demo_first and trained.has(card.name))


def demo_folder(family: str) -> Path:
    """Return the folder that the demo of a family writes to unless another is named."""
    return Path("demo") if family == DEFAULT else Path("demo") / family


def family_named(name: str) -> str | None:
    """Return the family of this name, or else the first whose name begins or ends with it: `qwen`, `kontext`."""
    exact = [each for each in FAMILIES if each == name]
    part = [each for each in FAMILIES if each.startswith(f"{name}_")] + [
        each for each in FAMILIES if each.endswith(f"_{name}")
    ]
    return next(iter(exact + part), None)


def make(folder: Path, family: str = DEFAULT, method: str = "lora") -> Path:
    """Write a model with its tokenizers, captioned images and `demo.toml` below `folder`, at most 22 MB.

    Returns the path of `demo.toml`, which training and the GUI read.
    """
    if not trained.has(family):
        return make_untrained(folder, family, method)
    folder = new_folder(folder)
    paths = {**trained.copy_model(family, folder), **trained.write_data(family, folder)}
    own = card_of(family).page.trained_demo if method == "lora" else {}
    return write_settings(folder, family, method, paths, {**trained.OPTIONS, **trained.OF_METHOD[method], **own})


def make_untrained(folder: Path, family: str, method: str = "lora") -> Path:
    """Write the same for a model with random weights and twelve images, or clips; of clips it also generates two."""
    tiny = module_of(family, "tiny")  # imports torch, which --help should not wait for
    folder = new_folder(folder)
    miniature = tiny.write_miniature(folder)
    paths = {**miniature.files, "train_data_dir": miniature.data_dir}
    if not card_of(family).clips:
        return write_settings(folder, family, method, paths, {})
    width, height = CLIP_SIZE
    paths["train_data_dir"] = clips.write_clips(folder / "clips", CLIP_SIZE, CLIP_FRAMES)
    paths["sample_prompts"] = folder / "prompts.txt"
    prompts = (f"{each} --w {width} --h {height} --f {CLIP_FRAMES} --s 8 --d 1\n" for each in clips.captions()[:2])
    paths["sample_prompts"].write_text("".join(prompts), encoding="utf-8")
    return write_settings(folder, family, method, paths, OF_CLIPS)


def new_folder(folder: Path) -> Path:
    folder = folder.expanduser().resolve()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def write_settings(
    folder: Path, family: str, method: str, paths: Mapping[str, Path], changes: Mapping[str, Any]
) -> Path:
    """Write `demo.toml`; `changes` override the options of all demos."""
    card, config = card_of(family), folder / "demo.toml"
    network = {"network_module": card.network_modules[-1]} if method == "lora" else {}
    chosen = {**COMMON, **card.page.demo, **OF_METHOD[method], **network, **changes}
    files = {**paths, "output_dir": folder / "output"}
    write_toml(config, chosen | {option: str(path) for option, path in files.items()})
    return config


def show_result(run: Path, environment: Mapping[str, str]) -> int:
    """Generate an image of each prompt without and with the LoRA of a run, and print where they are; return the exit
    status."""
    tool = [sys.executable, "-m", "sd_scripts.tools.compare_checkpoints", str(run), "--strengths", "0", "1"]
    status = process.run_in_terminal(tool, environment)
    if status == 0:
        print(f"Before and after the training: {run / FOLDER / GRID}")
        add_to_list(run)
    return status


def add_to_list(run: Path) -> None:
    """Add a run of the demo to the list that the page shows, or print why that is not possible."""
    try:
        RunStore().find(run.parent.parent)
    except ValueError as error:
        print(f"The run is not in the tab Runs: {error}", file=sys.stderr)


def main(argv: list[str] | None = None) -> int:
    """Make the demo and, without --make, train on it; return the exit status of the training."""
    parser = argparse.ArgumentParser(
        description="Train a LoRA, or a whole model, on a miniature model; none is downloaded.",
        usage=f"%(prog)s [{' | '.join(FAMILIES)}] [--full] [--folder FOLDER] [--make] [flags of the training script]",
        epilog="All other flags are passed to the training script and override demo.toml, for example "
        "--blocks_to_swap 2 or --no-compile.",
        allow_abbrev=False,
    )
    parser.add_argument("--full", action="store_true", help="train the whole model instead of a LoRA")
    parser.add_argument("--folder", type=Path, help="folder for the model and the images; default: demo")
    parser.add_argument("--make", action="store_true", help="only write the files, do not train")
    arguments, flags = parser.parse_known_args(argv)
    name = flags.pop(0) if flags and not flags[0].startswith("-") else DEFAULT
    family = family_named(name)
    if family is None:
        parser.error(f"'{name}' has no demo; choose {' or '.join(FAMILIES)}")
    if arguments.make and flags:
        parser.error(f"--make does not train, so {flags[0]} would do nothing; leave one of them out")

    outside = dict(os.environ)  # importing inductor, as making a miniature does, would choose a cache for the training
    method, title = "full" if arguments.full else "lora", FAMILY_TITLES[family]
    folder = arguments.folder or demo_folder(family)
    try:
        config = make(folder, family, method)
    except OSError as error:
        reason = error.strerror or error
        parser.error(f"--folder: '{folder}' cannot be written ({reason}); choose a different folder")
    print(f"Made a miniature {title} model and its images; the settings are in {config}", flush=True)
    if arguments.make:
        return 0
    trainer = script_path(script_for(family, method))
    shows = method == "lora" and trained.has(family) and not any(flag.startswith("--run_dir") for flag in flags)
    run = new_run_folder(config.parent / "output" / "runs", "demo") if shows else None
    own = ["--run_dir", str(run.path)] if run else []
    command = [sys.executable, str(trainer), "--config_file", str(config), *own, *flags]
    # at the size of the untrained miniatures one thread is as fast, and much faster on a busy machine
    environment = outside if trained.has(family) else {"OMP_NUM_THREADS": "1", **outside}
    status = process.run_in_terminal(command, environment)
    if status == 0 and run:
        status = show_result(run.path, environment)
    if status == 0:
        there = "start `bash gui.sh`, see this run in its tab Runs," if run else "start `bash gui.sh`,"
        print(f"Next: {there} open {config.name} there, then replace model and images with your own for {title}.")
    return status


if __name__ == "__main__":
    sys.exit(main())
