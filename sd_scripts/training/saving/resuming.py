"""Where a run starts: at the beginning, or from the state of an earlier one, which must fit."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from sd_scripts.options.networks.network import NetworkOptions
from sd_scripts.options.optimization.optimizer import OptimizerOptions
from sd_scripts.options.saving import SavingOptions
from sd_scripts.options.training import LATEST, ResumeOptions, TrainingOptions
from sd_scripts.planning.steps import TrainPlan
from sd_scripts.training.context import Context
from sd_scripts.training.progress import Progress
from sd_scripts.training.saving.origin import FLAG, Origin, changed_models, changes, model_origin_of
from sd_scripts.training.saving.recovery import finished_file, newest_state
from sd_scripts.training.saving.train_state import SavedState, read_whole

logger = logging.getLogger(__name__)


class AlreadyFinished(Exception):
    """The run that is to be resumed has finished; a sentence for the user."""

    def __init__(self, step: int, path: Path):
        super().__init__(
            f"resume: the run is finished: its state is at its last step, {step}, and '{path}' exists. To train "
            "further, raise max_train_steps or max_train_epochs"
        )
        self.step, self.path = step, path


def find_state(context: Context) -> SavedState | None:
    """Return the state to resume from, the same in all processes; `latest` is the newest of this output_name.

    Raises ValueError, which names the option, for a state that does not fit.
    """
    resume = context.settings[ResumeOptions].resume
    saved = None
    problem = ""
    if resume and context.is_main:
        try:
            saved = _newest(context) if resume == LATEST else _named(resume, context)
        except ValueError as error:
            problem = str(error)
    saved, problem = context.agreed((saved, problem))
    if problem:
        raise ValueError(problem)
    return saved


def _named(resume: str, context: Context) -> SavedState:
    saved = read_whole(resume)
    if problem := _why_not_loaded(saved, context):
        raise ValueError(problem)
    return saved


def _why_not_loaded(saved: SavedState, context: Context) -> str:
    return saved.why_not_loaded(context.settings[OptimizerOptions], context.settings.get(NetworkOptions))


def _newest(context: Context) -> SavedState | None:
    folder = context.output_dir
    settings = context.settings

    def why_not_resumed(saved: SavedState) -> str:
        """Return a sentence if the run cannot continue from a state, by its summary; else an empty text."""
        if problem := _why_not_loaded(saved, context):
            return problem
        if settings[ResumeOptions].resume_changed_model:
            return ""
        return next((_refused(change) for change in changed_models(saved.origin, model_origin_of(settings))), "")

    name, began = settings[SavingOptions].output_name, context.folder.began
    saved = newest_state(folder, name, context.warn, why_not_resumed, since=began)
    if saved:
        logger.info("resume: resuming from '%s'", saved.folder)
    else:
        logger.info("resume: starting from the beginning, '%s' has no state of this run yet", folder)
    return saved


def keep_seed(saved: SavedState, context: Context) -> None:
    """Keep the seed of the state, so that a resumed run draws the same random numbers."""
    seed = context.settings[TrainingOptions].seed
    if seed is not None and seed != saved.seed:
        context.warn(f"seed: {seed} is ignored; a resumed run keeps the seed of its state, {saved.seed}")
    context.seed = saved.seed


def first_progress(saved: SavedState | None, context: Context, train_plan: TrainPlan) -> Progress:
    """Return where the run starts. Raises AlreadyFinished if there is nothing left to do."""
    options = context.settings[ResumeOptions]
    if not saved:
        return _starting_point(options, train_plan)
    again = options.resume == LATEST
    last = finished_file(context.output_dir, context.settings[SavingOptions].output_name)
    if again and last and saved.progress.step == train_plan.max_steps:
        raise AlreadyFinished(train_plan.max_steps, last)
    return _resume_point(saved, train_plan, context.warn, again=again)


def _starting_point(options: ResumeOptions, train_plan: TrainPlan) -> Progress:
    """Return the start that initial_step or initial_epoch sets; without skip_until_initial_step at the first batch.

    Raises ValueError when nothing is left to do.
    """
    step = options.initial_step or ((options.initial_epoch or 1) - 1) * train_plan.steps_per_epoch
    if step >= train_plan.max_steps:
        raise ValueError(f"initial_step: step {step} is not before the end of the run, step {train_plan.max_steps}")
    epochs, steps = divmod(step, train_plan.steps_per_epoch)
    done = steps * train_plan.accumulation if options.skip_until_initial_step else 0
    return Progress(step=step, epoch=epochs + 1, batch=done)


def _resume_point(saved: SavedState, train_plan: TrainPlan, warn: Callable[[str], None], *, again: bool) -> Progress:
    """Return where the run resumes. Raises ValueError when nothing is left to do, unless `again`: the same command was
    given once more, and resuming at the end is fine, since the last file may not be written yet."""
    progress = saved.progress
    if again and progress.step == train_plan.max_steps:
        return progress
    if progress.step >= train_plan.max_steps:
        raise ValueError(
            f"resume: the state is at step {progress.step}, but the run ends at step {train_plan.max_steps}; "
            "raise max_train_steps or max_train_epochs"
        )
    if saved.batches_per_epoch != train_plan.batches_per_epoch and progress.batch:
        warn(
            f"resume: an epoch now has {train_plan.batches_per_epoch} batches instead of {saved.batches_per_epoch}, so "
            f"epoch {progress.epoch} restarts from its first batch"
        )
        return Progress(step=progress.step, epoch=progress.epoch)
    return progress


def report_changes(saved: SavedState, origin: Origin, source: str, context: Context) -> None:
    """Warn about changes since the state was saved. Raises ValueError for a different base model unless allowed.

    `source`: the option that names the images.
    """
    if models := list(changed_models(saved.origin, origin)):
        if not context.settings[ResumeOptions].resume_changed_model:
            raise ValueError("\n".join(map(_refused, models)))
        for change in models:
            context.warn(f"{change}; {FLAG} allows it")
    for change in changes(saved.origin, origin, source):
        context.warn(change)


def _refused(change: str) -> str:
    return f"{change}; restore it, or set {FLAG}"
