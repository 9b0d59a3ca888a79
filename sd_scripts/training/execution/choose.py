"""Which ways a run has to train a step, and in which order they are tried."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from sd_scripts.data.batch import Batch
from sd_scripts.library.optim.optimizers import keeps_update_from_recording
from sd_scripts.options.optimization.optimizer import OptimizerOptions
from sd_scripts.training.compiling.compile_progress import RECORDING
from sd_scripts.training.compiling.compiler import Compiler
from sd_scripts.training.compiling.recovery import Recovery
from sd_scripts.training.context import Context
from sd_scripts.training.execution.checked import Checked
from sd_scripts.training.execution.compiled import Compiled
from sd_scripts.training.execution.eager import Eager
from sd_scripts.training.execution.fallback import Fallback
from sd_scripts.training.execution.recorded import Recorded, RecordedUpdates
from sd_scripts.training.execution.recorder import CudaRecorder, records_steps
from sd_scripts.training.execution.runner import Launch, Runner, StepResult
from sd_scripts.training.execution.timed import Timed
from sd_scripts.training.step_clock import StepClock

logger = logging.getLogger(__name__)


class Execution:
    """The runners of a run: steps are timed, checked and repeated in a different way if one fails."""

    def __init__(
        self,
        context: Context,
        compiler: Compiler,
        recovery: Recovery,
        eager: Eager,
        *,
        shapes: int,
    ):
        """`shapes`: how many batch shapes there are."""
        self._context, self._compiler, self._eager, self._shapes = context, compiler, eager, shapes
        self._recorded = self._make_recorded() if records_steps(context) else None
        self._compiled_before = compiler.compiles_steps
        self._fallback = Fallback(eager, recovery, self.ways)
        self.clock = StepClock(context.device)
        checked = Checked(self._fallback, eager, compiler, context, self.clock)
        self._timed = Timed(checked, context, compiler, self.clock)

    def ways(self) -> Sequence[Runner]:
        """Return the runners that work by now, the fastest first: recorded, compiled, eager."""
        compiler = self._compiler
        if self._recorded and self._compiled_before != compiler.compiles_steps:
            self._recorded.forget()  # the code that graphs run may be freed
        self._compiled_before = compiler.compiles_steps
        ways: list[Runner] = [self._eager]
        launch: Launch = self._eager
        if compiler.compiles_steps:
            static = self._eager.trainable.static_graph
            compiled = Compiled(
                self._eager, skips_guards=compiler.skips_guards and static, cuda_graphs=compiler.cuda_graphs
            )
            ways.insert(0, compiled)
            launch = compiled
        if self._recorded and compiler.records_steps:
            self._recorded.launch = launch
            ways.insert(0, self._recorded)
        return ways

    def step(self, batches: Sequence[Batch]) -> StepResult:
        return self._timed.step(batches)

    def forget(self) -> None:
        self._timed.forget()

    def watch(self, step: int, shape: str) -> None:
        """Report the compilations of a step; decide how the next ones run."""
        skipped_guards = self._compiler.skips_guards
        self._compiler.watch(step, shape)
        decided = self._timed.decide()
        if decided or self._compiler.skips_guards != skipped_guards:
            self._fallback.choose()

    def remember_speed(self) -> None:
        self._timed.remember()

    def _make_recorded(self) -> Recorded:
        """Return the runner that records the steps, and their update too if that can be recorded."""
        eager = self._eager
        recorder = CudaRecorder()
        reason = keeps_update_from_recording(
            eager.optimizer,
            self._context.settings[OptimizerOptions],
            scaled=eager.scaler is not None,
            processes=eager.processes,
        )
        if reason and self._context.is_main:
            logger.info("record_steps: forward and backward are recorded, the update is not: %s", reason)
        updates = None if reason else RecordedUpdates(eager, recorder, self._warn_unrecorded_update)
        return Recorded(eager, recorder, self._announce_recording, updates)

    def _warn_unrecorded_update(self, reason: str) -> None:
        self._context.warn(
            f"record_steps: the update cannot be recorded as a CUDA graph: {reason}. It runs as usual; forward and "
            "backward are recorded"
        )

    def _announce_recording(self, number: int) -> None:
        note = f"batch shape {number} of {max(number, self._shapes)}"
        self._context.emit("phase", name=RECORDING, note=note)
