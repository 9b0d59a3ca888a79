"""Short runs of the whole trainer on the miniature, in this process, and their results."""

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from sd_scripts.families.chroma.card.options import RECOMMENDED as CHROMA
from sd_scripts.families.flux.card.options import RECOMMENDED
from sd_scripts.families.framepack.card.options import RECOMMENDED as FRAMEPACK
from sd_scripts.families.hunyuan_video.card.options import RECOMMENDED as HUNYUAN_VIDEO
from sd_scripts.formats.toml_files import write_toml
from sd_scripts.runs.folder import RunFolder
from sd_scripts.settings.catalog import script_for
from tests.support.data import make_folder
from tests.support.suite import tiers
from tests.support.suite.spending import RUNS, spend

SHORT: dict[str, Any] = {
    "caption_extension": ".txt",
    "resolution": "64,64",
    "enable_bucket": True,
    "min_bucket_reso": 64,
    "max_bucket_reso": 128,
    "bucket_reso_steps": 32,
    "train_batch_size": 1,
    "max_data_loader_n_workers": 0,
    "cache_latents": True,
    "cache_text_encoder_outputs": True,
    "network_module": "networks.lora",
    "network_dim": 2,
    "network_alpha": 1.0,
    "network_train_unet_only": True,
    "learning_rate": 1e-2,
    "max_train_steps": 3,
    "seed": 1,
    "output_name": "short",
    "save_state": False,
}
"""Three steps on images of 64 pixels; a None among the further values removes a setting."""

OF_FAMILY: dict[str, dict[str, Any]] = {
    "sdxl": {},
    **{family: {"t5xxl_max_token_length": 16, **RECOMMENDED} for family in ("flux", "flux_kontext")},
    "flux2": {"timestep_sampling": "flux2_shift"},
    "z_image": {"timestep_sampling": "shift", "discrete_flow_shift": 2.0},
    "anima": {"timestep_sampling": "sigmoid"},
    "krea2": {"timestep_sampling": "krea2_shift"},
    "chroma": {"t5xxl_max_token_length": 16, **CHROMA},
    **{family: {"timestep_sampling": "qwen_shift"} for family in ("qwen_image", "qwen_image_edit")},
    **{family: {"timestep_sampling": "shift"} for family in ("wan", "wan_5b")},
    "hunyuan_video": HUNYUAN_VIDEO,
    "framepack": FRAMEPACK,
}
"""Settings of each family's runs in addition to SHORT."""

FULL: dict[str, Any] = {
    **dict.fromkeys(("network_module", "network_dim", "network_alpha", "network_train_unet_only")),
    "learning_rate": 1e-3,
}
"""What full training has in place of a network."""

TOKEN = "zwx"
ALONE: dict[str, Any] = {
    **dict.fromkeys(("network_module", "network_dim", "network_alpha", "network_train_unet_only")),
    **{"cache_text_encoder_outputs": None, "caption_prefix": TOKEN},
    **{"token_string": TOKEN, "init_word": "red", "num_vectors_per_token": 2},
}
"""What textual inversion has in place of a network."""
PIVOTAL: dict[str, Any] = {**ALONE, "network_dim": 2, "network_train_unet_only": True, "embedding_lr": 2e-2}
"""A LoRA and embeddings."""

GRAPHS = {
    **{"sdxl": 9, "flux": 2, "flux_kontext": 2, "chroma": 2, "flux2": 2, "anima": 1, "krea2": 1, "z_image": 2},
    **{"qwen_image": 1, "qwen_image_edit": 1, "wan": 1, "wan_5b": 1, "hunyuan_video": 2, "framepack": 2},
}
"""Of a compiled LoRA run on images of one size."""

ENCODED: dict[str, Any] = {"cache_latents_to_disk": True, "cache_text_encoder_outputs_to_disk": True}
"""The first run of a session encodes, the others read its caches."""
CHANGES_NO_ENCODING = re.compile(
    "blocks_to_swap|compile(?!_vae|_text).*|ema.*|gradient_.*|learning_rate|loss_type|lr_.*|max_grad_norm|max_train_.*|min_snr_gamma|"
    "network_(alpha|args|dim|dropout|module)|noise_.*|optimizer_.*|output_name|resume|save_.*|seed|train_batch_size|"
    "unet_lr|use_ema"
)
"""Options with which images and captions are encoded the same as without them."""

