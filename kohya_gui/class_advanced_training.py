"""The Advanced Training accordion of every training tab: its sections and their order.

Its first section has a control for each option of `CompileOptions`, the six compile controls, and before them the
compile bundle, which sets them all. `Form.panel` creates the controls from the options, and they are saved, opened,
trained and printed with all others by the functions in lora_gui.py.
"""

from collections.abc import Callable

import gradio as gr

from kohya_gui.form.compile_bundle import CompileBundleControl
from kohya_gui.form.controls import Panel
from kohya_gui.runs.tensorboard_gui import TensorBoardButtons
from sd_scripts.options.compile import CompileMoreOptions, CompileOptions
from sd_scripts.options.dataset import AugmentOptions, BucketOptions, CaptionOptions, DatasetOptions, ValidationOptions
from sd_scripts.options.launch import LaunchOptions
from sd_scripts.options.logging import LoggingOptions
from sd_scripts.options.model import ModelOptions
from sd_scripts.options.optimization.loss import LossOptions, NoiseOptions
from sd_scripts.options.optimization.optimizer import LrSchedulerOptions, OptimizerOptions
from sd_scripts.options.run import CudaOptions
from sd_scripts.options.saving import HuggingFaceOptions
from sd_scripts.options.training import DistributedOptions, ResumeOptions, TrainingOptions

COMPILE_NOTE = (
    "Compiles the model's blocks into kernels for your GPU: the **first steps are slow**, all later ones faster. "
    "Worth it in longer runs; the plan shows from which step on. Requires **PyTorch 2.1** or newer and, on NVIDIA "
    "GPUs, **Triton**. The bundle *Default* suits nearly everyone. *Record steps*, under *Memory and precision*, makes "
    "small batches fast with and without it."
)

COMPILE_ADVICE = "Slow first steps, faster after that. Worth it in longer runs: the plan shows from which step on."
"""Help text of the switch at the top of a tab."""


SECTIONS = (
    Panel(
        CompileOptions.title, rest=(CompileOptions, CompileMoreOptions), note=COMPILE_NOTE, lead=CompileBundleControl
    ),
    Panel("Memory and precision", rest=(TrainingOptions, CudaOptions, ModelOptions)),
    Panel("Captions", rest=(CaptionOptions,)),
    Panel("Buckets and loading", rest=(BucketOptions, DatasetOptions)),
    Panel("Augmentation and masks", rest=(AugmentOptions,)),
    Panel("Optimizer and schedule", rest=(OptimizerOptions, LrSchedulerOptions)),
    Panel("Noise", rest=(NoiseOptions,)),
    Panel("Loss", rest=(LossOptions,)),
    Panel("Validation", rest=(ValidationOptions,)),
    Panel("State and resume", rest=(ResumeOptions,)),
    Panel(LoggingOptions.title, rest=(LoggingOptions,), tool=TensorBoardButtons, tool_inside=True),
    Panel("Accelerate launch", rest=(LaunchOptions, DistributedOptions)),
    Panel("Hugging Face", rest=(HuggingFaceOptions,)),
)


class AdvancedTraining:
    """Lays out the sections with every option that no panel of the tab has; `place` lays out one."""

    def __init__(self, tab: str, place: Callable[[Panel], None]) -> None:
        with gr.Accordion("Advanced Training", open=False, elem_id=f"{tab}-panel-advanced-training"):
            for section in SECTIONS:
                place(section)
