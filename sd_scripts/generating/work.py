"""Generate the images of a request and write them, each with its parameters."""

from __future__ import annotations

import itertools
import os
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from sd_scripts.data.caches.cache_files import files_of
from sd_scripts.families.cards.registry import card_of
from sd_scripts.families.common.family import Family
from sd_scripts.families.common.sampling import Decode
from sd_scripts.formats.atomic_files import atomic_file
from sd_scripts.formats.disk import saving
from sd_scripts.formats.images.image_parameters import text_chunks
from sd_scripts.generating.adapters import title_of
from sd_scripts.generating.generator import Generator
from sd_scripts.generating.sweep_grid import SweepGrid
from sd_scripts.library.diffusion.media import Media
from sd_scripts.options.compile import CompileOptions
from sd_scripts.options.generating.generate import PREVIEW, GenerateOptions
from sd_scripts.options.generating.prompt_lines import SamplePrompt
from sd_scripts.options.memory import MemoryOptions
from sd_scripts.options.model import ModelOptions
from sd_scripts.runs.reporter import Reporter
from sd_scripts.settings.generate_settings import adapters_of, batches_of, model_values, prompt_warnings, prompts_of
from sd_scripts.settings.settings import Settings
from sd_scripts.settings.sweeps import Cell, cells_of

Payload = dict[str, Any]
PREVIEW_SIDE = 512
PREVIEW_EVERY = 1.0
"""Seconds between two previews at least."""
PREVIEW_COST = 10.0
"""Seconds until the next preview, for each that the last one took."""


class Cancelled(Exception):
    """The request was cancelled; images finished before stay."""


class Worker:
    """Generates images, request by request, with the model of the last one for as long as its settings stay."""

    def __init__(self, family: Family, reporter: Reporter):
        self._family, self._reporter = family, reporter
        self._generator: Generator | None = None
        self._made_for: dict[str, Any] = {}
        """What decides which model is loaded, and how."""
        self._previews = Previews(reporter)

    def run(self, settings: Settings, id: str = "", check: Callable[[], None] = lambda: None) -> list[Path]:
        """Generate all images of a request and return their files. `check` is called after each sampling step and ends
        the work by an exception. Raises ValueError, one sentence, for what cannot be done, and OSError if an image
        cannot be written."""
        cells = cells_of(settings, secrets.randbits(32))
        batches = [
            (cell, batch)
            for cell in cells
            for batch in batches_of(prompts_of(cell.settings), cell.settings[GenerateOptions], self._family.card)
        ]
        for text in prompt_warnings(settings):
            self._reporter.warn(text)
        grid = SweepGrid(cells)
        files: list[Path] = []
        # a smaller batch would need graphs of its own
        at_least = max(len(batch) for _, batch in batches) if settings[CompileOptions].compile else 1
        # those with the same adapters together: changing them takes time
        for _, some in itertools.groupby(sorted(batches, key=_adapters), key=_adapters):
            work = list(some)
            with self.generator(work[0][0].settings) as generator:
                generator.encode([batch[0] for _, batch in work])
                for cell, batch in work:
                    total = sum(len(each) for _, each in batches)
                    progress = Progress(made=len(files), total=total, id=id, check=check)
                    made = self._batch(generator, cell, batch, progress, at_least)
                    files += [file for file, _ in made]
                    grid.add(cell, made)
        return [*files, *grid.write()]

    @contextmanager
    def generator(self, settings: Settings) -> Iterator[Generator]:
        """Yield the model with the adapters that the settings name. Raises ValueError, one sentence, if they do not
        fit, or if memory runs out."""
        try:
            model = model_values(settings.values())
            if self._generator is None or model != self._made_for:
                self.close()
                self._generator = Generator(self._family, settings, self._reporter)
                self._made_for = model
            generator = self._generator
            generator.use(settings)
            generator.apply(adapters_of(settings[GenerateOptions]))
            yield generator
        except torch.OutOfMemoryError as error:
            self.close()
            raise ValueError(self._out_of_memory(settings.get(MemoryOptions), settings[GenerateOptions])) from error

    def close(self) -> None:
        """Give the model's memory back."""
        if self._generator:
            self._generator.close()
            self._generator = None
            self._made_for = {}

    def _batch(
        self,
        generator: Generator,
        cell: Cell,
        batch: Sequence[SamplePrompt],
        progress: Progress,
        at_least: int,
    ) -> list[tuple[Path, SamplePrompt]]:
        """Generate images together, and write them; with fewer than `at_least`, some more that are not kept."""
        settings = cell.settings
        began = time.perf_counter()
        graphs = graph_count()

        def step(done: int, steps: int) -> None:
            at = {"image": progress.made + 1, "last": progress.made + len(batch), "images": progress.total}
            self._reporter.emit("phase", name="generating", done=done, total=steps, id=progress.id, **at)
            progress.check()

        filled = [*batch, *[batch[-1]] * (at_least - len(batch))]
        made = generator.images(filled, step, self._previews)[: len(batch)]
        compiled = graph_count() - graphs
        seconds = round((time.perf_counter() - began) / len(batch), 2)
        files = []
        for number, (prompt, media) in enumerate(made, progress.made):
            swept = {"sweep": [list(pair) for pair in cell.labels.items()]} if cell.labels else {}
            values = {**parameters(settings, prompt, media), **swept}
            path = self._write(settings[GenerateOptions], media, values)
            files.append((path, prompt))
            fields: Payload = {"path": str(path), "id": progress.id, "number": number, **media.facts}
            fields |= {"parameters": values, "seconds": seconds}
            if compiled and number == progress.made:
                fields["graphs"] = compiled
            self._reporter.emit("image", **fields)
            print(f"{path} ({seconds:.1f} s)", flush=True)
        return files

    def _write(self, options: GenerateOptions, media: Media, values: Payload) -> Path:
        path = free_path(Path(options.image_dir), values["seed"], media.suffix)
        write_media(path, media, None if options.no_metadata else values)
        return path

    def _out_of_memory(self, memory: MemoryOptions | None, options: GenerateOptions) -> str:
        card = self._family.card
        ways = ["quantize_base"] if memory and card.has("fp8") and not memory.chosen(memory.quantize_base) else []
        ways += ["blocks_to_swap"] if memory and not memory.blocks_to_swap else []
        if options.batch_size > 1 and card.has("batches"):
            return "batch_size: out of GPU memory; set fewer images at a time"
        remedy = f"set {' or '.join(ways)}, or choose" if ways else "choose"
        return f"width, height: out of GPU memory; {remedy} a smaller size"


