"""Print the plan of a run: what a training script does with --plan."""

import json
import os
import sys
from collections.abc import Sequence

from sd_scripts.options import data_checks, preflight
from sd_scripts.options.settings import Problem, Settings
from sd_scripts.planning.run_plan import plan_run
from sd_scripts.planning.text import lines
from sd_scripts.runs.exit_codes import MISTAKE


def show_plan(settings: Settings, wrong_flags: Sequence[Problem], *, as_json: bool) -> int:
    """Print the plan and return the exit status. Problems of the data are errors; others are listed below the plan."""
    if int(os.environ.get("LOCAL_RANK", "0")):
        return 0  # the first process shows it
    wrong = [*map(str, wrong_flags), *settings.wrong_values()]
    valid = settings.without({sentence.partition(":")[0] for sentence in wrong})
    if problems := [*wrong, *map(str, preflight.found_by(data_checks.CHECKS, valid))]:
        return _refuse(problems)
    try:
        plan = plan_run(settings)
    except (ValueError, OSError) as error:
        return _refuse([str(error)])
    missing = [str(problem) for problem in preflight.problems(settings)]
    if as_json:
        print(json.dumps({**plan.as_json(), "problems": missing}))
    else:
        print(*lines(plan), *(f"Before it can start: {problem}" for problem in missing), sep="\n")
    return 0


def _refuse(problems: Sequence[str]) -> int:
    print(*problems, sep="\n", file=sys.stderr)
    return MISTAKE
