"""A trainer that reports, samples, saves, stops and resumes as a real one does, and trains nothing."""

import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from sd_scripts.runs.events import EventLog
from sd_scripts.runs.folder import RunFolder

PACE = 0.05
"""Seconds between two steps."""
WEIGHTS = b"weights " * 500


@dataclass(frozen=True)
class StandIn:
    """One run with these settings."""

    settings: Mapping[str, Any]
    log: EventLog

    def path(self, end: str) -> Path:
        """Return the path of an output."""
        return Path(self.settings["output_dir"]) / f"{self.settings['output_name']}{end}"

    def train(self, folder: RunFolder) -> None:
        """Report all steps, and obey the commands that are written into the folder."""
        told, commands = self.settings, folder.commands()
        state, last = told.get("resume"), int(told["max_train_steps"])
        first = json.loads((Path(state) / "progress.json").read_text())["step"] if state else 0
        facts = {"family": told["family"], "method": told["method"], **({"resumed_from": state} if state else {})}
        self.log("started", max_steps=last, epochs=1, images_per_step=1, **facts)
        compiled = bool(told.get("compile"))
        if compiled:
            self.log("compile", graphs=2, recompiles=0, breaks=0)
        seconds = 0.1 if compiled else 0.2
        for step in range(first + 1, last + 1):
            slow = 1.0 if compiled and step == first + 1 else seconds
            self.log("step", step=step, epoch=1, loss=1 / step, seconds=slow, lr={"unet": 1e-4}, shape=self.shape)
            print("step", step, flush=True)
            for command in list(commands):
                self.log("heard", command=command["kind"], ids=[command["id"]], step=step)
                match command["kind"]:
                    case "sample":
                        self.sample(step)
                    case "save":
                        self.save(f"-step{step:08d}.safetensors", step)
                    case "stop":
                        self.save_state(step)
                        self.log("stopped", step=step)
                        return
            time.sleep(PACE)
        self.save(".safetensors", last)
        self.log("finished", step=last)

    @property
    def shape(self) -> str:
        """Return the plan's name of the one batch shape."""
        width, height = self.settings["resolution"].split(",")
        return f"{width}x{height}x{self.settings.get('train_batch_size', 1)}"

    def sample(self, step: int) -> None:
        """Write an image for the first prompt of the file."""
        line = Path(self.settings["sample_prompts"]).read_text().splitlines()[0]
        numbers = {flag: int(number) for flag, number in re.findall(r"--(\w) (\d+)", line)}
        width, height = numbers["w"], numbers["h"]
        image = self.path(f"-{step}.png")
        image.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (width, height)).save(image)
        facts = {"prompt": line.partition(" --")[0], "seed": numbers["d"], "number": 0}
        self.log("sample", path=str(image), step=step, width=width, height=height, **facts)

    def save(self, end: str, step: int) -> None:
        file = self.path(end)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(WEIGHTS)
        self.log("saved", path=str(file), step=step, bytes=len(WEIGHTS))

    def save_state(self, step: int) -> None:
        folder = self.path("-state")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "progress.json").write_text(json.dumps({"step": step}))
        self.log("saved", path=str(folder), step=step)


def train(settings: Mapping[str, Any], folder: RunFolder) -> None:
    """Do as a trainer with these settings does, whose run folder this is."""
    folder.path.mkdir(parents=True, exist_ok=True)
    StandIn(settings, folder.log()).train(folder)