def _adapters(work: tuple[Cell, Sequence[SamplePrompt]]) -> str:
    return repr(adapters_of(work[0].settings[GenerateOptions]))


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a request is."""

    made: int
    total: int
    """Images that are written, and that there will be."""
    id: str
    check: Callable[[], None]
    """Called after each sampling step; ends the work by an exception."""


class Previews:
    """Writes the image so far into the run folder, as often as it costs little."""

    def __init__(self, reporter: Reporter):
        self._reporter = reporter
        self._next = 0.0
        self._count = 0

    def __call__(self, decode: Decode) -> None:
        if (folder := self._reporter.folder) is None or time.monotonic() < self._next:
            return
        began = time.monotonic()
        try:
            media = Media.of(decode())
            small = media.still
            small.thumbnail((PREVIEW_SIDE * small.width // media.size[0], PREVIEW_SIDE))
            with atomic_file(folder.path / PREVIEW) as part:
                small.save(part, format="WEBP", quality=80)
        except (OSError, torch.OutOfMemoryError):  # the image itself may still fit
            self._next = float("inf")
            return
        self._count += 1
        self._reporter.emit("preview", number=self._count)
        self._next = time.monotonic() + max(PREVIEW_EVERY, PREVIEW_COST * (time.monotonic() - began))


def parameters(settings: Settings, prompt: SamplePrompt, media: Media | None = None) -> Payload:
    """Return the parameters of an image or a clip; without it, those that the prompt asks for."""
    options = settings[GenerateOptions]
    card = card_of(settings.script.family)
    memory = settings.get(MemoryOptions)
    model = settings[ModelOptions].pretrained_model_name_or_path or ""
    adapters = [
        {"name": title_of(each.path), "strength": each.strength, "path": str(each.path)}
        | ({"high_noise": True} if each.high_noise else {})
        for each in adapters_of(options)
    ]
    controls = [_identified(name) for name in prompt.control_images]
    width, height = media.size if media else (prompt.width, prompt.height)
    frames, fps = (len(media.frames), media.fps) if media else (prompt.frames, prompt.fps)
    ends = {"start_image": prompt.start_image, "end_image": prompt.end_image, "control_clip": prompt.control_clip}
    return {
        "prompt": prompt.prompt,
        "negative_prompt": prompt.negative_prompt,
        "width": width,
        "height": height,
        **({"frames": frames, "fps": fps} if frames > 1 else {}),
        "steps": prompt.steps,
        "scale": prompt.scale,
        "guidance": prompt.guidance if card.has("guidance") else None,
        "sampler": prompt.sampler,
        "seed": prompt.seed,
        "adapters": adapters,
        **({"flow_shift": prompt.flow_shift} if prompt.flow_shift is not None else {}),
        **({"control_images": controls} if controls else {}),
        **{name: _identified(file) for name, file in ends.items() if file},
        "family": card.name,
        "model": Path(model).stem or model,
        "model_path": model,
        "dtype": options.dtype,
        "quantize_base": memory.quantize_base if memory else None,
        "compile": settings[CompileOptions].compile,
    }


def _identified(name: str) -> dict[str, str]:
    """Return name, path and hash of an image or a clip that something is generated from, for its parameters."""
    path = Path(os.path.expanduser(name))
    digest = sha256()
    for file in files_of(path):
        with file.open("rb") as content:
            while chunk := content.read(2**20):
                digest.update(chunk)
    return {"name": path.name, "path": str(path), "sha256": digest.hexdigest()}


def write_media(path: Path, media: Media, values: Payload | None) -> None:
    """Write an image or a clip with its parameters, if any, whole or not at all. Raises OSError, one sentence."""
    with saving(path), atomic_file(path) as part:
        media.write(part, text_chunks(values) if values else {})


def free_path(folder: Path, seed: int, suffix: str) -> Path:
    """Return a name in the folder that no image has: its time, a number, its seed."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    for number in range(1, 100_000):
        path = folder / f"{stamp}-{number:03d}-{seed}{suffix}"
        if not path.exists():
            return path
    raise AssertionError("too many images in one second")


def graph_count() -> int:
    """Return how many graphs this process has captured."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])
