"""The LoRA tab: trains a small adapter file for the model.

Its functions take and return the values of all controls by option, the six of class_advanced_training.py among them;
its buttons call them (form/training_tab.py):

- Save: `save_configuration` writes what differs from the defaults as TOML.
- Open: `open_configuration` reads such a file, or a JSON file of kohya_ss, into the controls.
- Start training: `train_model` checks the values, writes them into a run folder and queues the run.
- Print command: `train_model` with `print_only` returns the command and writes nothing.
"""

from kohya_gui.dataset.dataset_tools_gui import FolderHelper
from kohya_gui.form.controls import Panel
from kohya_gui.form.panels import training
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
