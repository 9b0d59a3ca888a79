"""Generate a few images of one prompt, with our generator or with diffusers' pipeline, and append each one's time to
a file, a JSON object a line. benchmark_generate starts it, for each row in a process of its own.

python -m benchmarks.timed_images --family NAME --row ROW --images 3 --result FILE [flags of the family's script]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.generating import DIFFUSERS, OURS, ROWS
from benchmarks.pipelines import pipeline_module
from sd_scripts.families.common.family import family_of
from sd_scripts.formats.disk import sentence_of
from sd_scripts.generating import launch
from sd_scripts.generating.work import Worker, graph_count
from sd_scripts.library.files.safetensors_io import PRECISIONS
from sd_scripts.options.compile import CompileOptions
from sd_scripts.options.generating.generate import GenerateOptions
from sd_scripts.options.generating.prompt_lines import SamplePrompt
from sd_scripts.runs.reporter import Reporter
from sd_scripts.settings.generate_settings import DTYPES, problems, prompts_of, read_command_line, training_settings
from sd_scripts.settings.settings import Settings

Image = Callable[[Callable[[], None]], object]
"""Generates an image, and calls its argument after each denoising step."""


@dataclass(frozen=True, kw_only=True)
class TimedImage:
    time: float
    """When it was done, in seconds since 1970."""
    seconds: float
    """From text embeddings to pixels in main memory."""
    step: float
    """Seconds of a denoising step: the mean of all but the first one."""
    allocated: int
    """Peak bytes of tensors on the GPU during it; 0 without a GPU."""
    graphs: int
    """That the compiler has captured so far."""
    warnings: tuple[str, ...]
    """What our generator has warned of so far."""


class Warnings(Reporter):
    """Keeps the warnings, such as that a model is not compiled after all."""

    def __init__(self) -> None:
        super().__init__(None)
        self.texts: list[str] = []

    def warn(self, text: str) -> None:
        self.texts.append(text)


class Marks:
    """Moments of an image, taken on the GPU without waiting for it, or else on the CPU."""

    def __init__(self) -> None:
        self._on_gpu = torch.cuda.is_available()
        self._taken: list[Any] = []

    def take(self) -> None:
        if self._on_gpu:
            mark = torch.cuda.Event(enable_timing=True)
            mark.record()
            self._taken.append(mark)
        else:
            self._taken.append(time.perf_counter())

    def mean(self) -> float:
        """Return the mean seconds between two moments. The GPU has to be idle."""
        first, last = self._taken[0], self._taken[-1]
        seconds = first.elapsed_time(last) / 1000 if self._on_gpu else last - first
        return float(seconds) / (len(self._taken) - 1)


def timed(image: Image, warnings: Sequence[str]) -> TimedImage:
    """Generate an image, with the GPU idle before and after."""
    gpu = torch.cuda.is_available()
    if gpu:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    marks, began = Marks(), time.perf_counter()
    image(marks.take)
    if gpu:
        torch.cuda.synchronize()
    return TimedImage(
        time=time.time(),
        seconds=time.perf_counter() - began,
        step=marks.mean(),
        allocated=torch.cuda.max_memory_allocated() if gpu else 0,
        graphs=graph_count(),
        warnings=tuple(warnings),
    )


@contextmanager
def our_images(settings: Settings, prompt: SamplePrompt, reporter: Reporter) -> Iterator[Image]:
    """Yield a function that generates an image with our generator, its prompt encoded and its model on the device."""
    with Worker(family_of(settings.script.family), reporter).generator(settings) as generator:
        generator.encode([prompt])
        generator.place()
        yield lambda step: generator.image(prompt, lambda done, total: step())


def diffusers_images(settings: Settings, prompt: SamplePrompt, compiling: dict[str, Any] | None) -> Image:
    """Return a function that generates an image with diffusers' pipeline of the same sizes, its random weights on the
    device."""
    from sd_scripts.testing.miniature import randomize  # imports transformers, which our rows start without

    family, ours = settings.script.family, training_settings(settings)
    module, device = pipeline_module(family), "cuda" if torch.cuda.is_available() else "cpu"
    dtype = PRECISIONS[DTYPES[settings[GenerateOptions].dtype]]
    opened = family_of(family).open(ours, dtype)
    with torch.device(device), default_dtype(dtype):
        denoiser, vae = module.make_modules(opened)
        text = module.text_arguments(opened, prompt, ours)
    pipeline = module.make_pipeline(denoiser, vae)  # its sampler's tensors belong into main memory
    pipeline.set_progress_bar_config(disable=True)
    for part in (denoiser, vae):
        randomize(part, torch.Generator(device).manual_seed(0))
    if compiling and "mode" in compiling:
        denoiser.to(memory_format=torch.channels_last).compile(**compiling)
    elif compiling:
        denoiser.compile_repeated_blocks(**compiling)
    common = {"width": prompt.width, "height": prompt.height, "num_inference_steps": prompt.steps}
    if prompt.frames > 1:
        common["num_frames"] = prompt.frames

    def image(step: Callable[[], None]) -> object:
        def after_step(*_: object) -> dict[str, Any]:
            step()
            return {}

        own = {"callback_on_step_end": after_step, "callback_on_step_end_tensor_inputs": []}
        return pipeline(**common, **text, **own, generator=torch.Generator(device).manual_seed(prompt.seed or 0))

    return image


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def generate(row: str, settings: Settings, count: int) -> Iterator[TimedImage]:
    """Yield the time of each of `count` images. Raises ValueError for settings that do not fit."""
    (prompt,) = prompts_of(settings)
    if row in OURS:
        reporter = Warnings()
        with our_images(settings, prompt, reporter) as image:
            yield from (timed(image, reporter.texts) for _ in range(count))
    else:
        compiling = DIFFUSERS[row]
        backend = settings[CompileOptions].compile_backend  # the default but where this program itself is tried
        image = diffusers_images(settings, prompt, {**compiling, "backend": backend} if compiling else None)
        yield from (timed(image, ()) for _ in range(count))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--family", required=True)
    parser.add_argument("--row", choices=ROWS, required=True)
    parser.add_argument("--images", type=int, required=True)
    parser.add_argument("--result", type=Path, required=True)
    arguments, flags = parser.parse_known_args(argv)
    settings, wrong = read_command_line(arguments.family, flags)
    if found := [*wrong, *problems(settings, launch.machine)]:
        print(*found, sep="\n", file=sys.stderr)
        return 2
    try:
        with arguments.result.open("a", encoding="utf-8") as result:
            for image in generate(arguments.row, settings, arguments.images):
                print(json.dumps(asdict(image)), file=result, flush=True)
    except ValueError as error:
        print(sentence_of(error), file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
