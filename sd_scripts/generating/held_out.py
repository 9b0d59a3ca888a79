"""The validation loss of a model with adapters: the loss that the trainer measures during a run, on the same data
plan."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from accelerate import Accelerator

from sd_scripts.data.plan.blueprint import read_blueprint
from sd_scripts.data.plan.dataset import DataPlan, plan_data, plan_held_out
from sd_scripts.families.common.components import VAE
from sd_scripts.families.common.family import Family
from sd_scripts.generating.generator import Generator
from sd_scripts.runs.folder import RunFolder
from sd_scripts.runs.reporter import Reporter
from sd_scripts.settings.settings import Settings
from sd_scripts.training.context import Context
from sd_scripts.training.execution.step_inputs import step_loss
from sd_scripts.training.training_data import TrainingData, cache_captions, cache_images
from sd_scripts.training.validation import ValidationLoss

IN_MEMORY = {
    **{"cache_latents": True, "cache_latents_to_disk": False},
    **{"cache_text_encoder_outputs": True, "cache_text_encoder_outputs_to_disk": False},
}
"""Latents and captions are encoded once and kept in memory: the run's caches may be from different encoders."""


class HeldOutLoss:
    """Images that were held out of training, with everything needed to measure the loss of each checkpoint on
    them: latents, noise and timesteps are the same for all."""

    def __init__(self, family: Family, settings: Settings, folder: Path | None, seed: int, reporter: Reporter):
        """`settings` of the training. `folder` contains the images; None: validation_split of the settings holds them
        out. Raises ValueError, one sentence, if there are none."""
        self._family = family
        self._scratch = TemporaryDirectory()
        run = reporter.folder or RunFolder(Path(self._scratch.name))
        self._context = Context(settings.replaced(IN_MEMORY), Accelerator(mixed_precision="no"), run, seed)
        self.plan = self._plan(folder)
        self.images = len(self.plan.validation.items) if self.plan.validation else 0
        self._data: TrainingData | None = None
        self._text_of: tuple[int, int] | None = None
        """The components and the changes of their encoders that the cached captions are from."""

    def _plan(self, folder: Path | None) -> DataPlan:
        """Return a plan without training images: only held-out images are to be encoded."""
        card = self._family.card
        context = self._context
        if folder and card.has("control_images"):
            raise ValueError(
                f"validation_dir: {card.title} needs control images, which a folder does not have; leave it unset to "
                "use the images that validation_split held out"
            )
        if folder:
            blueprint = read_blueprint(context.settings, context.warn, card.clips)
            return plan_held_out(blueprint, folder, card, seed=context.seed, warn=context.warn)
        plan = plan_data(
            context.settings,
            card,
            seed=context.seed,
            warn=context.warn,
            progress=context.cancellable_phase("reading the dataset"),
        )
        return replace(plan, items=())

    def measure(self, generator: Generator) -> float:
        """Return the loss of the model with the adapters that are applied to it."""
        data = self._prepared(generator)
        generator.place()
        loss = partial(step_loss, data)
        return float(ValidationLoss(data, loss).measure(self._context.cancellable_phase("validating")))

    def close(self) -> None:
        self._context.close()
        self._scratch.cleanup()

    def _prepared(self, generator: Generator) -> TrainingData:
        """Return the held-out images, with latents, and captions as the model's text encoders encode them now."""
        components = generator.components
        if self._data is None:
            self._data = TrainingData(
                context=self._context,
                family=self._family,
                components=components,
                plan=self.plan,
                trains_encoder=(False,) * len(components.text_encoders),
            )
            generator.load(VAE, *self._data.condition_encoders)
            cache_images(self._data, lambda encode: encode())
        self._data.components = components
        text_of_now = (id(components), generator.encoder_changes)
        if text_of_now != self._text_of:
            generator.load(*components.encoder_names)
            cache_captions(self._data)
            generator.free_encoders()
            self._text_of = text_of_now
        return self._data
