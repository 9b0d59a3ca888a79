"""Train the LoRA of the demo by this program, by a plain loop and by diffusers' training script, on the same images,
and count the generated images that show the new word.

python -m benchmarks.learning_compared [--family sdxl] [--rows NAME ...] [--script SCRIPT] [--seed 1] [--folder FOLDER]

All rows have the demo's model, images, captions, steps, batch size, rank, alpha, learning rate, schedule, weight decay,
gradient clipping and loss, without regularization images. The plain loop of `benchmarks.plain_training` uses the
classes of diffusers and peft. `--script` adds diffusers' script, train_dreambooth_lora_flux.py or
train_dreambooth_lora_sdxl.py of examples/dreambooth in its repository, which needs the packages torchvision and
datasets. This program generates the images of all rows and reads all LoRA files.

kohya's flux_train_network.py cannot train the FLUX.1 without changes to its code: it reads the number of blocks from
the file, but the width 3072, the 24 heads and the widths of the text encoders from a table.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from benchmarks.learning import run_quietly, scenes, success, train
from benchmarks.plain_training.loop import WEIGHT_DECAY, Options, PlainTraining, train_plainly
from benchmarks.trained_miniature import pixels_of
from sd_scripts import demo
from sd_scripts.families.cards.registry import card_of
from sd_scripts.testing import trained
from sd_scripts.testing.shapes import SIDE

ROWS = ("ours", "plain")
OF_SCRIPT = ("diffusers", "diffusers_default_layers")
"""`diffusers` trains the layers that all other rows train."""
LORA_FILE = "pytorch_lora_weights.safetensors"


def demo_options(family: str) -> dict[str, Any]:
    """Return the options of the family's demo."""
    page = card_of(family).page
    return {**page.demo, **trained.OPTIONS, **trained.OF_METHOD["lora"], **page.trained_demo}


def training_of(family: str) -> type[PlainTraining]:
    training: type[PlainTraining] = import_module(f"benchmarks.plain_training.{family}").Training
    return training


def write_dataset(family: str, folder: Path) -> Path:
    """Write the demo's images and a metadata file with the captions, which `datasets` reads; return their folder."""
    source = next(trained.write_data(family, folder / "original")["train_data_dir"].iterdir())
    images = folder / "with_metadata"  # in a folder with text files, `datasets` would read these instead of images
    images.mkdir(parents=True, exist_ok=True)
    lines = []
    for path in sorted(source.glob("*.png")):
        shutil.copy(path, images)
        lines.append(json.dumps({"file_name": path.name, "text": caption_of(path)}))
    (images / "metadata.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return images


def caption_of(image: Path) -> str:
    return image.with_suffix(".txt").read_text(encoding="utf-8").strip()


def captions_of(images: Path) -> list[str]:
    """Return the captions in the order of the images' names."""
    lines = (images / "metadata.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["text"] for line in lines]


def train_by_script(
    script: Path, row: str, training: PlainTraining, model: Path, images: Path, output: Path, options: Options
) -> list[float]:
    """Train a LoRA by diffusers' script; return the loss of each step."""
    values: dict[str, Any] = {
        "pretrained_model_name_or_path": model,
        "dataset_name": images,
        "image_column": "image",
        "caption_column": "text",
        "instance_prompt": "a zorb",
        "output_dir": output,
        "resolution": SIDE,
        "rank": options["network_dim"],
        "train_batch_size": options["train_batch_size"],
        "max_train_steps": options["max_train_steps"],
        "checkpointing_steps": 10 * options["max_train_steps"],
        "learning_rate": options["learning_rate"],
        "lr_scheduler": "cosine",
        "lr_warmup_steps": 0,
        "adam_weight_decay": WEIGHT_DECAY,
        "mixed_precision": "no",
        "seed": options["seed"],
        "report_to": "tensorboard",
        "cache_dir": output / "datasets",
        **training.script_options(),
    }
    source = script.read_text(encoding="utf-8")
    if row != "diffusers_default_layers":
        source, more = training.script_with(source, training.layers())
        values |= more
    changed = output / script.name
    changed.write_text(source, encoding="utf-8")
    flags = [f"--{name}={value}" for name, value in values.items()]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "ACCELERATE_USE_CPU": "true"}
    run_quietly([sys.executable, changed, *flags], output.with_suffix(".log"), environment)
    (log,) = (path.parent for path in output.rglob("events.out.tfevents.*") if "loss" in tags_of(path.parent))
    events = EventAccumulator(str(log), {"scalars": 0})
    events.Reload()
    return [event.value for event in events.Scalars("loss")]


def tags_of(log: Path) -> list[str]:
    events = EventAccumulator(str(log))
    events.Reload()
    return list(events.Tags()["scalars"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", default="flux", choices=[name for name in demo.FAMILIES if trained.has(name)])
    parser.add_argument("--rows", nargs="+", choices=ROWS + OF_SCRIPT, help="default: ours, plain and diffusers")
    parser.add_argument("--script", type=Path, help="diffusers' training script for the family")
    parser.add_argument("--seed", type=int, default=1, help="of the trainings; default: 1")
    parser.add_argument("--folder", type=Path, help="keep models and images here")
    arguments = parser.parse_args()
    family, script = arguments.family, arguments.script
    rows = arguments.rows or (*ROWS, *OF_SCRIPT[:1] * bool(script))
    options = {**demo_options(family), "seed": arguments.seed}
    kind = training_of(family)
    if set(rows) & set(OF_SCRIPT) and (not script or script.name != kind.script):
        parser.error(f"the rows of diffusers need --script, the path of its {kind.script}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = (arguments.folder or Path(temporary)).resolve()
        model = folder / "model"
        shutil.rmtree(model, ignore_errors=True)
        kind.write_model(model, options)
        images = write_dataset(family, folder / "data")
        base = trained.copy_model(family, folder / "base")
        new, known = scenes()
        print("| training | loss | shows the word | kept |\n|---|---|---|---|", flush=True)
        for row in rows:
            output = folder / row
            shutil.rmtree(output, ignore_errors=True)
            output.mkdir()
            flags: tuple[str, ...] = (f"--lora_weights={output / LORA_FILE}",)
            if row == "ours":
                ours = train(family, "without_prior", output, seed=arguments.seed)
                loss, flags = ours.loss, ours.flags
            else:
                training = kind(model, options)
                if row == "plain":
                    pixels = pixels_of(images).float() / 127.5 - 1
                    losses = train_plainly(training, captions_of(images), pixels, output, options)
                else:
                    losses = train_by_script(script.resolve(), row, training, model, images, output, options)
                assert len(losses) == options["max_train_steps"]
                loss = sum(losses[-50:]) / 50
            after = success(family, base, new, output / "new", flags)["all"]
            kept = success(family, base, known, output / "known", flags)["all"]
            print(f"| {row} | {loss:.4f} | {after:.0%} | {kept:.0%} |", flush=True)


if __name__ == "__main__":
    main()