CAPTIONS_IN_THE_STEP: dict[str, Any] = {"cache_text_encoder_outputs": None}
TEXT_ENCODERS_TOO: dict[str, Any] = {"cache_text_encoder_outputs": None, "network_train_unet_only": None}
ON_REQUEST: dict[str, dict[str, Any]] = {"chroma": {"train_t5xxl": True}}
"""What is needed in addition by families none of whose text encoders is trained without it."""


@dataclass(frozen=True)
class Run:
    """The results of a run."""

    status: int
    output: Path
    folder: RunFolder

    @property
    def events(self) -> list[dict[str, Any]]:
        return list(self.folder.events())

    def events_of(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["kind"] == kind]

    @property
    def losses(self) -> list[float]:
        return [event["loss"] for event in self.events_of("step")]

    @property
    def steps(self) -> list[int]:
        return [event["step"] for event in self.events_of("step")]

    @property
    def files(self) -> list[str]:
        """Names in the output folder, the run's own folder left out."""
        return sorted(path.name for path in self.output.iterdir() if path != self.folder.path)

    def tensors(self, name: str = "short.safetensors") -> dict[str, Tensor]:
        return safetensors.torch.load_file(self.output / name)


def train(miniature: Any, output: Path, method: str = "lora", **values: Any) -> Run:
    """Train on two images next to the output, or on train_data_dir; settings go through a TOML file."""
    settings = {**settings_for(miniature), "output_dir": output, "run_dir": output / "run", **values}
    if "train_data_dir" not in settings and "dataset_config" not in settings:
        if encoding_is_usual(values):
            settings |= {**ENCODED, "train_data_dir": images(miniature.data_dir.parent / "encoded")}
        else:
            settings["train_data_dir"] = images(output.parent / "images")
    if "control_directory" in miniature.files and "control_directory" not in values:
        settings["control_directory"] = settings.get("train_data_dir")  # each image is its own control image
    config = output.with_name(f"{output.name}.toml")
    write_toml(config, {name: str(value) if isinstance(value, Path) else value for name, value in settings.items()})
    return run(["--config_file", str(config)], output, miniature.family, method)


def encoding_is_usual(values: Mapping[str, Any]) -> bool:
    """Whether a run with these settings on top of SHORT can share the images that other runs have encoded."""
    own = {name for name, value in values.items() if FULL.get(name, 0) != value}
    return all(map(CHANGES_NO_ENCODING.fullmatch, own))


def train_whole(miniature: Any, output: Path, **values: Any) -> Run:
    """The same in full training."""
    return train(miniature, output, "full", **{**FULL, **values})


def settings_for(miniature: Any) -> dict[str, Any]:
    """Three steps on this model; data and output are still to be named."""
    return {**SHORT, **OF_FAMILY.get(miniature.family, {}), **miniature.files}


def run(flags: list[str], output: Path, family: str = "sdxl", method: str = "lora") -> Run:
    """What these flags of the family's script do; the run's folder is `output`/run."""
    tiers.require_whole_runs()
    spend(RUNS, family)
    script = import_module(f"sd_scripts.{Path(script_for(family, method).file).stem}")
    ours = logging.getLogger("sd_scripts")
    before = ours.handlers, ours.propagate, ours.level
    try:
        status = script.main(flags)
    except SystemExit as leaving:  # a mistake in the settings
        status = int(leaving.code or 0)
    finally:
        ours.handlers, ours.propagate = before[:2]
        ours.setLevel(before[2])
    return Run(status, output, RunFolder(output / "run"))


def images(root: Path, count: int = 2, repeats: int = 1) -> Path:
    """A train_data_dir of images of 64x64, once each in an epoch."""
    folder = root / f"{repeats}_noise"
    if not folder.exists():
        make_folder(folder, [(64, 64)] * count)
    return root


def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """Bit for bit."""
    return one.keys() == other.keys() and all(torch.equal(tensor, other[name]) for name, tensor in one.items())
