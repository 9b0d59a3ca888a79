"""Compares compiled steps with eager ones on the same inputs (`compile_check_every`); training is not affected."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from sd_scripts.data.batch import Batch
from sd_scripts.families.common.family import StepInputs
from sd_scripts.options.compile import CompileMoreOptions, CompileOptions
from sd_scripts.training.compiling.compiler import Compiler
from sd_scripts.training.context import Context
from sd_scripts.training.execution.eager import Eager
from sd_scripts.training.execution.runner import Runner, StepResult
from sd_scripts.training.methods.method import Trainable
from sd_scripts.training.step_clock import StepClock

logger = logging.getLogger(__name__)

BOUNDS = {torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 1e-1}
"""Compute dtype -> the relative difference above which rounding is an unlikely cause: about 8000, 40 and 25 times the
distance between neighbouring numbers, since fused kernels keep more digits between operations than eager ones."""


@dataclass(frozen=True, kw_only=True)
class EagerStep:
    """What an eager step computed: its mean loss, and its gradients by name, in main memory."""

    loss: Tensor
    gradients: dict[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class Difference:
    """How far a compiled step is from the eager one; NaN if either has a value that is not finite."""

    loss: float
    """|compiled - eager| / |eager|."""
    gradients: float
    """Largest |compiled - eager| of all trained values, divided by the largest |eager| of all."""

    @property
    def finite(self) -> bool:
        return math.isfinite(self.loss) and math.isfinite(self.gradients)


def require_one_process(context: Context) -> None:
    """Raise ValueError if steps are to be checked in a run of several processes."""
    if context.world > 1 and context.settings[CompileMoreOptions].checks(context.settings[CompileOptions]):
        raise ValueError(
            "compile_check_every: several processes average gradients within the step, so it cannot also run eagerly; "
            "set compile_check_every = 0, or check a run of one process"
        )


class Checked:
    """Runs each Nth step eagerly too, before another runner does."""

    def __init__(self, inner: Runner, eager: Eager, compiler: Compiler, context: Context, clock: StepClock):
        self._inner, self._eager, self._compiler, self._clock = inner, eager, compiler, clock
        self._check = CompileCheck(context, eager.trainable)

    def step(self, batches: Sequence[Batch]) -> StepResult:
        number = self._eager.progress.step + 1
        if not self._compiler.compiles_steps or not self._check.due(number):
            return self._inner.step(batches)
        with self._clock.paused():
            reference = self._check.eager_step(lambda: self._eager.accumulate(batches, self._uncompiled))
        if reference:
            self._eager.inspect = partial(self._compare, number, reference)
        try:
            return self._inner.step(batches)
        finally:
            self._eager.inspect = None

    def forget(self) -> None:
        self._inner.forget()

    def _uncompiled(self, inputs: StepInputs) -> Tensor:
        with torch.compiler.set_stance("force_eager"):
            return self._eager.micro_step(inputs)

    def _compare(self, number: int, reference: EagerStep, loss: Tensor) -> None:
        if self._compiler.active:
            with self._clock.paused():
                self._check.report(number, reference, loss)


class CompileCheck:
    """Measures how far the loss and gradients of eager steps are from compiled ones."""

    def __init__(self, context: Context, trainable: Trainable):
        self._context, self._trainable = context, trainable
        self._every = context.settings[CompileMoreOptions].compile_check_every or 0
        self._bound = BOUNDS.get(context.dtype, BOUNDS[torch.bfloat16])

    def due(self, step: int) -> bool:
        return bool(self._every) and step % self._every == 0

    def eager_step(self, run: Callable[[], Tensor]) -> EagerStep | None:
        """Return the result of `run`, which accumulates the gradients of a step eagerly and returns its mean loss.

        Gradients and random state are as before. None if memory does not suffice, and then no step is checked again.
        """
        cuda = self._context.device.type == "cuda"
        try:
            with torch.random.fork_rng(devices=[self._context.device] if cuda else []):
                loss = run()
            gradients = self._trainable.gradients.named()
            copies = {name: gradient.detach().to("cpu", copy=True) for name, gradient in gradients.items()}
            return EagerStep(loss=loss.detach().cpu(), gradients=copies)
        except torch.OutOfMemoryError:
            self._every = 0
        finally:
            self._trainable.gradients.discard()
        self._context.warn("compile_check_every: an eager step does not fit into memory, so no step is checked")
        return None

    def report(self, step: int, eager: EagerStep, loss: Tensor) -> None:
        """Report how far the compiled step is from the eager one; its gradients are accumulated but not yet clipped."""
        result = difference(eager, loss, self._trainable.gradients.named())
        exceeds = not result.finite or max(result.loss, result.gradients) > self._bound
        self._context.emit(
            "compile_check",
            step=step,
            loss_difference=result.loss if result.finite else None,
            gradient_difference=result.gradients if result.finite else None,
            bound=self._bound,
            exceeds=exceeds,
        )
        if self._context.is_main:
            logger.info("Step %d, compiled and eager: %s", step, described(result))
        if exceeds:
            dtype = str(self._context.dtype).removeprefix("torch.")
            self._context.warn_once(
                "compile_check_every",
                f"compile_check_every: compiled and eager results of step {step} differ: {described(result)}. Rounding "
                f"in {dtype} explains up to {self._bound:g}. Try compile_skip_guards = false and compile_mode = "
                "default, or turn compile off",
            )


def difference(eager: EagerStep, loss: Tensor, gradients: dict[str, Tensor]) -> Difference:
    """Return how far a compiled step is from an eager one; a gradient that one of them lacks counts as 0."""
    reference = float(eager.loss)
    apart, largest = [0.0], [0.0]
    for name in {**eager.gradients, **gradients}:
        ours, theirs = gradients.get(name), eager.gradients.get(name)
        if ours is not None and theirs is not None:
            theirs = theirs.to(ours.device).float()
            apart.append(float((ours.float() - theirs).abs().max()))
        else:
            apart.append(float((theirs if ours is None else ours).float().abs().max()))  # type: ignore[union-attr]
        largest.append(0.0 if theirs is None else float(theirs.abs().max()))
    return Difference(
        loss=_ratio(abs(float(loss) - reference), abs(reference)), gradients=_ratio(_max(apart), _max(largest))
    )


def _max(values: list[float]) -> float:
    return math.nan if any(map(math.isnan, values)) else max(values)


def _ratio(part: float, whole: float) -> float:
    """Return part / whole: 0 if both are 0, NaN if either is not finite."""
    if not (math.isfinite(part) and math.isfinite(whole)):
        return math.nan
    return part / whole if whole else (math.inf if part else 0.0)


def described(result: Difference) -> str:
    """Return "loss by 1.2e-07, gradients by 3.1e-06 of the largest"."""
    if not result.finite:
        return "a loss or gradient is not finite"
    return f"loss by {result.loss:.2g}, gradients by {result.gradients:.2g} of the largest"
