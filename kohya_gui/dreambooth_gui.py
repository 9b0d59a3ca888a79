"""The DreamBooth tab: trains the whole model on a few concepts, one folder each.

What its functions do is in lora_gui.py.
"""

from kohya_gui.dataset.dataset_tools_gui import FolderHelper
from kohya_gui.form.controls import Panel
from kohya_gui.form.panels import training
from sd_scripts.options.dataset import DatasetOptions

DATA = Panel(
    DatasetOptions.title,
    ("train_data_dir", "num_repeats", "caption_prefix", "reg_data_dir", "prior_loss_weight"),
    more=("dataset_config", "in_json", "dataset_repeats", "conditioning_data_dir"),
    tool=FolderHelper,
    open=True,
)
DREAMBOOTH = training("dreambooth", DATA)
save_configuration = DREAMBOOTH.save_configuration
open_configuration = DREAMBOOTH.open_configuration
train_model = DREAMBOOTH.train_model
