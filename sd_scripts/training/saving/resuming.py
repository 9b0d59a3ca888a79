"""Where a run starts: at the beginning, or from the state of an earlier one, which must fit."""

from __future__ import annotations

import logging

from sd_scripts.options.networks.network import NetworkOptions
from sd_scripts.options.optimization.optimizer import OptimizerOptions
from sd_scripts.options.saving import SavingOptions
from sd_scripts.options.training import LATEST, ResumeOptions, TrainingOptions
from sd_scripts.planning.steps import TrainPlan
from sd_scripts.training.context import Context
from sd_scripts.training.progress import AlreadyFinished, Progress, starting_point
from sd_scripts.training.saving.origin import FLAG, Origin, changed_models, changes, model_origin_of
from sd_scripts.training.saving.recovery import finished_file, newest_state
from sd_scripts.training.saving.train_state import SavedState, read_whole, resume_point

logger = logging.getLogger(__name__)


def find_state(context: Context) -> SavedState | None:
    """Return the state to resume from, the same in all processes; `latest` is the newest of this output_name.

    Raises ValueError, which names the option, for a state that does not fit.
    """
    resume = context.settings[ResumeOptions].resume
    saved, problem = None, ""
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
    folder, settings = context.output_dir, context.settings

    def why_not_resumed(saved: SavedState) -> str:
        """Return a sentence if the run cannot continue from a state, by its summary; else an empty text."""
        if problem := _why_not_loaded(saved, context):
            return problem
        if settings[ResumeOptions].resume_changed_model:
            return ""
        return next((_refused(change) for change in changed_models(saved.origin, model_origin_of(settings))), "")

    saved = newest_state(folder, settings[SavingOptions].output_name, context.warn, why_not_resumed)
    if saved:
        logger.info("resume: resuming from '%s'", saved.folder)
    else:
        logger.info("resume: starting from the beginning, '%s' has no state of this run yet", folder)
    return saved


def keep_seed(saved: SavedState, context: Context) -> None:
    """Keep the seed of the state, so that a resumed run draws what it would have drawn."""
    seed = context.settings[TrainingOptions].seed
    if seed is not None and seed != saved.seed:
        context.warn(f"seed: {seed} is ignored; a resumed run keeps the seed of its state, {saved.seed}")
    context.seed = saved.seed


def first_progress(saved: SavedState | None, context: Context, train_plan: TrainPlan) -> Progress:
    """Return where the run starts. Raises AlreadyFinished if there is nothing left to do."""
    options = context.settings[ResumeOptions]
    if not saved:
        return starting_point(options, train_plan)
    again = options.resume == LATEST
    last = finished_file(context.output_dir, context.settings[SavingOptions].output_name)
    if again and last and saved.progress.step == train_plan.max_steps:
        raise AlreadyFinished(train_plan.max_steps, last)
    return resume_point(saved, train_plan, context.warn, again=again)


def report_changes(saved: SavedState, origin: Origin, source: str, context: Context) -> None:
    """Warn about changes since the state was saved. Raises ValueError for another base model unless allowed.

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
