"""The training tabs: their names, titles and training methods."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Tab:
    name: str
    """Used in element ids, browser storage, the folder in presets/ and --tab."""
    title: str
    method: str


LORA = Tab("lora", "LoRA", "lora")
DREAMBOOTH = Tab("dreambooth", "DreamBooth", "full")
FINETUNE = Tab("finetune", "Fine-tune", "full")
TABS = {tab.name: tab for tab in (LORA, DREAMBOOTH, FINETUNE)}
