"""Settings of captioning from a TOML file: ours, and those of the caption tools of kohya_ss and sd-scripts."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from sd_scripts.formats.documents import read_toml
from sd_scripts.formats.words import listed
from sd_scripts.options.captioning.images import CaptionImagesOptions, CaptionModelOptions
from sd_scripts.options.captioning.text import CaptionTextOptions, EndpointOptions, TaggerOptions
from sd_scripts.settings.family_options import each_option
from sd_scripts.settings.settings import Groups

CAPTIONING: Groups = (CaptionImagesOptions, CaptionModelOptions, TaggerOptions, CaptionTextOptions, EndpointOptions)
OPTIONS = {o.name: o for group in CAPTIONING for o in each_option(group)}

RENAMED: Mapping[str, str] = MappingProxyType(
    {
        "repo_id": "model",
        "model_id": "model",
        "caption_weights": "model",
        "caption_extention": "caption_extension",
        "caption_postfix": "postfix",
        "num_beam": "num_beams",
        "max_new_tokens": "max_length",
    }
)
"""Names of other programs -> ours."""
MEANS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "append_tags": {"existing": "append"},
        "beam_search": {"temperature": 0.0},
    }
)
"""Switches of other programs -> the values of ours that they stand for."""
WITHOUT_MEANING = frozenset(
    {
        *("onnx", "force_download", "debug", "max_data_loader_n_workers", "model_threshold", "use_quality_tags"),
        *("use_quality_tags_as_last_tag", "output_path", "remove_words", "length_penalty", "repetition_penalty"),
    }
)
"""Options of theirs that nothing here needs: the tagger is always ONNX, images are always read ahead."""
SECTIONS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "wd14_caption": {"method": "tagger", "existing": "replace", "remove_underscore": False},
        "blip_caption": {
            "method": "captioner",
            "model": "Salesforce/blip-image-captioning-large",
            "existing": "replace",
            "caption_extension": ".caption",
            "max_length": 75,
            "min_length": 5,
            "temperature": 1.0,
        },
        "blip2_caption": {"method": "captioner", "model": "Salesforce/blip2-opt-2.7b", "existing": "replace"},
        "git_caption": {
            "method": "captioner",
            "model": "microsoft/git-large-textcaps",
            "existing": "replace",
            "caption_extension": ".caption",
            "max_length": 50,
        },
        "florence2_caption": {
            "method": "captioner",
            "model": "florence-community/Florence-2-large",
            "existing": "replace",
        },
    }
)
"""Section of kohya_ss's config.toml, or caption tool of sd-scripts -> their defaults that differ from ours. Without
beam_search, sd-scripts draws BLIP's words."""
FOR_WD14: Mapping[str, str] = MappingProxyType({"always_first_tags": "prefix"})
"""kohya_ss writes its always_first_tags before the caption, whatever the image shows."""


def read_settings(file: Path) -> dict[str, Any]:
    """Return the values of options from a settings file, as read_document does."""
    return read_document(read_toml(file))


def read_document(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of options from settings of ours, or from kohya_ss's config.toml. Raises ValueError, one
    sentence, for a file with neither, and for names that mean nothing here."""
    section = next((name for name in SECTIONS if isinstance(document.get(name), dict)), None)
    if section:
        return of_tool(section, document[section])
    tables = {name for name, value in document.items() if isinstance(value, dict)}
    if unknown := sorted(tables):
        raise ValueError(f"the section [{unknown[0]}] does not belong to captioning; use [{', ['.join(SECTIONS)}]")
    return translated(document)


def of_tool(section: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of our options for those of a caption tool of kohya_ss or sd-scripts."""
    renamed = FOR_WD14 if section == "wd14_caption" else {}
    own = {renamed.get(name, name): value for name, value in values.items()}
    return {**SECTIONS[section], **translated(own)}


def translated(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values under our names. Raises ValueError, one sentence, for names that mean nothing here."""
    ours: dict[str, Any] = {}
    unknown = []
    for name, value in values.items():
        if name in MEANS:
            ours |= MEANS[name] if value else {}
        elif RENAMED.get(name, name) in OPTIONS:
            ours[RENAMED.get(name, name)] = value
        elif name not in WITHOUT_MEANING:
            unknown.append(name)
    if unknown:
        raise ValueError(f"{listed(sorted(unknown), 'and')}: unknown option of captioning; correct or remove it")
    return ours
