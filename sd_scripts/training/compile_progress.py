"""Reports the compiler's progress while a step waits for it: graphs compiled and CUDA graphs recorded."""

import contextlib
import time
from collections.abc import Callable
from typing import Any

from sd_scripts.training.context import Context

COMPILING, RECORDING = "compiling", "recording CUDA graphs"
OF_STEPS = (COMPILING, RECORDING, "training")
"""Phases in which steps run. Others, such as sampling, report their own progress."""
EVERY = 0.5
"""Least seconds between two events: a small graph compiles in milliseconds."""


class CompileProgress:
    """Listens to Dynamo's start and end callbacks and reports compiling as a phase."""

    _installed: "CompileProgress | None" = None

    def __init__(self, context: Context, graphs: Callable[[], int]):
        """`graphs` returns how many graphs this run has compiled so far."""
        self._context, self._graphs = context, graphs
        self._recorded, self._told, self._when = 0, "", 0.0

    def install(self) -> None:
        """Listen from now on, in place of an earlier run in this process."""
        if CompileProgress._installed:
            CompileProgress._installed.remove()
        handler = _handler()
        if handler:
            handler.register_start_callback(self._started)
            handler.register_end_callback(self._ended)
            CompileProgress._installed = self

    def remove(self) -> None:
        handler = _handler()
        with contextlib.suppress(ValueError):  # torch._dynamo.reset() has removed them
            handler.remove_start_callback(self._started)
            handler.remove_end_callback(self._ended)
        CompileProgress._installed = None

    def step_done(self) -> None:
        """Report the next compilation at once: on the page, the step has ended the phase."""
        self._told = ""

    def _started(self, *of: Any) -> None:
        if self._records(of):
            self._recorded += 1
            self._tell(RECORDING, _counted(self._recorded, "graph"))
        else:
            self._tell(COMPILING, self._compiled())

    def _ended(self, *of: Any) -> None:
        if not self._records(of):
            self._tell(COMPILING, self._compiled())

    def _compiled(self) -> str:
        graphs = self._graphs()
        return f"{_counted(graphs, 'graph')} so far" if graphs else ""

    def _tell(self, phase: str, note: str) -> None:
        now = time.monotonic()
        if self._context.phase_name not in OF_STEPS or (phase == self._told and now - self._when < EVERY):
            return
        self._told, self._when = phase, now
        with contextlib.suppress(Exception):  # an exception here would end the compilation
            self._context.tell("phase", name=phase, note=note)

    @staticmethod
    def _records(of: tuple[Any, ...]) -> bool:
        trigger = getattr(of[0], "callback_trigger", None) if of else None  # none before PyTorch 2.7
        return getattr(trigger, "name", "") == "CUDAGRAPH_RECORDING"


def _handler() -> Any:
    """Return PyTorch's handler of compile callbacks; None in versions without one."""
    import torch

    return getattr(torch._dynamo, "callback_handler", None)


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
