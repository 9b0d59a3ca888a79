"""Programs for people beside the training scripts."""

import sys
from types import TracebackType

_report = sys.excepthook


def _report_but_ctrl_c(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        print("Stopped", flush=True)
    else:
        _report(kind, error, trace)


sys.excepthook = _report_but_ctrl_c  # Ctrl-C may come while a program is still being imported
