"""Launch a script that generates images: check settings, generate or wait for requests, report failures. The entry
scripts only name a family."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from sd_scripts.formats.atomic_files import why_unwritable
from sd_scripts.formats.secrets import HidingFormatter
from sd_scripts.machine import compile_cache, garbage_collection
from sd_scripts.options.compile import CompileMoreOptions, CompileOptions
from sd_scripts.options.generating.generate import GenerateOptions
from sd_scripts.options.memory import MemoryOptions
from sd_scripts.options.run import RunOptions
from sd_scripts.options.spec import Remark
from sd_scripts.runs.exit_codes import MISTAKE
from sd_scripts.runs.reporter import Reporter
from sd_scripts.runs.tool import reported
from sd_scripts.settings.generate_settings import problems, read_command_line, training_settings
from sd_scripts.settings.preflight import found_by
from sd_scripts.settings.quantization import quantization_of
from sd_scripts.settings.settings import Check, Settings, reading

if TYPE_CHECKING:
    from sd_scripts.families.common.family import Family

logger = logging.getLogger("sd_scripts")


def main(family_name: str, argv: list[str] | None = None) -> int:
    """Generate, and return the exit status."""
    settings, wrong_flags = read_command_line(family_name, argv)
    resident = settings[GenerateOptions].resident  # each request has settings of its own
    found: list[object] = [*wrong_flags, *(settings.wrong_values() if resident else problems(settings))]
    if resident and not settings[RunOptions].run_dir:
        found.append("run_dir: not set; a resident process reads its requests there")
    if found:  # before torch is imported, which takes seconds
        return _refuse(found, settings.remarks)
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")  # less memory lost between sizes
    compile_cache.use_own_folder()
    with garbage_collection.importing():
        from sd_scripts.families.common.family import family_of

        family = family_of(settings.script.family)
    checks = checks_for(family)
    if not resident and (found := [*found_by(checks, settings)]):
        return _refuse(found, settings.remarks)
    for remark in settings.remarks:
        print(remark, file=sys.stderr, flush=True)
    return _run(settings, family, checks)


def _refuse(problems: Iterable[object], remarks: Iterable[Remark]) -> int:
    notes = (f"Note: {remark}" for remark in remarks)
    print(*dict.fromkeys(map(str, problems)), *notes, sep="\n", file=sys.stderr, flush=True)
    return MISTAKE


def checks_for(family: Family) -> tuple[Check, ...]:
    """Return the checks that need torch: of the model's files, of the machine, and of the folder for the images."""
    return (lambda valid: family.check(training_settings(valid)), machine, reading(_output, GenerateOptions))


def machine(valid: Settings) -> Iterator[str]:
    """Yield options that this machine and its libraries do not support."""
    import torch

    from sd_scripts.families.common.quantizing import machine_problems
    from sd_scripts.library import compile_support

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    in_training = training_settings(valid)
    yield from compile_support.problems(valid[CompileOptions], in_training[CompileMoreOptions], device)
    if valid[GenerateOptions].dtype == "fp16" and device.type == "cpu":
        yield "dtype: fp16 is for GPUs; set bf16 or fp32"
    memory = valid.get(MemoryOptions)
    if memory and memory.fp8_compute and valid[GenerateOptions].dtype != "bf16":
        yield f"fp8_compute: needs dtype = bf16, not {valid[GenerateOptions].dtype}"
    yield from machine_problems(in_training.get(MemoryOptions), quantization_of(in_training), device)


def _output(options: GenerateOptions) -> Iterator[str]:
    """Check, by trying, that images can be written into the folder."""
    folder = Path(options.image_dir)
    if why := why_unwritable(folder / "image.png"):
        yield f"image_dir: '{folder}' cannot be written to ({why}); choose another folder"


def _run(settings: Settings, family: Family, checks: tuple[Check, ...]) -> int:
    from sd_scripts.generating.serve import Server
    from sd_scripts.generating.work import Worker

    _set_up_console()
    options = settings[GenerateOptions]

    def work(reporter: Reporter) -> None:
        if options.resident:
            Server(family, reporter, checks, options.idle_seconds).run()
            reporter.emit("finished")
            return
        reporter.emit("started", family=family.card.name)
        files = Worker(family, reporter).run(settings)
        reporter.emit("finished", path=str(files[-1]))

    return reported(work, settings[RunOptions].run_dir, "images")


def _set_up_console() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(HidingFormatter("%(message)s"))
    ours = logging.getLogger("sd_scripts")
    ours.handlers = [handler]
    ours.propagate = False
    ours.setLevel("INFO")
