"""From a command line to a finished run. The entry scripts name a family and a method, and nothing else."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from sd_scripts.options.catalog import Script
from sd_scripts.options.command_line import from_command_line
from sd_scripts.options.command_line import parser as parser
from sd_scripts.options.compile import CompileOptions
from sd_scripts.options.logging import LoggingOptions
from sd_scripts.options.run import RunOptions
from sd_scripts.options.saving import SavingOptions
from sd_scripts.options.settings import Settings
from sd_scripts.options.toml_files import write_toml
from sd_scripts.runs.folder import RunFolder, new_run_folder

if TYPE_CHECKING:
    from sd_scripts.families.family import Family
    from sd_scripts.training.context import Context
    from sd_scripts.training.methods import Method

logger = logging.getLogger("sd_scripts")

MISTAKE, FAULT = 2, 1
"""Exit status: something in the settings, before the first step; something that happened in training."""


def main(script: Script, load: Callable[[], tuple[Family, type[Method]]], argv: list[str] | None = None) -> int:
    """Train, and return the exit status. `load` imports family and method: torch is slow, and --help need not wait."""
    settings = from_command_line(script, argv)
    _set_up_console(settings[LoggingOptions])
    if problems := _prepare_output(settings[SavingOptions]):
        return _refuse(problems)
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")  # less memory lost between buckets
    family, method = load()
    from sd_scripts.training.compiling import problems as compile_problems
    from sd_scripts.training.compiling import warm_up

    if problems := [*family.check(settings), *method().check(family, settings)]:
        return _refuse(problems)
    import torch

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if problems := compile_problems(settings[CompileOptions], device):
        return _refuse(problems)
    warm_up(settings[CompileOptions])
    return _run(settings, family, method())


def _run(settings: Settings, family: Family, method: Method) -> int:
    from sd_scripts.training.context import make_context
    from sd_scripts.training.trainer import Trainer

    context = make_context(settings, lambda: _run_folder(settings), lambda path: RunFolder(path).log())
    if context.is_main:
        _keep_settings(context)
    training = False
    try:
        for remark in settings.remarks:
            context.warn(str(remark))
        trainer = Trainer(context, family, method)
        training = True
        path = trainer.train()
    except Exception as error:
        return _tell_failure(context, error, training)
    finally:
        context.accelerator.end_training()
    if path and context.is_main:
        logger.info("Saved %s", path)
    return 0


def _tell_failure(context: Context, error: Exception, training: bool) -> int:
    """One sentence for what a user can mend; the whole story for what only we can."""
    import torch

    from sd_scripts.training.context import Failed

    details = "".join(traceback.format_exception(error))
    if isinstance(error, Failed):
        sentence, remedy, known = str(error), error.remedy, True
    elif isinstance(error, torch.OutOfMemoryError):
        sentence, known = "the memory of the GPU is full", True
        remedy = "lower train_batch_size or resolution, turn on gradient_checkpointing, cache_latents"
    elif isinstance(error, ValueError) and not training:
        sentence, remedy, known = str(error), "", True
    elif isinstance(error, OSError):
        sentence, remedy, known = str(error), "what was saved before is still there", True
    else:
        sentence, remedy, known = f"{type(error).__name__}: {error}", "", False
    context.tell("failed", error=sentence, remedy=remedy, details=details)
    if context.is_main:
        print(f"\n{sentence}" + (f"; {remedy}" if remedy else ""), file=sys.stderr, flush=True)
        if not known:
            print(details, file=sys.stderr, flush=True)
    return FAULT if training or not known else MISTAKE


def _refuse(problems: list[str]) -> int:
    print(*problems, sep="\n", file=sys.stderr)
    return MISTAKE


def _prepare_output(options: SavingOptions) -> list[str]:
    """Make output_dir and see that it can be written to."""
    folder = Path(options.output_dir or ".").expanduser()
    probe = folder / f".write-test-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        return [f"output_dir: '{folder}' cannot be written to ({error.strerror}); choose another folder"]
    return []


def _run_folder(settings: Settings) -> Path:
    chosen = settings[RunOptions].run_dir
    if chosen:
        return Path(chosen).expanduser()
    saving = settings[SavingOptions]
    return new_run_folder(Path(saving.output_dir or ".").expanduser() / "runs", saving.output_name or "").path


def _keep_settings(context: Context) -> None:
    config = RunFolder(context.run_dir).config
    if not config.exists():
        write_toml(config, context.settings.saved())


def _set_up_console(options: LoggingOptions) -> None:
    handler: logging.Handler = logging.StreamHandler()
    if options.console_log_file:
        handler = logging.FileHandler(options.console_log_file, encoding="utf-8")
    elif not options.console_log_simple and sys.stderr.isatty():
        from rich.logging import RichHandler

        handler = RichHandler(show_path=False)
    handler.setFormatter(logging.Formatter("%(message)s"))
    ours = logging.getLogger("sd_scripts")
    ours.handlers, ours.propagate = [handler], False
    ours.setLevel(options.console_log_level or "INFO")
