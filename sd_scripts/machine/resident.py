"""The loop of a resident process that answers the page, which would otherwise wait for Python at every request.

Each line of stdin is a request, a JSON object, and each line of stdout its answer. The process ends with stdin, so with
the GUI, and without an answer if its code has changed: the GUI then starts a new one and asks again.
"""

import os
import sys
import threading
from collections.abc import Callable, Mapping
from queue import SimpleQueue
from typing import Any

import psutil

from sd_scripts.formats.fast_json import dumps, loads

Request = Mapping[str, Any]


def serve(answer: Callable[[Request], Any], *, most_bytes: int) -> None:
    """Answer requests until stdin or the process ends: after `most_bytes` of memory a new one is started."""
    with os.fdopen(os.dup(1), "wb") as answers:
        os.dup2(2, 1)  # what libraries print is not an answer
        requests: SimpleQueue[Request] = SimpleQueue()
        threading.Thread(target=_read, args=(requests,), daemon=True).start()
        loaded = code_times()
        while psutil.Process().memory_info().rss < most_bytes:
            request = requests.get()
            now = code_times()
            if any(now[file] != time for file, time in loaded.items()):
                return
            loaded = now  # with the modules that the last answer loaded
            answers.write(dumps(answer(request)) + b"\n")
            answers.flush()


def code_times() -> dict[str, int]:
    """Return when each of our modules that are loaded was last written, in ns; 0 for a file that is gone."""
    ours = ("sd_scripts", "__main__")
    modules = [module for name, module in list(sys.modules.items()) if name.partition(".")[0] in ours]
    files = {file for module in modules if (file := getattr(module, "__file__", None))}
    return {file: os.stat(file).st_mtime_ns if os.path.exists(file) else 0 for file in files}


def _read(requests: "SimpleQueue[Request]") -> None:
    for line in sys.stdin.buffer:
        requests.put(loads(line))
    os._exit(0)  # the GUI is gone, and nobody waits for an answer that is being made
