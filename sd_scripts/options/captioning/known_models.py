"""Captioning models that are known by name: size and licence are shown before a download."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Method = Literal["tagger", "captioner", "endpoint", "background", "faces", "text"]
"""How captions are written, or what a model of the image tools finds."""


@dataclass(frozen=True, kw_only=True)
class KnownModel:
    """A model on the Hugging Face Hub."""

    repo: str
    method: Method
    gigabytes: float
    """Of the files that are downloaded."""
    licence: str
    about: str

    @property
    def size(self) -> str:
        return f"{self.gigabytes:g} GB" if self.gigabytes >= 0.1 else f"{1000 * self.gigabytes:g} MB"


KNOWN_MODELS = (
    KnownModel(
        repo="SmilingWolf/wd-eva02-large-tagger-v3",
        method="tagger",
        gigabytes=1.26,
        licence="Apache-2.0",
        about="Danbooru tags, the most accurate of its family",
    ),
    KnownModel(
        repo="SmilingWolf/wd-vit-tagger-v3",
        method="tagger",
        gigabytes=0.38,
        licence="Apache-2.0",
        about="Danbooru tags, quick",
    ),
    KnownModel(
        repo="SmilingWolf/wd-swinv2-tagger-v3",
        method="tagger",
        gigabytes=0.47,
        licence="Apache-2.0",
        about="Danbooru tags, between the other two",
    ),
    KnownModel(
        repo="SmilingWolf/wd-convnext-tagger-v3",
        method="tagger",
        gigabytes=0.39,
        licence="Apache-2.0",
        about="Danbooru tags, kohya_ss's default",
    ),
    KnownModel(
        repo="florence-community/Florence-2-large",
        method="captioner",
        gigabytes=1.6,
        licence="MIT",
        about="Captions of one sentence to one paragraph; small and quick",
    ),
    KnownModel(
        repo="Qwen/Qwen3-VL-4B-Instruct",
        method="captioner",
        gigabytes=8.9,
        licence="Apache-2.0",
        about="Follows a prompt",
    ),
    KnownModel(
        repo="Qwen/Qwen3-VL-8B-Instruct",
        method="captioner",
        gigabytes=17.5,
        licence="Apache-2.0",
        about="Follows a prompt; more detail and fewer mistakes",
    ),
    KnownModel(
        repo="Qwen/Qwen2.5-VL-7B-Instruct",
        method="captioner",
        gigabytes=16.6,
        licence="Apache-2.0",
        about="Follows a prompt; the text encoder of Qwen-Image",
    ),
    KnownModel(
        repo="Salesforce/blip2-opt-2.7b",
        method="captioner",
        gigabytes=15.0,
        licence="MIT",
        about="Short captions",
    ),
    KnownModel(
        repo="Salesforce/blip-image-captioning-large",
        method="captioner",
        gigabytes=1.9,
        licence="BSD-3-Clause",
        about="Short captions, as kohya_ss's BLIP tool",
    ),
    KnownModel(
        repo="microsoft/git-large-textcaps",
        method="captioner",
        gigabytes=1.6,
        licence="MIT",
        about="Short captions, as kohya_ss's GIT tool",
    ),
)
"""The first of each method is its default. Sizes and licences are rough guides: before a download the page shows the
Hub's own."""


def known_model(repo: str, models: Sequence[KnownModel] = KNOWN_MODELS) -> KnownModel | None:
    return next((model for model in models if model.repo == repo), None)


def default_model(method: str) -> str:
    """Return the repository that a method uses unless another is named; empty for one without."""
    return next((model.repo for model in KNOWN_MODELS if model.method == method), "")
