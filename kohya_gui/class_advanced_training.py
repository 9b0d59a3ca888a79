"""The Advanced Training accordion of every training tab: its sections and their order.

Its first section has a control for each option of `CompileOptions`, the six compile controls. `Form.panel` makes them
from the options, and they are saved, opened, trained and printed with all others by the functions in lora_gui.py.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import gradio as gr

from kohya_gui.form.controls import Form, slug
from sd_scripts.options.compile import CompileMoreOptions, CompileOptions
from sd_scripts.options.dataset import AugmentOptions, BucketOptions, CaptionOptions, DatasetOptions, ValidationOptions
from sd_scripts.options.launch import LaunchOptions
from sd_scripts.options.logging import LoggingOptions
from sd_scripts.options.model import ModelOptions
from sd_scripts.options.optimization.loss import LossOptions, NoiseOptions
from sd_scripts.options.optimization.optimizer import LrSchedulerOptions, OptimizerOptions
from sd_scripts.options.run import CudaOptions
from sd_scripts.options.saving import HuggingFaceOptions
from sd_scripts.options.spec import OptionGroup
from sd_scripts.options.training import DistributedOptions, ResumeOptions, TrainingOptions

COMPILE_NOTE = (
    "Compiles the model's blocks into kernels for your GPU: the **first steps are slow**, all later ones faster. "
    "Worth it in longer runs; the plan says from which step on. Requires **PyTorch 2.1** or newer and, on NVIDIA "
    "GPUs, **Triton**. The bundle *Default* suits nearly everyone. *Record steps*, under *Memory and precision*, makes "
    "small batches fast with and without it."
)

COMPILE_ADVICE = "Slow first steps, faster after that. Worth it in longer runs: the plan says from which step on."
"""Help text of the switch at the top of a tab."""


@dataclass(frozen=True)
class Section:
    """An accordion with the options of some groups that the tab's own panels have not taken."""

    title: str
    groups: tuple[type[OptionGroup], ...]
    note: str = ""


SECTIONS = (
    Section(CompileOptions.title, (CompileOptions, CompileMoreOptions), COMPILE_NOTE),
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
    """Lays out every option that no panel takes.

    `groups` and `names` are reserved for panels below it; `leads` and `tools` are extra contents at the beginning and
    the end of its sections, by title.
    """

    def __init__(
        self,
        form: Form,
        groups: Collection[type[OptionGroup]],
        names: Collection[str],
        leads: Mapping[str, Callable[[], None]],
        tools: Mapping[str, Callable[[], None]],
    ) -> None:
        with gr.Accordion("Advanced Training", open=False, elem_id=f"{form.tab}-panel-{slug('Advanced Training')}"):
            for section in SECTIONS:
                left = form.left_of(*(group for group in section.groups if group not in groups))
                mine = [name for name in left if name not in names]
                lead = leads.get(section.title)
                tool = tools.get(section.title)
                form.panel(section.title, mine, note=section.note, lead=lead, tool=tool)
