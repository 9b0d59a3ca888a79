"""Validation loss on held-out images: the same images, timesteps and noise each time."""

from collections.abc import Callable
from itertools import islice

import torch
from torch import Tensor

from sd_scripts.families.common.family import StepInputs
from sd_scripts.options.dataset import ValidationOptions
from sd_scripts.options.optimization.loss import NoiseOptions
from sd_scripts.runs.reporter import Progress
from sd_scripts.training.execution.step_inputs import step_inputs
from sd_scripts.training.process.error_hints import brief
from sd_scripts.training.saving.train_state import TrainState
from sd_scripts.training.training_data import TrainingData


class ValidationLoss:
    """Measures the loss on the held-out images of the training data, with noise and timesteps that depend on the seed
    only."""

    def __init__(self, training_data: TrainingData, loss: Callable[[StepInputs], Tensor]):
        """`loss`: inputs of a step -> loss of each image (B,)."""
        self._training_data, self._loss = training_data, loss
        settings = training_data.context.settings
        self._options = settings[ValidationOptions]
        self.timesteps = training_data.family.validation_timesteps(settings[NoiseOptions])
        if experts := training_data.components.experts:
            self.timesteps = experts.validated(self.timesteps, settings[NoiseOptions])
        plan = training_data.plan.validation
        self._loader = training_data.loader(plan) if plan else None

    @property
    def batches(self) -> int:
        """How many batches are measured; 0 without held-out images."""
        return min(len(self._loader), self._options.max_validation_steps or len(self._loader)) if self._loader else 0

    @torch.no_grad()
    def measure(self, progress: Progress) -> Tensor:
        """Return the mean loss over images and timesteps, computed without dropout, and eagerly to add no graph."""
        assert self._loader, "asked to validate without images"
        for module in (self._training_data.components.denoiser, *self._training_data.components.text_encoders):
            module.eval()
        losses: list[Tensor] = []
        with torch.compiler.set_stance("force_eager"):
            for number, batch in enumerate(islice(self._loader.epoch(1), self.batches)):
                for timestep in self.timesteps:
                    key = ("validation", self._options.validation_seed, number, timestep)
                    inputs = step_inputs(self._training_data, batch, *key, timestep=timestep)
                    losses.append(self._loss(inputs))
                progress(number + 1, self.batches)
        return torch.cat(losses).mean()


class Validator:
    """Measures the validation loss of a training when it is due."""

    def __init__(self, training_data: TrainingData, train_state: TrainState, loss: Callable[[StepInputs], Tensor]):
        self._context = training_data.context
        self._train_state = train_state
        self._options = self._context.settings[ValidationOptions]
        self._loss = ValidationLoss(training_data, loss)

    def due_at_step(self, step: int) -> bool:
        every = self._options.validate_every_n_steps
        return bool(self._loss.batches and every and step % every == 0)

    def due_at_epoch(self, epoch: int) -> bool:
        """Return whether validation is due: every epoch, unless a number of steps or epochs is set."""
        every = self._options.validate_every_n_epochs or (0 if self._options.validate_every_n_steps else 1)
        return bool(self._loss.batches and every and epoch % every == 0)

    def run(self, step: int) -> None:
        """Measure and report the loss. If one process fails, all warn and the run continues."""
        mean = torch.zeros(())
        why = ""
        try:
            with self._train_state.averaged():
                mean = self._loss.measure(self._context.phase("validating"))
        except Exception as error:
            why = brief(error)
        if failures := [each for each in self._context.gathered([why]) if each]:
            self._context.warn_once(
                "validation",
                f"validation_split: the validation loss could not be measured: {failures[0]}. The run continues "
                "without it and tries again when it is due; further failures are not reported",
            )
            return
        loss = float(self._context.mean(mean))
        self._context.emit("validation", step=step, loss=loss)
        self._context.trackers.log({"loss/validation": loss}, step)
