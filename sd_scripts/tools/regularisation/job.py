"""Generate regularisation images: by class and size, each written as it is made, so that a stopped job continues."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from sd_scripts.data.plan.buckets import Extent
from sd_scripts.dataset_view.regularisation import ImageClass
from sd_scripts.families.cards.registry import card_of
from sd_scripts.families.common.family import family_of
from sd_scripts.formats.atomic_files import write_whole
from sd_scripts.formats.disk import saving
from sd_scripts.formats.words import counted
from sd_scripts.generating.launch import checks_for
from sd_scripts.generating.work import Worker, parameters, write_media
from sd_scripts.options.generating.prompt_lines import SamplePrompt
from sd_scripts.runs.reporter import Reporter
from sd_scripts.runs.tool import start_phase
from sd_scripts.settings.generate_settings import problems
from sd_scripts.tools.regularisation.request import Request
from sd_scripts.training.saving.recovery import remove_leftovers


@dataclass(frozen=True, kw_only=True)
class Task:
    """An image to generate."""

    of: ImageClass
    number: int
    extent: Extent
    prompt: SamplePrompt


def generate(request: Request, reporter: Reporter) -> None:
    """Generate the images of a request that are not there yet. Raises ValueError, one sentence a line, before the model
    loads, and OSError if an image cannot be written."""
    tasks = list(tasks_of(request))
    total = sum(each.images for each in request.classes)
    if not tasks:
        print(f"All {counted(total, 'regularisation image')} are in '{request.root}' already", flush=True)
        return
    first = request.settings(tasks[0].of, tasks[0].extent)
    family = family_of(request.family)
    if wrong := problems(first, *checks_for(family)):
        raise ValueError("\n".join(_named(str(problem)) for problem in wrong))
    together = request.sampling.batch_size if card_of(request.family).has("batches") else 1
    for each in request.classes:
        remove_leftovers(request.root / each.folder_name)
    worker = Worker(family, reporter)
    try:
        with worker.generator(first) as generator:
            generator.encode([next(group).prompt for _, group in groupby(tasks, key=lambda task: task.of.line)])
            progress = start_phase(reporter, "generating")
            made = total - len(tasks)
            for batch in batches(tasks, together):
                prompts = [task.prompt for task in batch]
                if request.sampling.compile:  # a smaller batch would need graphs of its own
                    prompts += [prompts[-1]] * (together - len(batch))
                images = generator.images(prompts, lambda *_, made=made: progress(made, total))
                for task, (prompt, media) in zip(batch, images, strict=False):
                    settings = request.settings(task.of, task.extent)
                    folder = request.root / task.of.folder_name
                    path = folder / f"{task.number:05d}_{prompt.seed}{media.suffix}"
                    if task.of.needs_captions:  # first: an image without it would be trained with the folder's name
                        _write_caption(path.with_suffix(request.caption_extension), task.of.prompt)
                    write_media(path, media, parameters(settings, prompt, media))
                    made += 1
            progress(made, total)
    finally:
        worker.close()
    print(f"{counted(len(tasks), 'image')} generated in '{request.root}'", flush=True)


def tasks_of(request: Request) -> Iterator[Task]:
    """Yield the images that are not there yet, those of one class and size together: each size has graphs of its own.

    Raises ValueError, one sentence, for prompts that cannot be generated."""
    for of in request.classes:
        for number, extent in sorted(of.missing(request.root), key=lambda pair: (pair[1], pair[0])):
            yield Task(of=of, number=number, extent=extent, prompt=request.prompt(of, extent, number))


def batches(tasks: Sequence[Task], size: int) -> Iterator[list[Task]]:
    """Yield tasks that are generated together, which differ in their seeds alone."""
    for _, group in groupby(tasks, key=lambda task: (task.of.line, task.extent)):
        alike = list(group)
        for start in range(0, len(alike), size):
            yield alike[start : start + size]


def _write_caption(file: Path, text: str) -> None:
    with saving(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, f"{text}\n")


def _named(problem: str) -> str:
    """Return a problem of generating under the option of this tool."""
    return problem.replace("image_dir: ", "reg_data_dir: ", 1)
