"""A resident process that plans runs for the page, which would otherwise wait for Python and OpenCV at every change.

A request (see `sd_scripts.machine.resident`) is the settings as in a saved file, and its answer the plan as --plan
--json prints it, {"refused": [sentence, ...]}, or {"fault": traceback}. A request {"fit": {name: settings}} is answered
by `fit`.
"""

import traceback
from collections.abc import Mapping
from typing import Any

from sd_scripts.machine.resident import serve
from sd_scripts.planning.fit import fit
from sd_scripts.planning.show import as_answer, checked_plan
from sd_scripts.settings import preflight
from sd_scripts.settings.catalog import script_for
from sd_scripts.settings.reading import from_values

MOST_BYTES = 2**30
"""Memory after which the process ends: large datasets leave more behind than the next plans need."""


def answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer to a request, whatever is wrong with it."""
    try:
        if "fit" in request:
            return fit(request["fit"])
        settings = from_values(script_for(request["family"], request["method"]), request)
        try:
            return as_answer(checked_plan(settings), preflight.problems(settings))
        except (ValueError, OSError) as error:
            return {"refused": str(error).splitlines()}
    except Exception:
        return {"fault": traceback.format_exc()}


def main() -> None:
    serve(answer, most_bytes=MOST_BYTES)


if __name__ == "__main__":
    main()
