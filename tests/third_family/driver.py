"""Trains a family that only tests know, and prints what came of it as JSON: python driver.py FOLDER"""

import json
import sys
from pathlib import Path
from typing import Any

from sd_scripts.families.cards.model_file import describe
from sd_scripts.families.cards.registry import module_of
from tests.support.training import Run, train, train_whole

SAMPLES = {"sample_every_n_steps": 3, "sample_prompts": "prompts.txt"}
CACHES = {"cache_latents_to_disk": True, "cache_text_encoder_outputs_to_disk": True}
TEXT_TOO = {"cache_text_encoder_outputs": None, "network_train_unet_only": None}
COMPILED = {"compile": True, "compile_backend": "eager"}


def told(run: Run) -> dict[str, Any]:
    return {
        "status": run.status,
        "losses": run.losses,
        "files": run.files,
        "layers": sorted({key.partition(".")[0] for key in run.tensors()}) if run.status == 0 else [],
        "warnings": [event["text"] for event in run.events_of("warning")],
        "graphs": sum(event["graphs"] for event in run.events_of("compile")),
        "samples": [Path(event["path"]).suffix for event in run.events_of("sample")],
    }


def main(folder: Path) -> None:
    model = module_of("reel", "tiny").write_miniature(folder / "model")
    prompts = folder / "prompts.txt"
    prompts.write_text("a red circle --w 64 --h 64 --s 2 --d 1\n")
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
    state = folder / "whole" / "short-step00000002-state"
    runs["resumed"] = train(model, folder / "resumed", max_train_steps=4, resume=state)
    runs["goes_on"] = train_whole(model.__class__(family="reel", files={
        "pretrained_model_name_or_path": folder / "full" / "short.safetensors"
    }, data_dir=model.data_dir), folder / "goes_on", max_train_steps=1)  # fmt: skip
    found = {"runs": {name: told(run) for name, run in runs.items()}, "variant": describe(model.checkpoint).variant}
    print("RESULT" + json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
