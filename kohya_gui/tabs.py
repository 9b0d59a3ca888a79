"""The training tabs: their names, titles and training methods."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Tab:
    name: str
    """Used in element ids, browser storage, the folder in presets/ and --tab."""
    title: str
    method: str


TABS = {
    "lora": Tab("lora", "LoRA", "lora"),
    "dreambooth": Tab("dreambooth", "DreamBooth", "full"),
    "finetune": Tab("finetune", "Fine-tune", "full"),
    "textual_inversion": Tab("textual_inversion", "Embedding", "textual_inversion"),
}
