"""Train the LoRA of the demo by this program, by a plain loop and by diffusers' training script, on the same images,
and count the generated images that show the new word.

python -m benchmarks.learning_compared [--rows NAME ...] [--script train_dreambooth_lora_flux.py] [--folder FOLDER]

All rows have the demo's model, images, captions, steps, batch size, rank, alpha, learning rate, schedule, weight decay,
gradient clipping and distribution of timesteps, without regularization images. The plain loop below uses the classes of
diffusers and peft. `--script` adds rows of diffusers' script, from examples/dreambooth of its repository, which needs
the packages torchvision and datasets. This program generates the images of all rows and reads all LoRA files.

kohya's flux_train_network.py cannot train this model without changes to its code: it reads the number of blocks from
the file, but the width 3072, the 24 heads and the widths of the text encoders from a table.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, FluxPipeline
from diffusers.optimization import get_scheduler
from peft import LoraConfig, get_peft_model_state_dict
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.learning import run_quietly, scenes, success, train
from benchmarks.pipelines.flux import make_transformer, to_diffusers
from benchmarks.trained_miniature import pixels_of
from sd_scripts.families.cards.registry import card_of
from sd_scripts.families.flux.family import FLUX
from sd_scripts.settings.catalog import script_for
from sd_scripts.settings.settings import Settings
from sd_scripts.testing import trained
from sd_scripts.testing.shapes import SIDE

STEPS, BATCH = trained.OPTIONS["max_train_steps"], trained.OPTIONS["train_batch_size"]
RATE, RANK = trained.OF_METHOD["lora"]["learning_rate"], trained.OF_METHOD["lora"]["network_dim"]
WEIGHT_DECAY = 0.01
"""AdamW's default, which the demo has."""
DEMO = card_of("flux").page.demo
T5_LENGTH, SHIFT, GUIDANCE = (
    DEMO[name] for name in ("t5xxl_max_token_length", "discrete_flow_shift", "guidance_scale")
)
ROWS = ("ours", "plain")
OF_SCRIPT = ("diffusers", "diffusers_default_layers", "diffusers_cached_latents")
"""`diffusers` trains the layers that all other rows train."""
LORA_FILE = "pytorch_lora_weights.safetensors"


def write_pipeline(folder: Path) -> None:
    """Write the miniature in diffusers' layout."""
    files = {option: str(path) for option, path in trained.copy_model("flux", folder / "original").items()}
    components: Any = FLUX.open(Settings(script_for("flux", "lora"), files), torch.float32).load()
    transformer = make_transformer(components.denoiser.shape)
    transformer.load_state_dict(to_diffusers(components.denoiser.state_dict()))
    pipeline = FluxPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(shift=SHIFT),
        vae=components.vae,
        text_encoder=components.text_encoders[0],
        text_encoder_2=components.text_encoders[1],
        tokenizer=components.tokenizers[0],
        tokenizer_2=components.tokenizers[1],
        transformer=transformer,
    )
    pipeline.save_pretrained(folder)


def write_dataset(folder: Path) -> Path:
    """Write the demo's images and a metadata file with the captions, which `datasets` reads; return their folder."""
    source = next(trained.write_data("flux", folder / "original")["train_data_dir"].iterdir())
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


def adapted_layers(transformer: nn.Module) -> list[str]:
    """Return the names of all linear layers of the blocks, which our LoRA adapts."""
    linear = [name for name, module in transformer.named_modules() if isinstance(module, nn.Linear)]
    return [name for name in linear if "transformer_blocks." in name]


