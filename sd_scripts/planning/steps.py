"""How many steps and epochs a run has."""

import math
from dataclasses import dataclass, replace

from sd_scripts.options.saving import SavingOptions
from sd_scripts.options.training import TrainingOptions


@dataclass(frozen=True, kw_only=True)
class TrainPlan:
    """How long the run is, in batches of one process."""

    batches_per_epoch: int
    accumulation: int
    max_steps: int

    @property
    def steps_per_epoch(self) -> int:
        """The last step of an epoch may have fewer batches."""
        return math.ceil(self.batches_per_epoch / self.accumulation)

    @property
    def epochs(self) -> int:
        return math.ceil(self.max_steps / self.steps_per_epoch)

    def epochs_between_saves(self, saving: SavingOptions) -> int | None:
        ratio = saving.save_n_epoch_ratio
        return max(1, self.epochs // ratio) if ratio else saving.save_every_n_epochs


def plan_training(options: TrainingOptions, batches_per_epoch: int) -> TrainPlan:
    train_plan = TrainPlan(
        batches_per_epoch=batches_per_epoch,
        accumulation=options.gradient_accumulation_steps,
        max_steps=options.max_train_steps,
    )
    if options.max_train_epochs:
        return replace(train_plan, max_steps=options.max_train_epochs * train_plan.steps_per_epoch)
    return train_plan
