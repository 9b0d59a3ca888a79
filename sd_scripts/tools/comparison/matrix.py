"""Make a comparison: checkpoint by checkpoint, its validation loss and then its images, each kept as it is made.

Names of images and keys of losses are digests of all that decides them. So a comparison that was stopped continues,
and one with more checkpoints, strengths or prompts computes only the new ones.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sd_scripts.families.common.family import family_of
from sd_scripts.formats.atomic_files import write_whole
from sd_scripts.formats.clips.mp4 import MP4
from sd_scripts.formats.disk import saving
from sd_scripts.generating.held_out import HeldOutLoss
from sd_scripts.generating.launch import checks_for
from sd_scripts.generating.work import Worker, parameters, write_media
from sd_scripts.options.dataset import DatasetOptions, ValidationOptions
from sd_scripts.options.generating.compare_checkpoints import (
    MOST_IMAGES,
    CheckpointOptions,
    LossOptions,
    MatrixOptions,
    ModelPrecisionOptions,
)
from sd_scripts.options.generating.prompt_lines import SamplePrompt
from sd_scripts.options.model import ModelOptions
from sd_scripts.runs.comparison import GRID, GRID_CLIP, RESULT, Checkpoint, Rule, best, read_comparison
from sd_scripts.runs.outputs import fingerprint
from sd_scripts.runs.reporter import Reporter
from sd_scripts.settings.generate_settings import problems, prompts_of
from sd_scripts.settings.settings import Settings
from sd_scripts.tools.comparison.grid_image import write_grid, write_grid_clip
from sd_scripts.tools.comparison.source import Source, read_source, rows_of
from sd_scripts.tools.lora.command import Given

AT_FULL_STRENGTH = 1.0
"""The strength at which losses are measured."""
SUFFIXES = (".png", MP4)
"""Of an image, and of a clip."""
LONGEST_NAME = 60
"""Characters of a checkpoint's name in names of images."""


def compare(given: Given, reporter: Reporter) -> Path:
    """Make the comparison that the options describe; return its RESULT file. Raises ValueError, one sentence per
    mistake, before a model loads."""
    source = read_source(given[CheckpointOptions])
    comparison = Comparison(given, source, reporter)
    try:
        return comparison.make()
    finally:
        comparison.close()


