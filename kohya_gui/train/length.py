"""How long a run is: quick, normal or long, as repeats and epochs for the number of images."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kohya_gui.dataset.recognise_images import images_of
from sd_scripts.formats.images.image_folders import image_folders
from sd_scripts.settings.run_length import FEW, USUAL

LENGTHS: Mapping[str, int] = {"quick": FEW, "normal": USUAL, "long": 2 * USUAL}
"""Images, repeats included, that all steps of the run see together."""
EPOCHS = 10
"""Of a run, where there are few enough images: so often it can be saved and sampled."""


@dataclass(frozen=True, kw_only=True)
class Images:
    """The images of a train_data_dir."""

    count: int
    """Files."""
    repeated: int
    """With the repeats that the names of their folders give."""
    flat: bool
    """They are directly in the folder, whose name gives no repeats: num_repeats does."""


def images_in(folder: Path, *, clips: bool) -> Images | None:
    """Return the images of a folder; None if it has none that can be trained. With `clips`, videos count, too."""
    if not folder.is_dir():
        return None
    named = image_folders(folder).folders
    flat = not named
    counts = [(each.repeats, len(images_of(each.path, clips=clips))) for each in named]
    if flat:
        counts = [(1, len(images_of(folder, clips=clips)))]
    count = sum(number for _, number in counts)
    if not count:
        return None
    return Images(count=count, repeated=sum(repeats * number for repeats, number in counts), flat=flat)


def settings_for(images: Images, seen: int) -> dict[str, str]:
    """Return the options, as the texts of their fields, with which a run sees about this many images."""
    epochs = min(EPOCHS, max(1, round(seen / images.repeated)))
    if not images.flat:
        return {"max_train_epochs": str(max(1, round(seen / images.repeated)))}
    repeats = max(1, round(seen / (images.repeated * epochs)))
    return {"num_repeats": str(repeats), "max_train_epochs": str(epochs)}
