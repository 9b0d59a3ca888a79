"""The Embedding tab, textual inversion: trains the embeddings of a new token, a file of a few kilobytes."""

from kohya_gui.dataset.dataset_tools_gui import FolderHelper
from kohya_gui.form.controls import Panel
from kohya_gui.form.panels import training
from sd_scripts.options.dataset import DatasetOptions

DATA = Panel(
    DatasetOptions.title,
    ("train_data_dir", "num_repeats", "caption_prefix", "reg_data_dir"),
    more=("dataset_config", "in_json", "dataset_repeats", "conditioning_data_dir"),
    tool=FolderHelper,
    open=True,
)
TEXTUAL_INVERSION = training("textual_inversion", DATA)
save_configuration = TEXTUAL_INVERSION.save_configuration
open_configuration = TEXTUAL_INVERSION.open_configuration
train_model = TEXTUAL_INVERSION.train_model