class Comparison:
    def __init__(self, given: Given, source: Source, reporter: Reporter):
        self._source = source
        self._reporter = reporter
        self._losses = given[LossOptions]
        self._model = given[ModelPrecisionOptions]
        matrix = given[MatrixOptions]
        self._folder = Path(given[CheckpointOptions].output_dir or str(source.folder))
        self._family = family_of(source.family)
        self._strengths = list(dict.fromkeys(matrix.strengths)) or [AT_FULL_STRENGTH]
        if not source.has_adapters and self._strengths != [AT_FULL_STRENGTH]:
            raise ValueError("strengths: a whole model has none; leave it unset, or compare LoRAs")
        self._images = {} if matrix.no_images else source.image_values(matrix)
        self._rows: list[SamplePrompt] = []
        self._check(matrix)
        self._held_out = self._open_held_out()
        if matrix.no_images and not self._held_out:
            raise ValueError("no_images: is on, and no validation loss is measured, so there is nothing to compare")
        self._worker = Worker(self._family, reporter)
        self._result = self._begin()

    def make(self) -> Path:
        self._write()
        for number, checkpoint in enumerate(self._source.checkpoints):
            if self._held_out and self._result["checkpoints"][number]["loss"] is None:
                self._measure(number, checkpoint)
            cells = [cell for cell in self._result["cells"] if cell["checkpoint"] == number and not cell["image"]]
            # at full strength first: its loss is measured with the same adapters
            for cell in sorted(cells, key=lambda cell: self._strengths[cell["strength"]] != AT_FULL_STRENGTH):
                self._image(cell)
        self._result["complete"] = True
        if self._rows:
            self._reporter.phase("drawing the grid")
            write_grid(self._folder / GRID, self._result)
            self._result["grid"] = GRID
            self._write_grid_clip()
        self._write()
        return self._folder / RESULT

    def _write_grid_clip(self) -> None:
        try:
            if write_grid_clip(self._folder / GRID_CLIP, self._result):
                self._result["grid_clip"] = GRID_CLIP
        except ValueError as error:
            self._result["no_grid_clip"] = str(error)
            self._reporter.print_warning(str(error))

    def close(self) -> None:
        self._worker.close()
        if self._held_out:
            self._held_out.close()

    def _check(self, matrix: MatrixOptions) -> None:
        """Check the images to generate with each checkpoint, and fill the rows."""
        checked = self._source.checkpoints[:1] if self._source.has_adapters else self._source.checkpoints
        for checkpoint in checked:
            settings = self._settings(checkpoint, AT_FULL_STRENGTH)
            if found := problems(settings, *checks_for(self._family)):
                raise ValueError("\n".join(map(str, found)))
            self._rows = rows_of(prompts_of(settings), matrix.seeds) if self._images else []
        count = len(self._source.checkpoints) * len(self._strengths) * len(self._rows)
        if count > MOST_IMAGES:
            raise ValueError(
                f"checkpoints, strengths, prompt, seeds: give {count:,} images in all, more than {MOST_IMAGES:,}; "
                "choose fewer"
            )

    def _open_held_out(self) -> HeldOutLoss | None:
        """Return the held-out images; None if there are none, or no loss is wanted."""
        options = self._losses
        settings = self._source.settings
        if options.no_validation:
            return None
        split = settings[ValidationOptions].validation_split or settings[DatasetOptions].dataset_config
        folder = Path(options.validation_dir) if options.validation_dir else None
        if folder and not folder.is_dir():
            raise ValueError(f"validation_dir: folder not found: '{folder}'")
        if folder or split:
            try:
                held_out = HeldOutLoss(self._family, settings, folder, self._source.seed, self._reporter)
            except ValueError as error:
                remedy = "" if folder else "; or set validation_dir, or no_validation"
                raise ValueError(f"{error}{remedy}") from error
            if held_out.images:
                return held_out
            held_out.close()
        if options.rule not in (None, "last"):
            raise ValueError(
                f"rule: '{options.rule}' needs a validation loss, and no images were held out of the training; set "
                "validation_dir to a folder of other images, or rule = last"
            )
        self._reporter.warn(
            "validation_split: held no images out of the training, so no validation loss is measured; set "
            "validation_dir to a folder of other images to measure one"
        )
        return None

    def _settings(self, checkpoint: Checkpoint, strength: float) -> Settings:
        images = self._images or {"prompt": ["-"]}  # generating needs one, even if none is made
        return self._source.generating(checkpoint, strength, self._model, {**images, "image_dir": str(self._folder)})

    def _begin(self) -> dict[str, Any]:
        """Return the content of RESULT before anything is made, with the losses and images of an earlier comparison."""
        known = (read_comparison(self._folder) or {}).get("measured")
        measured = known if isinstance(known, dict) else {}
        checkpoints = []
        for each in self._source.checkpoints:
            loss = measured.get(self._loss_key(each)) if self._held_out else None
            described = {"file": str(each.path), "name": each.name, "label": each.label, "step": each.step}
            checkpoints.append({**described, "ema": each.is_ema, "loss": loss})
        cells = [
            {"checkpoint": number, "strength": strength, "prompt": row, "image": self._made(number, strength, row)}
            for number in range(len(checkpoints))
            for strength in range(len(self._strengths))
            for row in range(len(self._rows))
        ]
        names = (
            *("prompt", "negative_prompt", "seed", "width", "height", "frames", "fps", "steps", "scale", "guidance"),
            "sampler",
        )
        return {
            "title": self._source.title,
            "family": self._source.family,
            "method": self._source.settings.script.method,
            "created": time.time(),
            "complete": False,
            "checkpoints": checkpoints,
            "strengths": self._strengths,
            "prompts": [{name: getattr(row, name) for name in names} for row in self._rows],
            "cells": cells,
            "validation_images": self._held_out.images if self._held_out else 0,
            "rule": self._rule,
            "within": self._losses.within,
            "best": None,
            "grid": None,
            "grid_clip": None,
            "no_grid_clip": "",
            "measured": measured,
        }

    @property
    def _rule(self) -> Rule:
        return self._losses.rule or ("lowest" if self._held_out else "last")

    def _measure(self, number: int, checkpoint: Checkpoint) -> None:
        assert self._held_out
        with self._worker.generator(self._settings(checkpoint, AT_FULL_STRENGTH)) as generator:
            loss = self._held_out.measure(generator)
        if loss != loss or abs(loss) == float("inf"):
            self._reporter.warn(f"checkpoints: the loss of '{checkpoint.path}' is not finite, so it cannot be the best")
            return
        self._result["checkpoints"][number]["loss"] = loss
        self._result["measured"][self._loss_key(checkpoint)] = loss
        self._write()

    def _image(self, cell: dict[str, Any]) -> None:
        """Make the image of a cell."""
        number = cell["checkpoint"]
        strength = cell["strength"]
        row = cell["prompt"]
        settings = self._settings(self._source.checkpoints[number], self._strengths[strength])
        with self._worker.generator(settings) as generator:
            generator.encode(self._rows)  # all together: the text encoders are loaded for it
            prompt, media = generator.image(self._rows[row], self._step)
        file = self._folder / f"{self._stem(number, strength, row)}{media.suffix}"
        write_media(file, media, parameters(settings, prompt, media))
        cell["image"] = file.name
        self._reporter.emit("image", path=str(file), number=number, **media.facts)
        done = sum(bool(c["image"]) for c in self._result["cells"])
        print(f"{file} ({done} of {len(self._result['cells'])})", flush=True)
        self._write()

    def _step(self, done: int, total: int) -> None:
        """Called after each sampling step."""
        self._reporter.emit("phase", name="generating", done=done, total=total)
        if self._reporter.stop_requested():
            raise KeyboardInterrupt

    def _made(self, number: int, strength: int, row: int) -> str | None:
        """Return the name of an image that is there already."""
        stem = self._stem(number, strength, row)
        return next((f"{stem}{suffix}" for suffix in SUFFIXES if (self._folder / f"{stem}{suffix}").is_file()), None)

    def _stem(self, number: int, strength: int, row: int) -> str:
        checkpoint = self._source.checkpoints[number]
        prompt = self._rows[row]
        settings = self._settings(checkpoint, self._strengths[strength])
        made_with = parameters(settings, prompt)
        key = _digest(made_with, prompt.control_images, *self._files(checkpoint))
        name = f"{checkpoint.name[:LONGEST_NAME]}_x{self._strengths[strength]:g}_p{row + 1}_s{prompt.seed}"
        return f"{name}_{key[:10]}"

    def _loss_key(self, checkpoint: Checkpoint) -> str:
        assert self._held_out
        plan = self._held_out.plan.validation
        seed = self._source.seed
        images = [(str(item.path), item.caption, str(item.fit)) for item in plan.items] if plan else []
        return _digest(self._source.settings.saved(), images, seed, self._model.dtype, *self._files(checkpoint))

    def _files(self, checkpoint: Checkpoint) -> Iterator[object]:
        """Yield values that identify the files of the checkpoint and of the base model."""
        base = self._source.settings[ModelOptions].pretrained_model_name_or_path or ""
        for path in (checkpoint.path, Path(base)):
            yield str(path.absolute()), fingerprint(path)

    def _write(self) -> None:
        losses = [each["loss"] for each in self._result["checkpoints"]]
        series = [each["ema"] for each in self._result["checkpoints"]]
        self._result["best"] = best(losses, self._rule, self._losses.within, series)
        with saving(self._folder / RESULT):
            write_whole(self._folder / RESULT, json.dumps(self._result, indent=1, ensure_ascii=False) + "\n")


def _digest(*made_from: object) -> str:
    return hashlib.sha256(json.dumps(made_from, sort_keys=True, default=str).encode()).hexdigest()
