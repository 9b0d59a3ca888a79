"""Launch a training: check settings, start, report failures. The entry scripts only name a family and a method."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import sys
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from sd_scripts.families.cards.registry import card_of
from sd_scripts.formats.atomic_files import why_unwritable
from sd_scripts.formats.disk import sentence_of
from sd_scripts.formats.secrets import Hider, HidingFormatter, handed_values, without_handed
from sd_scripts.formats.toml_files import write_toml
from sd_scripts.machine import compile_cache, garbage_collection
from sd_scripts.options.compile import CompileMoreOptions, CompileOptions
from sd_scripts.options.launch import SlurmOptions
from sd_scripts.options.logging import LoggingOptions
from sd_scripts.options.memory import MemoryOptions
from sd_scripts.options.networks.network import NetworkOptions
from sd_scripts.options.optimization.optimizer import LrSchedulerOptions, OptimizerOptions
from sd_scripts.options.run import CudaOptions, RunOptions
from sd_scripts.options.saving import SavingOptions
from sd_scripts.options.training import TrainingOptions
from sd_scripts.runs.exit_codes import FAULT, INTERRUPTED, MISTAKE
from sd_scripts.runs.folder import RunFolder
from sd_scripts.runs.outputs import LAST
from sd_scripts.settings import command_line, preflight
from sd_scripts.settings.catalog import script_for
from sd_scripts.settings.launching import slurm
from sd_scripts.settings.quantization import quantization_of
from sd_scripts.settings.settings import Settings, reading
from sd_scripts.training.process import head_start, parent_watchdog

if TYPE_CHECKING:
    from sd_scripts.families.common.family import Family
    from sd_scripts.training.context import Context
    from sd_scripts.training.methods.method import Method

logger = logging.getLogger("sd_scripts")

SECONDS_TO_REPORT = 3.0
"""The launcher ends all processes when the first one exits, and the one that reports why may be slower."""


def parser(family: str, method: str) -> argparse.ArgumentParser:
    """Return the flags of a training script."""
    return command_line.parser(script_for(family, method))


def main(family_name: str, method_name: str, argv: list[str] | None = None) -> int:
    """Train, and return the exit status."""
    parent_watchdog.end_with_launcher()
    script = script_for(family_name, method_name)
    settings, wrong_flags = command_line.read_command_line(script, argv)
    family_name = settings.script.family
    _hand_over_secrets(settings.secrets())
    if plan_format := command_line.plan_format(script, argv):
        from sd_scripts.planning.show import show_plan  # imports OpenCV

        return show_plan(settings, wrong_flags, as_json=plan_format == "json")
    # before torch is imported, which takes seconds
    wrong = [*wrong_flags, *preflight.problems(settings)]
    if wrong := wrong or [*preflight.found_by([reading(_unwritable_output, SavingOptions)], settings)]:
        return _refuse(settings, wrong)
    if settings[SlurmOptions].where == "slurm":
        return _submit(settings)
    _set_environment(settings[CudaOptions])
    head_start.begin(head_start.model_files(settings, card_of(family_name)))
    with garbage_collection.importing():
        family, method = _load(family_name, method_name)
    checks = (family.check, lambda valid: method.check(valid.get(NetworkOptions)), _dry_run)
    if wrong := [*preflight.found_by(checks, settings)]:
        return _refuse(settings, wrong)
    try:
        _set_up_console(settings[LoggingOptions])
    except OSError as error:
        return _refuse(settings, [f"console_log_file: '{error.filename}' cannot be written ({error.strerror})"])
    if problems := _make_output(settings[SavingOptions]):
        return _refuse(settings, problems)
    return _run(settings, family, method)


def _submit(settings: Settings) -> int:
    """Submit the run to Slurm and return the exit status; of several processes, the first one does."""
    if os.environ.get("RANK", "0") != "0":
        return 0
    try:
        job = slurm.submit(settings)
    except ValueError as error:
        return _refuse(settings, [error])
    except OSError as error:
        return _refuse(settings, [f"run_dir: '{error.filename}' cannot be written ({error.strerror})"])
    print(f"Submitted Slurm job {job.id}. Its output: {job.folder.console}")
    print(f"`scancel {job.id}` ends it and saves its state", flush=True)
    try:
        slurm.add_to_list(job, settings[SavingOptions].output_name or "", settings.script.family)
    except ValueError as error:
        print(f"The run is not in the tab Runs: {error}", file=sys.stderr)
    return 0


def _hand_over_secrets(secrets: Mapping[str, str]) -> None:
    """Pass secrets on in variables, as the page does: these values are removed from logs and events."""
    with contextlib.suppress(ValueError):  # NUL in a value, which is reported with the other problems
        os.environ.update(secrets)
    # wandb uploads the command line, in which they may stand too
    sys.argv[1:] = Hider(handed_values(os.environ)).json(sys.argv[1:])


def _set_environment(cuda: CudaOptions) -> None:
    """Set the variables that torch and the libraries read when they are imported."""
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")  # less memory lost between buckets
    compile_cache.use_own_folder()
    if cuda.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when CUDA starts


def _load(family: str, method: str) -> tuple[Family, Method]:
    """Import the family and the method, and with them torch; --help need not wait for that."""
    from sd_scripts.families.common.family import family_of

    if method == "lora":
        from sd_scripts.training.methods.lora import Lora

        return family_of(family), Lora()
    if method == "textual_inversion":
        from sd_scripts.training.methods.textual_inversion import TextualInversion

        return family_of(family), TextualInversion()
    from sd_scripts.training.methods.full import Full

    return family_of(family), Full()


def _dry_run(settings: Settings) -> Iterator[str]:
    """Yield options that this machine and its libraries do not support, before anything is loaded."""
    import torch

    from sd_scripts.families.common.quantizing import machine_problems
    from sd_scripts.library import compile_support
    from sd_scripts.library.optim import lr_schedulers

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    yield from compile_support.problems(settings[CompileOptions], settings[CompileMoreOptions], device)
    if settings[TrainingOptions].mixed_precision == "fp16" and device.type == "cpu":
        yield "mixed_precision: fp16 is for GPUs; set bf16, or no"
    yield from machine_problems(settings.get(MemoryOptions), quantization_of(settings), device)
    lr_schedulers.dry_run(settings[OptimizerOptions], settings[LrSchedulerOptions])


def _run(settings: Settings, family: Family, method: Method) -> int:
    from sd_scripts.training.compiling import compiler
    from sd_scripts.training.context import make_context
    from sd_scripts.training.process.pauses import without_pauses
    from sd_scripts.training.saving.resuming import AlreadyFinished
    from sd_scripts.training.trainer import Trainer

    try:
        context = make_context(settings)
        if context.is_main and not context.folder.config.exists():
            write_toml(context.folder.config, settings.saved())
    except OSError as error:
        problem = f"run_dir: '{error.filename}' cannot be written ({error.strerror}); choose another folder"
        return _refuse(settings, [problem])
    training = False
    try:
        compiler.warm_up(settings[CompileOptions], settings[CompileMoreOptions], context.device)
        context.trackers.start(settings[LoggingOptions], settings.changed(), context.run_dir)
        for remark in preflight.remarks(settings):
            context.warn_once(remark, remark)
        with without_pauses(compiles=settings[CompileOptions].compile):
            trainer = Trainer(context, family, method)
            training = True
            path = trainer.train()
    except AlreadyFinished as done:
        context.warn(str(done))
        context.emit("finished", step=done.step, path=str(done.path), seconds=0.0)
        context.began = True
        return 0
    except KeyboardInterrupt:  # before the first step; later, CommandListener handles it
        context.emit("stopped", step=0)
        logger.info("Stopped before the first step; nothing was trained")
        return INTERRUPTED
    except Exception as error:
        return _report_failure(context, error, training)
    finally:
        context.close()
        if context.is_main and not context.began and not settings[RunOptions].run_dir:
            _remove_run_folder(context.folder)
    if path and context.is_main:
        logger.info("Saved %s", path)
    return 0


def _report_failure(context: Context, error: Exception, training: bool) -> int:
    """Report one sentence if the user can do something, else with a traceback; return the exit status."""
    details = "".join(traceback.format_exception(error))
    known = _explain(error, context, training)
    sentence, remedy = known or (f"{type(error).__name__}: {error}", "")
    own = sentence
    if (other := context.first_failure(sentence)) and not known:  # this process failed because it waited for that one
        known = sentence, remedy = f"another process of the run failed: {other}", ""
    remedy = "; ".join(filter(None, (remedy, context.emergency_advice())))
    context.emit("failed", error=sentence, remedy=remedy, details=details)
    # a mistake in the settings is the same in all processes
    if context.is_main or (training and not context.main_fails_with(own, SECONDS_TO_REPORT)):
        text = f"\n{sentence}" + (f"; {remedy}" if remedy else "") + ("" if known else f"\n{details}")
        print(without_handed(text), file=sys.stderr, flush=True)
    return FAULT if training or not known else MISTAKE


def _explain(error: Exception, context: Context, training: bool) -> tuple[str, str] | None:
    """Return the error and its remedy; None if the user cannot fix it."""
    from sd_scripts.training.context import Failed
    from sd_scripts.training.process import error_hints

    if isinstance(error, Failed):
        return str(error), error.remedy
    if known := error_hints.explain(error, context.settings):
        return known
    names = str(error).partition(":")[0].split(", ")
    if isinstance(error, ValueError) and (not training or all(name in context.settings.options for name in names)):
        return str(error), ""
    if isinstance(error, OSError):
        return sentence_of(error), error_hints.SAVED_BEFORE if training else ""
    return None


def _refuse(settings: Settings, found: Iterable[object]) -> int:
    """Report problems in the console, once per machine, and in the folder that the GUI made for the run."""
    problems = list(dict.fromkeys(map(str, found)))
    notes = preflight.notes(preflight.remarks(settings))
    if os.environ.get("LOCAL_RANK", "0") == "0":
        print(without_handed("\n".join((*problems, *notes))), file=sys.stderr, flush=True)
    else:
        time.sleep(SECONDS_TO_REPORT)
    folder = settings[RunOptions].run_dir
    if isinstance(folder, str) and Path(folder).is_dir() and os.environ.get("RANK", "0") == "0":
        with contextlib.suppress(OSError):
            log = RunFolder(Path(folder)).log()
            log("failed", error=problems[0], remedy="", details="\n".join([*problems[1:], *notes]))
            log.close()
    return MISTAKE


def _unwritable_output(saving: SavingOptions) -> Iterator[str]:
    """Yield why no file can be saved, by trying: unlike this, a plan writes nothing and asks for permissions only."""
    folder = Path(saving.output_dir or ".")
    if why := why_unwritable(folder / (saving.output_name or LAST)):
        yield f"output_dir: '{folder}' cannot be written to ({why}); choose another folder"


def _make_output(options: SavingOptions) -> list[str]:
    folder = Path(options.output_dir or ".")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return [f"output_dir: '{folder}' cannot be created ({error.strerror}); choose another folder"]
    return []


def _remove_run_folder(folder: RunFolder) -> None:
    """Remove the folder of a run that never began. One that the page made for it stays, with the reason."""
    with contextlib.suppress(OSError):
        folder.events_file.unlink(missing_ok=True)
        folder.config.unlink(missing_ok=True)
        folder.path.rmdir()
        folder.path.parent.rmdir()  # unless it contains other runs


def _set_up_console(options: LoggingOptions) -> None:
    handler: logging.Handler = logging.StreamHandler()
    if options.console_log_file:
        handler = logging.FileHandler(options.console_log_file, encoding="utf-8")
    elif not options.console_log_simple and sys.stderr.isatty():
        from rich.logging import RichHandler

        handler = RichHandler(show_path=False)
    handler.setFormatter(HidingFormatter("%(message)s"))
    ours = logging.getLogger("sd_scripts")
    ours.handlers = [handler]
    ours.propagate = False
    ours.setLevel(options.console_log_level or "INFO")
