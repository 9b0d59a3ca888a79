"""The training backend of the page: models, options, files, runs."""

import logging
import os
import sys
from pkgutil import extend_path
from types import TracebackType

__path__ = extend_path(__path__, __name__)  # a different folder of PYTHONPATH may add a model family

# Without a GPU it warns at every import about a missing CPU kernel, which we do not use.
logging.getLogger("bitsandbytes").setLevel(logging.ERROR)

_report = sys.excepthook


def _report_but_ctrl_c(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    program = getattr(sys.modules.get("__main__"), "__file__", None) or ""
    if issubclass(kind, KeyboardInterrupt) and os.path.abspath(program).startswith(os.path.dirname(__file__) + os.sep):
        print("Stopped", flush=True)
    else:
        _report(kind, error, trace)


sys.excepthook = _report_but_ctrl_c  # Ctrl-C may come while one of our programs is still being imported
