"""A resident process that plans runs for the page, which would otherwise wait for Python and OpenCV at every change.

Each line of stdin is a request, the settings as a JSON object as in a saved file, and each line of stdout the answer:
the plan as --plan --json prints it, {"refused": [sentence, ...]}, or {"fault": traceback}. The process ends with stdin,
so with the GUI, and without an answer if its code has changed: the GUI then starts a new one and asks again.
"""

import json
import os
import sys
import threading
import traceback
from collections.abc import Mapping
from queue import SimpleQueue
from typing import Any

import psutil

from sd_scripts.planning.show import as_answer, checked_plan
from sd_scripts.settings import preflight
from sd_scripts.settings.catalog import script_for
from sd_scripts.settings.reading import from_values

MOST_BYTES = 2**30
"""Memory after which the process ends: large datasets leave more behind than the next plans need."""


def answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer to a request, whatever is wrong with it."""
    try:
        settings = from_values(script_for(request["family"], request["method"]), request)
        try:
            return as_answer(checked_plan(settings), preflight.problems(settings))
        except (ValueError, OSError) as error:
            return {"refused": str(error).splitlines()}
    except Exception:
        return {"fault": traceback.format_exc()}


def code_times() -> dict[str, int]:
    """Return when each of our modules that are loaded was last written, in ns; 0 for a file that is gone."""
    ours = ("sd_scripts", "__main__")
    modules = [module for name, module in list(sys.modules.items()) if name.partition(".")[0] in ours]
    files = {file for module in modules if (file := getattr(module, "__file__", None))}
    return {file: os.stat(file).st_mtime_ns if os.path.exists(file) else 0 for file in files}


def _read(requests: "SimpleQueue[Mapping[str, Any]]") -> None:
    for line in sys.stdin.buffer:
        requests.put(json.loads(line))
    os._exit(0)  # the GUI is gone, and nobody waits for a plan that is being made


def main() -> None:
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)  # what libraries print is not an answer
        requests: SimpleQueue[Mapping[str, Any]] = SimpleQueue()
        threading.Thread(target=_read, args=(requests,), daemon=True).start()
        loaded = code_times()
        while psutil.Process().memory_info().rss < MOST_BYTES:
            request = requests.get()
            now = code_times()
            if any(now[file] != time for file, time in loaded.items()):
                return
            loaded = now  # with the modules that the last plan loaded
            print(json.dumps(answer(request)), file=answers, flush=True)


if __name__ == "__main__":
    main()
