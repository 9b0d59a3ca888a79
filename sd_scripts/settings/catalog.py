"""The option groups of each training script, by family and method; torch-free, so that the GUI can import it."""

from pathlib import Path

import sd_scripts
from sd_scripts.families.cards.family_card import FamilyCard
from sd_scripts.families.cards.registry import cards
from sd_scripts.options.clips import ClipOptions
from sd_scripts.options.compile import CompileMoreOptions, CompileOptions
from sd_scripts.options.dataset import (
    AugmentOptions,
    BucketOptions,
    CacheOptions,
    CaptionOptions,
    DatasetOptions,
    ValidationOptions,
)
from sd_scripts.options.full import FullOptions, FusedOptions, ModelFileOptions
from sd_scripts.options.generating.generate import GENERATE, GenerateOptions
from sd_scripts.options.generating.sampling import SampleOptions
from sd_scripts.options.launch import LaunchOptions, SlurmOptions
from sd_scripts.options.logging import LoggingOptions
from sd_scripts.options.metadata import MetadataOptions
from sd_scripts.options.model import ModelOptions
from sd_scripts.options.networks.embedding import EmbeddingFileOptions, EmbeddingOptions
from sd_scripts.options.networks.network import NetworkOptions
from sd_scripts.options.optimization.flow import FlowOptions
from sd_scripts.options.optimization.loss import LossOptions, NoiseOptions
from sd_scripts.options.optimization.optimizer import LrSchedulerOptions, OptimizerOptions
from sd_scripts.options.run import CudaOptions, RunOptions
from sd_scripts.options.saving import EmaOptions, HuggingFaceOptions, LoraFileOptions, SavingOptions
from sd_scripts.options.spec import ALL_METHODS
from sd_scripts.options.training import DistributedOptions, ResumeOptions, TrainingOptions
from sd_scripts.settings.family_options import each_option
from sd_scripts.settings.settings import Groups, Script

FAMILY_TITLES = {card.name: card.title for card in cards()}
METHOD_TITLES = {"lora": "LoRA training", "full": "full training", "textual_inversion": "textual inversion"}
SCRIPT_TITLES = {**METHOD_TITLES, GENERATE: "generating"}

COMMON: Groups = (
    ModelOptions,
    DatasetOptions,
    BucketOptions,
    CaptionOptions,
    AugmentOptions,
    CacheOptions,
    ValidationOptions,
    TrainingOptions,
    FusedOptions,
    OptimizerOptions,
    LrSchedulerOptions,
    NoiseOptions,
    LossOptions,
    CompileOptions,
    CompileMoreOptions,
    CudaOptions,
    ResumeOptions,
    SavingOptions,
    EmaOptions,
    SampleOptions,
    MetadataOptions,
    LoggingOptions,
    HuggingFaceOptions,
    DistributedOptions,
    RunOptions,
    LaunchOptions,
    SlurmOptions,
)
OF_METHOD: dict[str, Groups] = {
    "lora": (LoraFileOptions, NetworkOptions, EmbeddingOptions),
    "full": (FullOptions, ModelFileOptions),
    "textual_inversion": (EmbeddingFileOptions, EmbeddingOptions),
}
FILE_ONLY: Groups = (LaunchOptions,)
"""Groups that are keys of a settings file but not flags of a training script: accelerate uses them before it starts."""


def flag_groups(script: Script) -> Groups:
    """Return the groups whose options are flags of the script."""
    return tuple(group for group in script.groups if group not in FILE_ONLY)


def _script(card: FamilyCard, method: str, file: str) -> Script:
    shared = [group for group in card.groups if method in group.methods and len(group.methods) > 1]
    own = [group for group in card.groups if group.methods == (method,)]
    return Script(file=file, family=card.name, method=method, groups=(*COMMON, *shared, *OF_METHOD[method], *own))


SCRIPTS = tuple(
    _script(card, method, card.scripts[method])
    for method in METHOD_TITLES
    for card in cards()
    if method in card.scripts
)


OF_TRAINING = (FlowOptions, ClipOptions)
"""Groups of cards that have no effect on generating."""


def _generate_script(card: FamilyCard) -> Script:
    own: Groups = tuple(group for group in card.groups if group.methods == ALL_METHODS and group not in OF_TRAINING)
    groups: Groups = (ModelOptions, *own, GenerateOptions, CompileOptions, RunOptions)
    return Script(file=card.scripts[GENERATE], family=card.name, method=GENERATE, groups=groups)


GENERATE_SCRIPTS = tuple(_generate_script(card) for card in cards() if GENERATE in card.scripts)
"""The scripts that generate images: with the options of the model and its memory, without the training options."""


def options_of_one_method() -> dict[str, set[str]]:
    """Return for each method the options that only its files contain, going by the groups of one method."""
    groups = {group for script in SCRIPTS for group in script.groups}
    found = {
        method: {o.name for group in groups if group.methods == (method,) for o in each_option(group) if not o.not_yet}
        for method in METHOD_TITLES
    }
    shared = set.intersection(*found.values())
    return {method: names - shared for method, names in found.items()}


def script_path(script: Script) -> Path:
    """Return the file of a script, which may be in the folder that added its family."""
    folders = [Path(folder) for folder in sd_scripts.__path__]
    return next(folder / script.file for folder in folders if (folder / script.file).is_file()).resolve()


def script_for(family: str, method: str) -> Script:
    """Return the script that trains a family by a method, or that generates. Raises ValueError, one sentence, if there
    is none."""
    for script in (*SCRIPTS, *GENERATE_SCRIPTS):
        if (script.family, script.method) == (family, method):
            return script
    title = FAMILY_TITLES.get(family, family)
    raise ValueError(f"there is no {SCRIPT_TITLES.get(method, method)} for {title} yet")
