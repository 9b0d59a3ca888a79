"""Trial save before the first step, and a check that the disk has room for everything the run will save."""

import os

from sd_scripts.formats.disk import format_bytes, free_bytes, why_not_written
from sd_scripts.formats.words import counted, listed
from sd_scripts.options.saving import SavingOptions
from sd_scripts.options.training import ResumeOptions
from sd_scripts.planning.steps import TrainPlan
from sd_scripts.training.context import Context
from sd_scripts.training.saving.train_state import TrainState
from sd_scripts.training.saving.writer import Writer

STATE_FACTOR = 3
"""A state contains the trained weights and, with most optimizers, two moments of each."""


def dry_save(context: Context, train_state: TrainState, writer: Writer) -> None:
    """Raise ValueError in all processes if the last file could not be saved; warn if disk space will run short."""
    problem = ""
    if context.is_main:
        probe = context.output_dir / f".write-test-{os.getpid()}{writer.ending}"
        try:
            problem = _check_room(context, train_state, writer.try_out(probe))
        except OSError as error:
            why = why_not_written(error.__cause__ or error)
            problem = f"output_dir: '{context.output_dir}' failed a trial save: {why}"
    if problem := context.agreed(problem):
        raise ValueError(problem)


def _check_room(context: Context, train_state: TrainState, size: int) -> str:
    """Return why the last file does not fit on the disk, or ""."""
    folder = context.output_dir
    free = free_bytes(context.output_dir)
    if free is None or train_state.trainable.shards:  # with shards this process knows only its own part
        return ""
    saving = context.settings[SavingOptions]
    resume = context.settings[ResumeOptions]
    size *= 1 + len(train_state.trainable.companions)
    if train_state.ema:
        size *= 2
    if free < size:
        return (
            f"output_dir: '{folder}' has {format_bytes(free)} free, and the file at the end takes "
            f"{format_bytes(size)}; free {format_bytes(size - free)}, or choose another folder"
        )
    files, states = kept_files(saving, resume, train_state.train_plan, train_state.progress.step)
    trained = [each for group in train_state.optimizer.param_groups for each in group["params"]]
    state = STATE_FACTOR * sum(each.numel() * each.element_size() for each in trained)
    if free < (wanted := files * size + states * state):
        kept = listed([counted(files, "file"), *([counted(states, "state")] if states else [])])
        context.warn(
            f"output_dir: '{folder}' has {format_bytes(free)} free, and this run keeps {kept}, about "
            f"{format_bytes(wanted)}. Free {format_bytes(wanted - free)}, or keep fewer with "
            "save_last_n_steps or save_last_n_epochs"
        )
    return ""


def kept_files(saving: SavingOptions, resume: ResumeOptions, train_plan: TrainPlan, step: int) -> tuple[int, int]:
    """Return how many files and states will be in output_dir at the end of a run that is at this step."""
    at_steps = _kept(step, train_plan.max_steps - 1, saving.save_every_n_steps, saving.save_last_n_steps)
    every = train_plan.epochs_between_saves(saving)
    epoch = step // train_plan.steps_per_epoch
    at_epochs = _kept(epoch, train_plan.epochs - 1, every, saving.save_last_n_epochs)
    between = at_steps + at_epochs
    states = between * resume.save_state + (resume.save_state or resume.save_state_on_train_end)
    return between + 1, states


def _kept(done: int, last: int, every: int | None, window: int | None) -> int:
    if not every:
        return 0
    saves = max(0, last // every - done // every)
    return min(saves, window // every + 1) if window else saves
