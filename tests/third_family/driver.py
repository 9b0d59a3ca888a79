"""Trains a family that only tests know, and prints what came of it as JSON: python driver.py FOLDER"""

import json
import sys
from pathlib import Path
from typing import Any

from sd_scripts.families.cards.model_file import describe
from sd_scripts.families.cards.registry import module_of
from sd_scripts.families.common.family import family_of
from sd_scripts.formats.images.generated_files import read_generated
from sd_scripts.generating.work import Worker
from sd_scripts.options.generating.generate import PREVIEW
from sd_scripts.planning.run_plan import plan_run
from sd_scripts.planning.text import rows
from sd_scripts.runs.comparison import FOLDER, read_comparison
from sd_scripts.runs.folder import new_run_folder
from sd_scripts.runs.reporter import Reporter
from sd_scripts.settings.catalog import script_for
from sd_scripts.settings.generate_settings import settings_of
from sd_scripts.settings.reading import from_values
from sd_scripts.testing import clips, demo_images
from sd_scripts.tools.compare_checkpoints import COMMAND
from tests.support.training import Run, train, train_whole

SAMPLES = {"sample_every_n_steps": 3, "sample_prompts": "prompts.txt"}
CACHES = {"cache_latents_to_disk": True, "cache_text_encoder_outputs_to_disk": True}
TEXT_TOO = {"cache_text_encoder_outputs": None, "network_train_unet_only": None}
PARTS = {"resolution": "64", "enable_bucket": True, "target_frames": "1,5", "frame_extraction": "chunk"}
COMPILED = {"compile": True, "compile_backend": "eager"}


def told(run: Run) -> dict[str, Any]:
    return {
        "status": run.status,
        "losses": run.losses,
        "files": run.files,
        "layers": sorted({key.partition(".")[0] for key in run.tensors()}) if run.status == 0 else [],
        "warnings": [event["text"] for event in run.events_of("warning")],
        "graphs": sum(event["graphs"] for event in run.events_of("compile")),
        "samples": [
            [Path(event["path"]).suffix, *(event[name] for name in ("media", "frames", "fps"))]
            for event in run.events_of("sample")
        ],
    }


def generate(folder: Path, model: Any) -> dict[str, Any]:
    """Generate a clip; return its kind and length, and whether there was a preview."""
    values = {"prompt": ["a cat"], "width": 64, "height": 64, "frames": 5, "steps": 2, "dtype": "fp32", "image_seed": 1}
    made_from = {"pretrained_model_name_or_path": str(model.checkpoint), "image_dir": str(folder / "images")}
    run = new_run_folder(folder, "generating")
    (path,) = Worker(family_of("reel"), Reporter(run)).run(settings_of("reel", {}, {**values, **made_from}))
    made = read_generated(path).parameters
    shown = (run.path / PREVIEW).is_file()
    return {"suffix": path.suffix, "frames": made["frames"], "fps": made["fps"], "preview": shown}


def compare(run: Run) -> list[str]:
    """Compare a run's LoRA with the base model; return the kinds of the files."""
    drawn = ["--prompt", "a cat --w 64 --h 64 --s 1 --f 3", "--strengths", "0", "1", "--no_validation"]
    assert COMMAND.main("compare_checkpoints.py", [str(run.folder.path), *drawn]) == 0
    result = read_comparison(run.folder.path / FOLDER) or {}
    return [*(Path(cell["image"]).suffix for cell in result["cells"]), str(result["grid_clip"])]


def main(folder: Path) -> None:
    model = module_of("reel", "tiny").write_miniature(folder / "model")
    prompts = folder / "prompts.txt"
    prompts.write_text("a red circle --w 64 --h 64 --s 2 --d 1 --f 4 --fps 12\n")
    samples = {**SAMPLES, "sample_prompts": prompts}
    runs = {
        "lora": train(model, folder / "lora", **samples, **CACHES),
        "again": train(model, folder / "again", **CACHES),
        "compiled": train(model, folder / "compiled", **COMPILED),
        "text": train(model, folder / "text", **TEXT_TOO, **COMPILED, compile_text_encoder=True, compile_vae=True),
        "whole": train(model, folder / "whole", max_train_steps=4, save_state=True, save_every_n_steps=2),
        "full": train_whole(model, folder / "full"),
        "full_text": train_whole(model, folder / "full_text", cache_text_encoder_outputs=None, train_text_encoder=True),
    }
    # two clips of 9 frames and an image, in parts of 1 and of 5 frames
    data = clips.write_clips(folder / "clips", size=(64, 48), frames=9, fps=8, count=2)
    demo_images.draw(demo_images.captions()[0], (64, 64)).save(data / clips.FOLDER / "still.png")
    parts = {"train_data_dir": data, **PARTS}
    runs["clips"] = train(model, folder / "of_clips", **parts, max_train_steps=4, save_state=True, save_every_n_steps=2)
    runs["clips_cached"] = train(model, folder / "clips_cached", **parts, **CACHES, max_train_steps=4)
    of_clips = {name: str(value) if isinstance(value, Path) else value for name, value in parts.items()}
    settings = from_values(script_for("reel", "lora"), {**of_clips, "learning_rate": 1e-4, "max_train_steps": 4})
    plan = [row for row in rows(plan_run(settings)) if row[0] in ("Images", "Clips", "Buckets")]
    resumed = {"max_train_steps": 4, "resume": folder / "of_clips" / "short-step00000002-state"}
    runs["clips_resumed"] = train(model, folder / "clips_resumed", **parts, **resumed)
    state = folder / "whole" / "short-step00000002-state"
    runs["resumed"] = train(model, folder / "resumed", max_train_steps=4, resume=state)
    runs["goes_on"] = train_whole(model.__class__(family="reel", files={
        "pretrained_model_name_or_path": folder / "full" / "short.safetensors"
    }, data_dir=model.data_dir), folder / "goes_on", max_train_steps=1)  # fmt: skip
    found = {
        "runs": {name: told(run) for name, run in runs.items()},
        "plan": plan,
        "variant": describe(model.checkpoint).variant,
    }
    found |= {"generated": generate(folder, model), "compared": compare(runs["lora"])}
    print("RESULT" + json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
