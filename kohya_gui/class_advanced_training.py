"""The Advanced Training accordion of every training tab: which options stand there, in which order."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import gradio as gr

from kohya_gui.controls import Form, slug
from sd_scripts.options.compile import CompileMoreOptions, CompileOptions
from sd_scripts.options.dataset import AugmentOptions, BucketOptions, CaptionOptions, DatasetOptions, ValidationOptions
from sd_scripts.options.launch import LaunchOptions
from sd_scripts.options.logging import LoggingOptions
from sd_scripts.options.loss import LossOptions, NoiseOptions
from sd_scripts.options.model import ModelOptions
from sd_scripts.options.optimizer import LrSchedulerOptions, OptimizerOptions
from sd_scripts.options.run import CudaOptions
from sd_scripts.options.saving import HuggingFaceOptions
from sd_scripts.options.spec import OptionGroup
from sd_scripts.options.training import DistributedOptions, ResumeOptions, TrainingOptions

COMPILE_NOTE = (
    "Makes kernels for your card out of the model's blocks: the **first steps are slow**, all later ones faster. "
    "Worth it from a few hundred steps on. Needs **PyTorch 2.1** or newer and, on NVIDIA cards, **Triton**. "
    "The defaults suit nearly everyone; `reduce-overhead` is fastest at small batches."
)

COMPILE_ADVICE = "A slower first step, then faster ones: worth it from a few hundred steps on."
"""Stands beside the switch at the top of a tab."""


@dataclass(frozen=True)
class Section:
    """An accordion: what is left of some groups once the tab's own panels have taken their part."""

    title: str
    groups: tuple[type[OptionGroup], ...]
    note: str = ""


SECTIONS = (
    Section(CompileOptions.title, (CompileOptions,), COMPILE_NOTE),
    Section(CompileMoreOptions.title, (CompileMoreOptions,)),
    Section("Memory and precision", (TrainingOptions, CudaOptions, ModelOptions)),
    Section("Captions", (CaptionOptions,)),
    Section("Buckets and loading", (BucketOptions, DatasetOptions)),
    Section("Augmentation and masks", (AugmentOptions,)),
    Section("Optimizer and schedule", (OptimizerOptions, LrSchedulerOptions)),
    Section("Noise", (NoiseOptions,)),
    Section("Loss", (LossOptions,)),
    Section("Validation", (ValidationOptions,)),
    Section("State and resume", (ResumeOptions,)),
    Section("Logging", (LoggingOptions,)),
    Section("Accelerate launch", (LaunchOptions, DistributedOptions)),
    Section("Hugging Face", (HuggingFaceOptions,)),
)


class AdvancedTraining:
    """Takes every option that no panel asks for: `groups` and `names` are those that panels below it will take, `tools`
    what stands in its sections besides, by title."""

    def __init__(
        self,
        form: Form,
        groups: Collection[type[OptionGroup]],
        names: Collection[str],
        tools: Mapping[str, Callable[[], None]],
    ) -> None:
        with gr.Accordion("Advanced Training", open=False, elem_id=f"{form.tab}-panel-{slug('Advanced Training')}"):
            for section in SECTIONS:
                left = form.left_of(*(group for group in section.groups if group not in groups))
                mine = [name for name in left if name not in names]
                form.panel(section.title, mine, note=section.note, tool=tools.get(section.title))
