"""Validation loss on held-out images: the same images, timesteps and noise each time."""

from collections.abc import Callable
from itertools import islice

import torch
from torch import Tensor

from sd_scripts.options.dataset import ValidationOptions
from sd_scripts.training.error_hints import brief
from sd_scripts.training.step_inputs import step_inputs
from sd_scripts.training.train_state import TrainState
from sd_scripts.training.training_data import TrainingData


class Validator:
    def __init__(
        self, training_data: TrainingData, train_state: TrainState, loss: Callable[[dict[str, Tensor]], Tensor]
    ):
        self._context, self._training_data, self._train_state = training_data.context, training_data, train_state
        self._loss = loss
        self._options = self._context.settings[ValidationOptions]
        self._timesteps = training_data.family.validation_timesteps(self._context.settings)
        plan = training_data.plan.validation
        self._loader = training_data.loader(plan) if plan else None

    def due_at_step(self, step: int) -> bool:
        every = self._options.validate_every_n_steps
        return bool(self._loader and every and step % every == 0)

    def due_at_epoch(self, epoch: int) -> bool:
        """Return whether validation is due: every epoch, unless a number of steps or epochs is set."""
        every = self._options.validate_every_n_epochs or (0 if self._options.validate_every_n_steps else 1)
        return bool(self._loader and every and epoch % every == 0)

    def run(self, step: int) -> None:
        """Measure and report the loss. If one process fails, all warn and the run continues."""
        mean, why = torch.zeros(()), ""
        try:
            mean = self._measure()
        except Exception as error:
            why = brief(error, self._context.settings)
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

    @torch.no_grad()
    def _measure(self) -> Tensor:
        """Return the mean loss over images and timesteps, computed without dropout, and eagerly to add no graph."""
        assert self._loader, "asked to validate without images"
        progress = self._context.phase("validating")
        total = min(len(self._loader), self._options.max_validation_steps or len(self._loader))
        for module in (self._training_data.components.denoiser, *self._training_data.components.text_encoders):
            module.eval()
        losses: list[Tensor] = []
        with torch.compiler.set_stance("force_eager"), self._train_state.averaged():
            for number, batch in enumerate(islice(self._loader.epoch(1), total)):
                for timestep in self._timesteps:
                    key = ("validation", self._options.validation_seed, number, timestep)
                    inputs = step_inputs(self._training_data, batch, *key, timestep=timestep)
                    losses.append(self._loss(inputs))
                progress(number + 1, total)
        return torch.cat(losses).mean()
