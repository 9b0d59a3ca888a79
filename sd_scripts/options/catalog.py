"""The option groups of each training script, by family and method; torch-free, so that the GUI can import it."""

from dataclasses import dataclass

from sd_scripts.options.compile import CompileMoreOptions, CompileOptions
from sd_scripts.options.dataset import (
    AugmentOptions,
    BucketOptions,
    CacheOptions,
    CaptionOptions,
    DatasetOptions,
    ValidationOptions,
)
from sd_scripts.options.flux import FluxMemoryOptions, FluxModelOptions, FluxNetworkOptions, FluxObjectiveOptions
from sd_scripts.options.full import FullOptions, FusedOptions, ModelFileOptions
from sd_scripts.options.launch import LaunchOptions
from sd_scripts.options.logging import LoggingOptions
from sd_scripts.options.loss import LossOptions, NoiseOptions
from sd_scripts.options.metadata import MetadataOptions
from sd_scripts.options.model import ModelOptions
from sd_scripts.options.network import NetworkOptions
from sd_scripts.options.optimizer import LrSchedulerOptions, OptimizerOptions
from sd_scripts.options.run import CudaOptions, RunOptions
from sd_scripts.options.sampling import SampleOptions
from sd_scripts.options.saving import EmaOptions, HuggingFaceOptions, LoraFileOptions, SavingOptions
from sd_scripts.options.settings import Groups
from sd_scripts.options.training import DistributedOptions, ResumeOptions, TrainingOptions

FAMILY_TITLES = {"sdxl": "SDXL", "flux": "FLUX.1"}
METHOD_TITLES = {"lora": "LoRA training", "full": "full training"}

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
)
LORA: Groups = (LoraFileOptions, NetworkOptions)
FULL: Groups = (FullOptions, ModelFileOptions)
FLUX: Groups = (FluxModelOptions, FluxObjectiveOptions, FluxMemoryOptions)
FILE_ONLY: Groups = (LaunchOptions,)
"""Groups that are keys of a settings file but not flags of a training script: accelerate uses them before it starts."""


@dataclass(frozen=True, kw_only=True)
class Script:
    """A training script: its family, its method and its option groups."""

    file: str
    family: str
    method: str
    groups: Groups

    @property
    def flag_groups(self) -> Groups:
        return tuple(group for group in self.groups if group not in FILE_ONLY)


SDXL_LORA = Script(file="sdxl_train_network.py", family="sdxl", method="lora", groups=(*COMMON, *LORA))
SDXL_FULL = Script(file="sdxl_train.py", family="sdxl", method="full", groups=(*COMMON, *FULL))
FLUX_LORA = Script(
    file="flux_train_network.py", family="flux", method="lora", groups=(*COMMON, *FLUX, *LORA, FluxNetworkOptions)
)
FLUX_FULL = Script(file="flux_train.py", family="flux", method="full", groups=(*COMMON, *FLUX, *FULL))

SCRIPTS = (SDXL_LORA, FLUX_LORA, SDXL_FULL, FLUX_FULL)


def script_for(family: str, method: str) -> Script:
    for script in SCRIPTS:
        if (script.family, script.method) == (family, method):
            return script
    title = FAMILY_TITLES.get(family, family)
    raise ValueError(f"there is no {METHOD_TITLES.get(method, method)} for {title} yet")


def script_of(groups: Groups) -> Script:
    """Return the script whose settings have these groups."""
    return next(script for script in SCRIPTS if script.groups == groups)
