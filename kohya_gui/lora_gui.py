"""The LoRA tab: trains a small adapter file for the model."""

from kohya_gui.dataset.dataset_tools_gui import FolderHelper
from kohya_gui.form.panels import training
from kohya_gui.form.training import Panel
from sd_scripts.options.dataset import DatasetOptions

DATA = Panel(
    DatasetOptions.title,
    (
        "train_data_dir",
        "num_repeats",
        "caption_prefix",
        "reg_data_dir",
        "dataset_config",
        "in_json",
        "conditioning_data_dir",
    ),
    tool=FolderHelper,
    open=True,
)
LORA = training("lora", DATA)
save_configuration = LORA.save_configuration
open_configuration = LORA.open_configuration
train_model = LORA.train_model
