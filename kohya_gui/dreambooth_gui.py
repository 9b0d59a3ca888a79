"""The DreamBooth tab: trains the whole model on a few concepts, one folder each."""

from kohya_gui.panels import (
    BASIC,
    EMA,
    FULL,
    MEMORY_OF_FULL,
    METADATA,
    MODEL,
    OF_FAMILIES,
    SAMPLES,
    SAVING,
    TIMESTEPS,
    folder_helper,
)
from kohya_gui.tabs import TABS
from kohya_gui.training import Panel, Training
from sd_scripts.options.dataset import DatasetOptions

DATA = Panel(
    DatasetOptions.title,
    ("train_data_dir", "num_repeats", "reg_data_dir", "prior_loss_weight"),
    more=("dataset_config", "in_json", "dataset_repeats", "conditioning_data_dir"),
    tool=folder_helper,
    open=True,
)

DREAMBOOTH = Training(
    tab=TABS["dreambooth"],
    panels=(MODEL, DATA, SAVING, FULL, BASIC, TIMESTEPS, MEMORY_OF_FULL, *OF_FAMILIES, EMA, SAMPLES, METADATA),
)
save_configuration = DREAMBOOTH.save_configuration
open_configuration = DREAMBOOTH.open_configuration
train_model = DREAMBOOTH.train_model
