"""The regularisation images that a training needs: their classes, number and sizes. Without torch.

Training sees regularisation images as often as its own, which is each image times its repeats. They get the sizes of
the training images' buckets, so that nothing of them is cropped.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sd_scripts.data.plan.buckets import Extent
from sd_scripts.dataset_view.view import plan_of
from sd_scripts.formats.images.folder_names import as_folder_name
from sd_scripts.formats.images.image_folders import find_media
from sd_scripts.options.dataset import DatasetOptions
from sd_scripts.options.generating.prompt_lines import line_keys
from sd_scripts.settings.settings import Settings

NAME = re.compile(r"([0-9]{5,6})_[0-9]+\.[a-z0-9]+")
"""Name of an image that was generated: its number and its seed."""


@dataclass(frozen=True, kw_only=True)
class ImageClass:
    """Regularisation images of one prompt, in one folder."""

    line: str
    """The prompt, with options such as --n blurry."""
    images: int
    extents: Mapping[Extent, int]
    """How often training sees images of each bucket."""

    @property
    def prompt(self) -> str:
        return str(line_keys(self.line)["prompt"]).strip()

    @property
    def folder_name(self) -> str:
        """The name of its folder, which is the caption of the images if it can be one."""
        return f"1_{as_folder_name(self.prompt)}"

    @property
    def needs_captions(self) -> bool:
        return self.folder_name != f"1_{self.prompt}"

    def here(self, root: Path) -> tuple[frozenset[int], int]:
        """Return the numbers of the images that were generated into its folder, and how many others are there."""
        folder = root / self.folder_name
        names = [path.name for path in find_media(folder)] if folder.is_dir() else []
        numbers = frozenset(int(found[1]) for name in names if (found := NAME.fullmatch(name)))
        return numbers, sum(1 for name in names if not NAME.fullmatch(name))

    def missing(self, root: Path) -> list[tuple[int, Extent]]:
        """Return number and bucket of each image that is not there yet, in their order."""
        made, others = self.here(root)
        extents = spread(self.extents, self.images)
        absent = [(number, extent) for number, extent in enumerate(extents) if number not in made]
        return absent[: max(0, len(extents) - others - len(made))]


def classes_of(settings: Settings, prompts: Sequence[str] = (), images: int | None = None) -> list[ImageClass]:
    """Return the regularisation images of a training, by class; with `prompts` of these instead, in equal shares.

    `images` replaces their number. Raises ValueError, one sentence, if there is no plan, or if the names of the folders
    contain no class.
    """
    # the folder to fill need not be there, and what is in it does not count
    plan = plan_of(settings.replaced({"reg_data_dir": None, "cache_info": False}), lambda _: None)
    if not plan.items:
        raise ValueError("train_data_dir: has no image to train on; add images first")
    seen: dict[str, Counter[Extent]] = {}
    for item in plan.items:
        if not item.subset.is_reg:
            seen.setdefault(class_of(item.subset.class_tokens or ""), Counter())[item.fit.bucket.alone] += item.repeats
    if prompts:
        together = sum(seen.values(), Counter[Extent]())
        lines = list(dict.fromkeys(prompts))
        counts = shares([1] * len(lines), images or together.total())
        return [ImageClass(line=line, images=n, extents=together) for line, n in zip(lines, counts, strict=True)]
    if "" in seen:
        raise ValueError("prompt: not set, and a training folder without a name like 10_cat has no class; write one")
    needed = [extents.total() for extents in seen.values()]
    counts = shares(needed, images or sum(needed))
    pairs = zip(seen.items(), counts, strict=True)
    return [ImageClass(line=name, images=n, extents=extents) for (name, extents), n in pairs]


def class_of(tokens: str) -> str:
    """Return the class in the name of a training folder: `cat` of "cat", and of "ohwx cat", whose first word names the
    one that is trained."""
    words = tokens.split()
    return " ".join(words[1:] or words)


def shares(weights: Sequence[int], total: int) -> list[int]:
    """Return whole numbers that add up to `total`, in proportion to the weights."""
    whole = sum(weights)
    counts = [total * weight // whole for weight in weights]
    left = sorted(range(len(weights)), key=lambda n: (-(total * weights[n] % whole), n))
    for n in left[: total - sum(counts)]:
        counts[n] += 1
    return counts


def spread(extents: Mapping[Extent, int], total: int) -> list[Extent]:
    """Return a bucket for each of `total` images, in proportion to how often each is seen, and mixed, so that the first
    ones alone are in proportion, too."""
    counts = shares(list(extents.values()), total)
    places = ((place + 0.5) / count for count in counts for place in range(count))
    placed = zip(places, _repeated(extents, counts), strict=True)
    return [extent for _, extent in sorted(placed, key=lambda pair: pair[0])]


def _repeated(extents: Mapping[Extent, int], counts: Sequence[int]) -> Iterator[Extent]:
    for extent, count in zip(extents, counts, strict=True):
        yield from [extent] * count


def rows_of(classes: Sequence[ImageClass], folder: str) -> list[dict[str, Any]]:
    """Return regularisation images as JSON: for each class its prompt, folder, number of images and how many of them
    are in `folder`."""
    root = Path(folder) if folder else None
    rows = []
    for each in classes:
        made, others = each.here(root) if root else (frozenset[int](), 0)
        sizes = dict(Counter(str(extent) for extent in spread(each.extents, each.images)))
        row = {"prompt": each.prompt, "folder": each.folder_name, "images": each.images, "sizes": sizes}
        rows.append({**row, "here": len(made) + others})
    return rows


def unused(data: DatasetOptions) -> str:
    """Return why training would not read the folder reg_data_dir; empty if it would."""
    if data.dataset_config:
        return (
            "reg_data_dir: has no effect with dataset_config; list the folders there, as subsets with is_reg = true "
            "and class_tokens"
        )
    return "reg_data_dir: has no effect with in_json; leave it unset to train folders" if data.in_json else ""
