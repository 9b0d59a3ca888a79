"""The Fine-tune tab: trains the whole model on many images described by a metadata file."""

from collections.abc import Callable

from gradio.components import FormComponent

from kohya_gui.allowed_paths import AllowedPaths
from kohya_gui.controls import Form
from kohya_gui.dataset_tools_gui import MetadataSteps
from kohya_gui.panels import BASIC, EMA, FULL, MEMORY_OF_FULL, METADATA, MODEL, OF_FAMILIES, SAMPLES, SAVING, TIMESTEPS
from kohya_gui.tabs import TABS
from kohya_gui.training import Panel, Training
from sd_scripts.options.dataset import DatasetOptions
from sd_scripts.runs.queue import RunQueue


def metadata_steps(tab: str, queue: RunQueue, allowed_paths: AllowedPaths) -> Callable[[Form, FormComponent], None]:
    """Lay out the steps that create the metadata file and cache latents."""
    return MetadataSteps(tab, queue, allowed_paths).connect


DATA = Panel(
    DatasetOptions.title,
    ("in_json", "train_data_dir", "dataset_repeats", "dataset_config"),
    more=("num_repeats", "reg_data_dir", "prior_loss_weight", "conditioning_data_dir"),
    tool=metadata_steps,
    open=True,
)

FINETUNE = Training(
    tab=TABS["finetune"],
    panels=(MODEL, DATA, SAVING, FULL, BASIC, TIMESTEPS, MEMORY_OF_FULL, *OF_FAMILIES, EMA, SAMPLES, METADATA),
)
save_configuration = FINETUNE.save_configuration
open_configuration = FINETUNE.open_configuration
train_model = FINETUNE.train_model
