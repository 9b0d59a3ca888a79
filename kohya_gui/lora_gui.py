"""The LoRA tab: trains a small adapter file for the model."""

from kohya_gui.dataset_tools_gui import FolderHelper
from kohya_gui.panels import BASIC, EMA, MEMORY, METADATA, MODEL, OF_FAMILIES, SAMPLES, SAVING, TIMESTEPS
from kohya_gui.tabs import TABS
from kohya_gui.training import Panel, Training
from sd_scripts.families.registry import cards
from sd_scripts.options.dataset import DatasetOptions
from sd_scripts.options.network import NetworkOptions

DATA = Panel(
    DatasetOptions.title,
    ("train_data_dir", "num_repeats", "reg_data_dir", "dataset_config", "in_json", "conditioning_data_dir"),
    tool=FolderHelper,
    open=True,
)
NETWORK = Panel(
    "Network",
    ("network_dim", "network_alpha", "network_train_unet_only", "network_train_text_encoder_only", "network_args"),
    rest=(NetworkOptions,),
    open=True,
)
LAYERS = [
    Panel(own.group.title, own.names, rest=(own.group,))
    for card in cards()
    for own in card.panels
    if own.group.methods == NetworkOptions.methods
]

LORA = Training(
    tab=TABS["lora"],
    panels=(MODEL, DATA, SAVING, NETWORK, BASIC, TIMESTEPS, MEMORY, *LAYERS, *OF_FAMILIES, EMA, SAMPLES, METADATA),
)
save_configuration = LORA.save_configuration
open_configuration = LORA.open_configuration
train_model = LORA.train_model
