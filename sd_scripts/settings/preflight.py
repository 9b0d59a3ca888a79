"""Check all of a run that needs no torch: values, model files, data, prompts, output folders.

The training scripts, the page's Start and the queue call it and report all its findings together. Other problems
are reported by the code that opens the file.
"""

import importlib.util
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

from sd_scripts.families.cards.registry import card_of
from sd_scripts.formats.words import shortened
from sd_scripts.options.generating.prompt_lines import PromptFile, read_prompt_file
from sd_scripts.options.generating.sampling import SampleOptions
from sd_scripts.options.launch import SlurmOptions
from sd_scripts.options.logging import LoggingOptions
from sd_scripts.options.metadata import MetadataOptions, thumbnail_url
from sd_scripts.options.model import ModelOptions
from sd_scripts.options.networks.network import NetworkOptions
from sd_scripts.options.optimization.optimizer import OptimizerOptions
from sd_scripts.options.optimization.optimizer import remarks as optimizer_remarks
from sd_scripts.options.optimization.optimizer_table import known_optimizer
from sd_scripts.options.saving import SavingOptions
from sd_scripts.options.spec import WrongValue
from sd_scripts.options.training import LATEST, ResumeOptions
from sd_scripts.runs.outputs import ENDINGS, LAST, STATE_ENDING
from sd_scripts.settings import network_choice
from sd_scripts.settings.checks import data_files as data_checks
from sd_scripts.settings.checks import model_files as model_checks
from sd_scripts.settings.settings import Check, Problem, Script, Settings, reading


def problems(settings: Settings) -> list[Problem]:
    """Return every reason not to start, each once: first of the values, then of the files and folders they name."""
    found = settings.problems()
    return list(dict.fromkeys((*found, *found_by(CHECKS, settings.without(found)))))


def remarks(settings: Settings) -> list[str]:
    """Return all remarks on a start that do not prevent it, each sentence once: of the values, then of
    the files that they name."""
    of_files = found_by(REMARKS, settings.without(settings.problems()))
    return list(dict.fromkeys(map(str, (*settings.remarks, *of_files))))


def notes(remarks: Iterable[str]) -> list[str]:
    """Return the remarks as lines to follow the problems of a run that is refused: a remark may name the cause."""
    return [f"Note: {remark}" for remark in remarks]


def optimizer(valid: Settings) -> Iterator[str]:
    """Yield the optimizer's remarks about options that no other remark names."""
    known = {remark.name for remark in valid.remarks}
    yield from (each for each in optimizer_remarks(valid[OptimizerOptions]) if known.isdisjoint(_names(each)))


def _names(sentence: str) -> list[str]:
    return sentence.partition(":")[0].split(", ")


def prompt_file(settings: Settings) -> PromptFile | None:
    """Return the prompts of sample_prompts, which a start reads once; None if it is not set."""
    file = settings[SampleOptions].sample_prompts
    return settings.read_once(read_prompt_file, Path(file)) if file else None


def readable_prompts(valid: Settings) -> Iterator[str]:
    """Yield the remarks about prompts that have no problem."""
    file = prompt_file(valid)
    if not file or [*sample_prompts(valid)]:
        return
    yield from file.remarks()
    card, variant = card_of(valid.script.family), model_checks.model_variant(valid[ModelOptions])
    for entry, prompt in zip(file.entries, file.prompts(card.sample_defaults), strict=True):
        yield from (file.about(entry, text) for _, text in card.prompt_remarks(prompt, variant))


REMARKS: tuple[Check, ...] = (
    optimizer,
    network_choice.remarks,
    model_checks.model_remarks,
    reading(model_checks.network_remarks, Script, ModelOptions, NetworkOptions),
    readable_prompts,
)


def found_by(checks: Iterable[Check], valid: Settings) -> Iterator[Problem]:
    """Yield the findings of these checks in settings whose wrong values are left out."""
    for check in checks:
        for sentence in _until_wrong(partial(check, valid)):
            listed, _, text = sentence.partition(": ")
            names = tuple(listed.split(", "))
            known = all(name in valid.options for name in names)  # not so where a library's own words are passed on
            yield Problem(names, shortened(text)) if known else Problem((), shortened(sentence))


def _until_wrong(check: Callable[[], Iterable[str]]) -> Iterator[str]:
    try:
        yield from check()
    except WrongValue:
        return
    except ValueError as error:
        yield from str(error).splitlines()


