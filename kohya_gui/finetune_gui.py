"""The Fine-tune tab: the whole model learns from many pictures that a metadata file describes."""

from kohya_gui.panels import BASIC, EMA, FULL, MEMORY_OF_FULL, METADATA, MODEL, SAMPLES, SAVING, TIMESTEPS
from kohya_gui.tabs import TABS
from kohya_gui.training import Panel, Training
from sd_scripts.options.dataset import DatasetOptions

DATA = Panel(
    DatasetOptions.title,
    ("in_json", "train_data_dir", "dataset_repeats", "dataset_config"),
    more=("reg_data_dir", "prior_loss_weight", "conditioning_data_dir"),
    open=True,
)

FINETUNE = Training(
    tab=TABS["finetune"],
    panels=(MODEL, DATA, SAVING, FULL, BASIC, TIMESTEPS, MEMORY_OF_FULL, EMA, SAMPLES, METADATA),
    concepts=False,
)
save_configuration = FINETUNE.save_configuration
open_configuration = FINETUNE.open_configuration
train_model = FINETUNE.train_model
