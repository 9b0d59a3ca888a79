"""Print the plan of a run, for a training script's --plan."""

import dataclasses
import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from sd_scripts.options.compile import CompileOptions
from sd_scripts.options.dataset import AugmentOptions, BucketOptions, CaptionOptions, DatasetOptions, ValidationOptions
from sd_scripts.options.launch import LaunchOptions, SlurmOptions
from sd_scripts.options.spec import Option
from sd_scripts.options.training import TrainingOptions
from sd_scripts.planning.run_plan import RunPlan, plan_run
from sd_scripts.planning.text import as_texts, lines
from sd_scripts.runs.exit_codes import MISTAKE
from sd_scripts.settings import preflight
from sd_scripts.settings.checks import data_files as data_checks
from sd_scripts.settings.family_options import each_option
from sd_scripts.settings.settings import Groups, Problem, Settings

OF_PLANS: Groups = (
    *(DatasetOptions, BucketOptions, CaptionOptions, AugmentOptions, ValidationOptions),
    *(TrainingOptions, CompileOptions, LaunchOptions, SlurmOptions),
)
"""Inputs of a plan."""


def show_plan(settings: Settings, wrong_flags: Sequence[Problem], *, as_json: bool) -> int:
    """Print the plan and return the exit status. Problems of the data are errors; others are listed below the plan."""
    if int(os.environ.get("LOCAL_RANK", "0")):
        return 0  # the first process shows it
    try:
        plan = checked_plan(settings, wrong_flags)
    except (ValueError, OSError) as error:
        print(error, *preflight.notes(preflight.remarks(settings)), sep="\n", file=sys.stderr)
        return MISTAKE
    missing = preflight.problems(settings)
    if as_json:
        print(json.dumps(as_answer(plan, missing)))
    else:
        print(*lines(plan), *(f"Before it can start: {problem}" for problem in missing), sep="\n")
    return 0


def checked_plan(settings: Settings, wrong_flags: Sequence[Problem] = ()) -> RunPlan:
    """Return the plan of a run. Raises ValueError, one sentence a line, for all that prevents it."""
    require_plannable(settings, wrong_flags)
    plan = plan_run(settings)
    return dataclasses.replace(plan, warnings=(*preflight.remarks(settings), *plan.warnings))


def require_plannable(settings: Settings, wrong_flags: Sequence[Problem] = ()) -> None:
    """Raise ValueError, one sentence a line, for all that prevents a plan before the images are read."""
    wrong = [*wrong_flags, *settings.problems()]
    valid = settings.without(wrong)
    fatal = [problem for problem in wrong if _concerns_plan(problem, settings.options)]
    if problems := list(dict.fromkeys(map(str, (*fatal, *preflight.found_by(data_checks.CHECKS, valid))))):
        raise ValueError("\n".join(problems))


def as_answer(plan: RunPlan, problems: Sequence[Problem]) -> dict[str, Any]:
    """Return the plan, its texts and what keeps the run from starting, for JSON."""
    return {**plan.as_json(), **as_texts(plan), "problems": [*map(str, problems)]}


def _concerns_plan(problem: Problem, options: Mapping[str, Option]) -> bool:
    """Return whether this problem prevents a plan; a missing model, for one, does not matter."""
    names = {o.name for group in OF_PLANS for o in each_option(group)}
    known = options.keys() >= {*problem.names}
    return not names.isdisjoint(problem.names) or not known or not problem.names
