"""Small folders of images, and the settings that point at them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sd_scripts.data.loader import BatchLoader
from sd_scripts.data.plan import dataset
from sd_scripts.data.plan.dataset import DataPlan
from sd_scripts.data.reader import BatchReader
from sd_scripts.families.cards.registry import card_of
from sd_scripts.families.sdxl.objective import conditioning
from sd_scripts.settings.catalog import script_for
from sd_scripts.settings.settings import Settings


def make_image(path: Path, size: tuple[int, int] = (64, 64), seed: int = 0, mode: str = "RGB") -> Path:
    """Noise under a slope, so that a flip, a shift or a wrong image is seen in the numbers."""
    path.parent.mkdir(parents=True, exist_ok=True)
    width, height = size
    noise = np.random.default_rng(seed).integers(0, 60, (height, width, len(mode)))
    slope = np.linspace(0, 190, width)[None, :, None]
    Image.fromarray((noise + slope).astype(np.uint8), mode).save(path)
    return path


def make_folder(folder: Path, sizes: Sequence[tuple[int, int]], caption: str = "a, b, c") -> list[Path]:
    paths = [make_image(folder / f"{number:02d}.png", size, number) for number, size in enumerate(sizes)]
    for number, path in enumerate(paths):
        path.with_suffix(".txt").write_text(f"{caption}, {number}", encoding="utf-8")
    return paths


def settings_of(**values: Any) -> Settings:
    """Buckets of 64 pixels' area, in steps of 32."""
    tiny = {
        "resolution": "64",
        "enable_bucket": True,
        "min_bucket_reso": 32,
        "max_bucket_reso": 128,
        "bucket_reso_steps": 32,
        "caption_extension": ".txt",
    }
    values = {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}
    return Settings(script_for("sdxl", "lora"), tiny | values)


def plan_data(settings: Settings, *, seed: int, warn: Any) -> DataPlan:
    """The plan of an SDXL run."""
    return dataset.plan_data(settings, card_of("sdxl"), seed=seed, warn=warn)


def plan_of(root: Path, *, seed: int = 7, told: list[str] | None = None, **values: Any) -> DataPlan:
    warn = told.append if told is not None else _never
    return plan_data(settings_of(train_data_dir=root, **values), seed=seed, warn=warn)


def loader_of(plan: DataPlan, workers: int = 0, *, warn: Any = pytest.fail, **how: Any) -> BatchLoader:
    """A loader for SDXL; `latents`, `text` and `max_train_steps` go to its reader."""
    read = {name: how.pop(name) for name in ("latents", "text", "max_train_steps") if name in how}
    return BatchLoader(BatchReader(plan, conditioning=conditioning, **read), warn=warn, workers=workers, **how)


def _never(text: str) -> None:
    raise AssertionError(f"unexpected warning: {text}")
