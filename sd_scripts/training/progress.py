"""Progress of a run: the only place that counts steps and epochs."""

from dataclasses import dataclass
from pathlib import Path

from sd_scripts.options.training import ResumeOptions
from sd_scripts.planning.steps import TrainPlan


class AlreadyFinished(Exception):
    """The run that is to be resumed has finished; a sentence for the user."""

    def __init__(self, step: int, path: Path):
        super().__init__(
            f"resume: the run is finished: its state is at its last step, {step}, and '{path}' exists. To train "
            "further, raise max_train_steps or max_train_epochs"
        )
        self.step, self.path = step, path


@dataclass
class Progress:
    """Steps done, the current epoch (from 1), and batches done in it."""

    step: int = 0
    epoch: int = 1
    batch: int = 0

    def next_epoch(self) -> None:
        self.epoch, self.batch = self.epoch + 1, 0


def starting_point(options: ResumeOptions, train_plan: TrainPlan) -> Progress:
    """Return the start that initial_step or initial_epoch sets; without skip_until_initial_step at the first batch.

    Raises ValueError when nothing is left to do.
    """
    step = options.initial_step or ((options.initial_epoch or 1) - 1) * train_plan.steps_per_epoch
    if step >= train_plan.max_steps:
        raise ValueError(f"initial_step: step {step} is not before the end of the run, step {train_plan.max_steps}")
    epochs, steps = divmod(step, train_plan.steps_per_epoch)
    done = steps * train_plan.accumulation if options.skip_until_initial_step else 0
    return Progress(step=step, epoch=epochs + 1, batch=done)
