"""Progress of a run: the only place that counts steps and epochs."""

from dataclasses import dataclass


@dataclass
class Progress:
    """Steps done, the current epoch (from 1), and batches done in it."""

    step: int = 0
    epoch: int = 1
    batch: int = 0

    def next_epoch(self) -> None:
        self.epoch += 1
        self.batch = 0
