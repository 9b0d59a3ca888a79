"""Wan's models: what samples of each need."""

from dataclasses import dataclass

NEGATIVE = (
    "色调艳丽，过曝，静态，细节模糊不清，字幕，风格，作品，画作，画面，静止，整体发灰，最差质量，低质量，JPEG压缩残留，丑陋的，残缺的，"
    "多余的手指，画得不好的手部，画得不好的脸部，畸形的，毁容的，形态畸形的肢体，手指融合，静止不动的画面，杂乱的背景，三条腿，"
    "背景人很多，倒着走"
)
"""The negative prompt of the official code, with which the model is meant to be sampled."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """A model and what it is used for."""

    shift: float = 5.0
    """Shift of the timesteps of samples."""
    reads_start: bool = False
    """Whether a Fun-Control model is trained with the first frame in addition to the control clip."""


TASKS = {
    "t2v-1.3B": Task(),
    "t2v-14B": Task(),
    "t2i-14B": Task(),
    "i2v-14B": Task(),
    "flf2v-14B": Task(shift=16.0),
    "t2v-A14B": Task(shift=12.0),
    "i2v-A14B": Task(),
    "t2v-1.3B-FC": Task(),
    "t2v-14B-FC": Task(),
    "i2v-14B-FC": Task(reads_start=True),
}
"""By musubi-tuner's names, which the option `task` takes."""


def task_of(name: str | None) -> Task:
    return TASKS[name or "t2v-14B"]
