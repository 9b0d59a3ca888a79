"""How long a first training of a LoRA usually is: the page suggests it, the plan compares with it."""

from sd_scripts.formats.images.image_folders import MOST_REPEATS
from sd_scripts.formats.words import counted

FEW, USUAL = 500, 1500
"""Images, with repeats, that all steps of a run see together."""


def usual_factor(seen: float) -> int:
    """Return the factor by which to lengthen a run so that it sees the usual number of images; 1: it is long enough."""
    return max(1, round(USUAL / max(seen, 1)))


def length_advice(epochs: int | None, repeats: int | None, steps: int, seen: float) -> tuple[str, ...]:
    """Return a sentence if a LoRA is trained on few images.

    `epochs`: max_train_epochs; `repeats`: num_repeats; `seen`: images, with repeats, of all `steps`.
    """
    if seen >= FEW:
        return ()
    factor = usual_factor(seen)
    name, value = "max_train_steps", factor * steps
    if epochs and repeats and repeats * factor <= MOST_REPEATS:
        name, value = "num_repeats", factor * repeats
    elif epochs:
        name, value = "max_train_epochs", factor * epochs
    shown = f"{counted(steps, 'step')} see {counted(round(seen), 'image')}, repeats included"
    return (f"{name}: {shown}, which is few for a LoRA; about {USUAL:,} are usual: set {name} = {value}",)
