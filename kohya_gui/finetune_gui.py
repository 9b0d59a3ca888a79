"""The Fine-tune tab: trains the whole model on many images described by a metadata file.

What its functions do is in lora_gui.py.
"""

from kohya_gui.dataset.dataset_tools_gui import MetadataSteps
from kohya_gui.form.controls import Panel
from kohya_gui.form.panels import training
from sd_scripts.options.dataset import DatasetOptions

DATA = Panel(
    DatasetOptions.title,
    ("in_json", "train_data_dir", "dataset_repeats", "dataset_config"),
    more=("num_repeats", "reg_data_dir", "prior_loss_weight", "conditioning_data_dir"),
    tool=MetadataSteps,
    open=True,
)
FINETUNE = training("finetune", DATA)
save_configuration = FINETUNE.save_configuration
open_configuration = FINETUNE.open_configuration
train_model = FINETUNE.train_model