def train_plainly(model: Path, images: Path, output: Path) -> list[float]:
    """Train a LoRA with the classes of diffusers and peft; return the loss of each step."""
    torch.manual_seed(1)
    pipeline = FluxPipeline.from_pretrained(model)
    transformer, vae = pipeline.transformer.requires_grad_(False), pipeline.vae
    lines = (images / "metadata.jsonl").read_text(encoding="utf-8").splitlines()
    captions = [json.loads(line)["text"] for line in lines]
    with torch.no_grad():
        text, pooled, text_ids = pipeline.encode_prompt(captions, captions, max_sequence_length=T5_LENGTH)
        latents = vae.encode(pixels_of(images).float() / 127.5 - 1).latent_dist.mode()
    latents = (latents - vae.config.shift_factor) * vae.config.scaling_factor  # (N, 16, h, w)
    count, channels, height, width = latents.shape
    image_ids = FluxPipeline._prepare_latent_image_ids(count, height // 2, width // 2, "cpu", torch.float32)

    def packed(tensor: Tensor) -> Tensor:
        result: Tensor = FluxPipeline._pack_latents(tensor, len(tensor), channels, height, width)
        return result

    layers = adapted_layers(transformer)
    transformer.add_adapter(LoraConfig(r=RANK, lora_alpha=RANK, target_modules=layers))
    parameters = [parameter for parameter in transformer.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, RATE, weight_decay=WEIGHT_DECAY)
    schedule = get_scheduler("cosine", optimizer, num_warmup_steps=0, num_training_steps=STEPS)
    losses: list[float] = []
    while len(losses) < STEPS:
        for chosen in torch.randperm(count).split(BATCH):
            clean = latents[chosen]
            noise = torch.randn_like(clean)
            times = torch.randn(len(chosen)).sigmoid()
            times = SHIFT * times / (1 + (SHIFT - 1) * times)
            part = times[:, None, None, None]
            prediction = transformer(
                hidden_states=packed((1 - part) * clean + part * noise),
                timestep=times,
                guidance=torch.full_like(times, GUIDANCE),
                pooled_projections=pooled[chosen],
                encoder_hidden_states=text[chosen],
                txt_ids=text_ids,
                img_ids=image_ids,
            ).sample
            loss = F.mse_loss(prediction, packed(noise - clean))
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    FluxPipeline.save_lora_weights(output, transformer_lora_layers=get_peft_model_state_dict(transformer))
    return losses[:STEPS]


def train_by_script(script: Path, row: str, model: Path, images: Path, output: Path) -> list[float]:
    """Train a LoRA by diffusers' script; return the loss of each step."""
    options: dict[str, Any] = {
        "pretrained_model_name_or_path": model,
        "dataset_name": images,
        "image_column": "image",
        "caption_column": "text",
        "instance_prompt": "a zorb",
        "output_dir": output,
        "resolution": SIDE,
        "rank": RANK,
        "lora_alpha": RANK,
        "train_batch_size": BATCH,
        "max_train_steps": STEPS,
        "checkpointing_steps": 10 * STEPS,
        "learning_rate": RATE,
        "lr_scheduler": "cosine",
        "lr_warmup_steps": 0,
        "adam_weight_decay": WEIGHT_DECAY,
        "max_sequence_length": T5_LENGTH,
        "guidance_scale": GUIDANCE,
        "weighting_scheme": "logit_normal",
        "mixed_precision": "no",
        "seed": 1,
        "report_to": "tensorboard",
        "cache_dir": output / "datasets",
    }
    if row != "diffusers_default_layers":
        options["lora_layers"] = ",".join(adapted_layers(FluxPipeline.from_pretrained(model).transformer))
    flags = [f"--{name}={value}" for name, value in options.items()]
    if row == "diffusers_cached_latents":
        flags.append("--cache_latents")
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "ACCELERATE_USE_CPU": "true"}
    run_quietly([sys.executable, script, *flags], output.with_suffix(".log"), environment)
    (log,) = (path.parent for path in output.rglob("events.out.tfevents.*") if "loss" in tags_of(path.parent))
    events = EventAccumulator(str(log), {"scalars": 0})
    events.Reload()
    return [event.value for event in events.Scalars("loss")]


def tags_of(log: Path) -> list[str]:
    events = EventAccumulator(str(log))
    events.Reload()
    return list(events.Tags()["scalars"])


def train_row(row: str, model: Path, images: Path, output: Path, script: Path) -> tuple[float, tuple[str, ...]]:
    """Train a row; return the mean loss of the last 50 steps and the flags of generating that apply its LoRA."""
    if row == "ours":
        ours = train("flux", "without_prior", output)
        return ours.loss, ours.flags
    if row == "plain":
        losses = train_plainly(model, images, output)
    else:
        losses = train_by_script(script.resolve(), row, model, images, output)
    assert len(losses) == STEPS
    return sum(losses[-50:]) / 50, (f"--lora_weights={output / LORA_FILE}",)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", choices=ROWS + OF_SCRIPT, help="default: all that are possible")
    parser.add_argument("--script", type=Path, help="diffusers' train_dreambooth_lora_flux.py")
    parser.add_argument("--folder", type=Path, help="keep models and images here")
    arguments = parser.parse_args()
    rows = arguments.rows or (ROWS + OF_SCRIPT if arguments.script else ROWS)
    if not arguments.script and set(rows) & set(OF_SCRIPT):
        parser.error("the rows of diffusers need --script, the path of its train_dreambooth_lora_flux.py")
    with tempfile.TemporaryDirectory() as temporary:
        folder = (arguments.folder or Path(temporary)).resolve()
        shutil.rmtree(folder / "model", ignore_errors=True)
        write_pipeline(folder / "model")
        images = write_dataset(folder / "data")
        base = trained.copy_model("flux", folder / "base")
        new, known = scenes()
        print("| training | loss | shows the word | kept |\n|---|---|---|---|", flush=True)
        for row in rows:
            output = folder / row
            shutil.rmtree(output, ignore_errors=True)
            output.mkdir()
            loss, flags = train_row(row, folder / "model", images, output, arguments.script)
            after = success("flux", base, new, output / "new", flags)["all"]
            kept = success("flux", base, known, output / "known", flags)["all"]
            print(f"| {row} | {loss:.4f} | {after:.0%} | {kept:.0%} |", flush=True)


if __name__ == "__main__":
    main()
