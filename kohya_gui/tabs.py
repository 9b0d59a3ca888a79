"""The training tabs: how each is called, and by which method it trains."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Tab:
    name: str
    """Of its elements, of what the browser keeps for it, of its folder in presets/, behind --tab."""
    title: str
    method: str


LORA = Tab("lora", "LoRA", "lora")
DREAMBOOTH = Tab("dreambooth", "DreamBooth", "full")
FINETUNE = Tab("finetune", "Fine-tune", "full")
TABS = {tab.name: tab for tab in (LORA, DREAMBOOTH, FINETUNE)}