def optimizer_package(options: OptimizerOptions) -> Iterator[str]:
    """Check that the package of an optimizer with a name of its own is installed; a class of the user's is looked for
    by the run, which may find more modules."""
    known = known_optimizer(options.optimizer_type)
    if known.package:
        known.require_package()
    yield from ()


def sample_prompts(valid: Settings) -> Iterator[str]:
    if prompts := prompt_file(valid):
        yield from prompts.problems(card_of(valid.script.family).capabilities)


def resume(options: ResumeOptions) -> Iterator[str]:
    state = options.resume
    if state and state != LATEST and not Path(state).is_dir():
        yield f"resume: folder not found: '{state}'; give a saved state's folder, or latest"


def metadata_thumbnail(options: MetadataOptions) -> Iterator[str]:
    if thumbnail := options.metadata_thumbnail:
        thumbnail_url(thumbnail)
    yield from ()


def output_dir(saving: SavingOptions) -> Iterator[str]:
    folder = Path(saving.output_dir or ".")
    if why := why_no_folder(folder):
        yield f"output_dir: '{folder}' cannot be written to ({why}); choose another folder"


def console_log_file(options: LoggingOptions) -> Iterator[str]:
    if name := options.console_log_file:
        file = Path(name)
        why = "Is a directory" if file.is_dir() else why_no_folder(file.parent, make=False)
        if why:
            yield f"console_log_file: '{file}' cannot be written ({why})"


def trackers(options: LoggingOptions) -> Iterator[str]:
    for name in options.trackers:
        if importlib.util.find_spec(name) is None:
            yield f"log_with: {name} is not installed; run `pip install {name}`"
    if options.trackers and options.logging_dir and (why := why_no_folder(Path(options.logging_dir))):
        yield f"logging_dir: '{options.logging_dir}' cannot be written to ({why}); choose another folder"
    options.tracker_arguments()


def why_no_folder(folder: Path, make: bool = True) -> str:
    """Return why no file can be written to a folder, which may not exist yet; "" if one can. Writes nothing, so it
    relies on permissions, which do not show every read-only file system."""
    try:
        there = next(each for each in (folder.absolute(), *folder.absolute().parents) if os.path.lexists(each))
    except OSError as error:
        return error.strerror or str(error)
    if there != folder.absolute() and not make:
        return os.strerror(2)
    if not there.is_dir():
        return "Not a directory"
    return "" if os.access(there, os.W_OK | os.X_OK) else "Permission denied"


def outputs(saving: SavingOptions) -> Iterator[str]:
    """Refuse a folder in place of the last file, and a file in place of its state."""
    folder = Path(saving.output_dir or ".")
    name = saving.output_name or LAST
    for path in (folder / f"{name}{ending}" for ending in (*ENDINGS, STATE_ENDING) if ending):
        wanted = path.name.endswith(STATE_ENDING)
        if os.path.lexists(path) and os.path.isdir(path) != wanted:
            what = "a file" if wanted else "a folder"
            yield f"output_name: {what} named '{path}' already exists; rename it or choose another name"


def slurm(valid: Settings) -> Iterator[str]:
    """Check what a Slurm job needs from the machine that submits it."""
    options = valid.get(SlurmOptions)
    if not options or options.where != "slurm":
        return
    if shutil.which("sbatch") is None:
        yield "where: sbatch was not found on the PATH; start from a machine of the cluster, or set where = here"
    if options.slurm_template and not Path(options.slurm_template).is_file():
        yield f"slurm_template: file not found: '{options.slurm_template}'"
    for name, o in valid.options.items():
        if o.secret and valid.value(name):
            yield (
                f"{name}: Slurm writes the environment of a job to disk, and the secret with it; leave the option "
                "empty, and log in on the cluster with `hf auth login` or `wandb login`"
            )


CHECKS: tuple[Check, ...] = (
    network_choice.problems,
    *model_checks.CHECKS,
    *data_checks.CHECKS,
    reading(optimizer_package, OptimizerOptions),
    sample_prompts,
    reading(resume, ResumeOptions),
    reading(metadata_thumbnail, MetadataOptions),
    reading(output_dir, SavingOptions),
    reading(outputs, SavingOptions),
    reading(console_log_file, LoggingOptions),
    reading(trackers, LoggingOptions),
    slurm,
)
