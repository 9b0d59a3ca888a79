"""Reports the compiler's progress while a step waits for it: graphs compiled and CUDA graphs recorded."""

import contextlib
import time
from collections.abc import Callable
from typing import Any

import torch

from sd_scripts.formats.words import counted
from sd_scripts.training.context import Context

COMPILING, RECORDING = "compiling", "recording CUDA graphs"
OF_STEPS = (COMPILING, RECORDING, "training")
"""Phases in which steps run. Others, such as sampling, report their own progress."""
EVERY = 0.5
"""Least seconds between two events: a small graph compiles in milliseconds."""


class CompileProgress:
    """Listens to Dynamo's start and end callbacks and reports compiling as a phase."""

    _installed: "CompileProgress | None" = None

    def __init__(self, context: Context, note: Callable[[int], str]):
        """`note` describes the progress of compiling, or is empty, given the number of backward passes that were
        begun."""
        self._context, self._note = context, note
        self._backward = self._recorded = 0
        self._last_phase = ""
        self._last_time = 0.0

    def install(self) -> None:
        """Listen from now on, in place of an earlier run in this process."""
        if CompileProgress._installed:
            CompileProgress._installed.remove()
        torch._dynamo.callback_handler.register_start_callback(self._started)
        torch._dynamo.callback_handler.register_end_callback(self._ended)
        CompileProgress._installed = self

    def remove(self) -> None:
        with contextlib.suppress(ValueError):  # torch._dynamo.reset() has removed them
            torch._dynamo.callback_handler.remove_start_callback(self._started)
            torch._dynamo.callback_handler.remove_end_callback(self._ended)
        CompileProgress._installed = None

    def step_done(self) -> None:
        """Report the next compilation immediately: on the page, the step has ended the phase."""
        self._last_phase = ""

    def _started(self, callback: Any) -> None:
        if _trigger(callback) == "CUDAGRAPH_RECORDING":
            self._recorded += 1
            self._emit(RECORDING, counted(self._recorded, "graph"))
        else:
            self._backward += _trigger(callback) == "LAZY_BACKWARD"  # when a backward pass first needs its code
            self._emit_compiled()

    def _ended(self, callback: Any) -> None:
        if _trigger(callback) != "CUDAGRAPH_RECORDING":
            self._emit_compiled()

    def _emit_compiled(self) -> None:
        self._emit(COMPILING, self._note(self._backward))

    def _emit(self, phase: str, note: str) -> None:
        now = time.monotonic()
        if self._context.phase_name not in OF_STEPS or (phase == self._last_phase and now - self._last_time < EVERY):
            return
        self._last_phase, self._last_time = phase, now
        with contextlib.suppress(Exception):  # an exception here would end the compilation
            self._context.emit("phase", name=phase, note=note)


def _trigger(callback: Any) -> str:
    return str(callback.callback_trigger.name)
