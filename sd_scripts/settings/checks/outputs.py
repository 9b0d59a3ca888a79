"""Checks of a run's outputs: files, samples, uploads."""

from sd_scripts.families.cards.registry import is_built_in_network
from sd_scripts.options.generating.sampling import SAMPLE_MODEL, SampleOptions
from sd_scripts.options.model import ModelOptions
from sd_scripts.options.networks.network import NetworkOptions
from sd_scripts.options.saving import HuggingFaceOptions, SavingOptions
from sd_scripts.options.spec import Findings, truth
from sd_scripts.options.training import TrainingOptions
from sd_scripts.settings.checks.run_values import RunValues


def samples_without_prompts(values: RunValues) -> Findings:
    sample = values[SampleOptions]
    if sample.sample_prompts:
        if not (sample.sample_every_n_steps or sample.sample_every_n_epochs or sample.sample_at_first):
            yield (
                "sample_prompts",
                "generates no samples on its own; set sample_every_n_steps or sample_every_n_epochs",
            )
        return
    for name in ("sample_every_n_steps", "sample_every_n_epochs", "sample_at_first", SAMPLE_MODEL):
        if getattr(sample, name):
            yield name, "has no effect without sample_prompts"


def sample_model_conflicts(values: RunValues) -> Findings:
    """Refuse a model for samples where the trained weights cannot be used on it."""
    if not values[SampleOptions].sample_model or not values.card.has(SAMPLE_MODEL):
        return
    network = values.get(NetworkOptions)
    if network is None:
        yield SAMPLE_MODEL, "is for LoRA training, which leaves the model itself unchanged; leave it unset"
    elif not is_built_in_network(network):
        yield SAMPLE_MODEL, "works with the built-in networks only; leave network_module unset"
    elif network.dora_wd or truth(network.built_in.arguments.get("dora_wd", "False")):
        yield SAMPLE_MODEL, "a DoRA depends on the norms of the trained model's weights; leave sample_model unset"


def sample_model_is_the_trained_one(values: RunValues) -> Findings:
    name, trained = values[SampleOptions].sample_model, values[ModelOptions].pretrained_model_name_or_path
    network = values.get(NetworkOptions)
    if name and name == trained and not (network and network.training_adapter):
        yield SAMPLE_MODEL, "is the trained model, with which samples are made anyway; leave it unset to save RAM"


def keep_last_without_saving(values: RunValues) -> Findings:
    saving = values[SavingOptions]
    if saving.save_last_n_steps and not saving.save_every_n_steps:
        yield "save_last_n_steps", "has no effect without save_every_n_steps"
    if saving.save_last_n_epochs and not (saving.save_every_n_epochs or saving.save_n_epoch_ratio):
        yield "save_last_n_epochs", "has no effect without save_every_n_epochs"


def steps_replaced_by_epochs(values: RunValues) -> Findings:
    training = values[TrainingOptions]
    if training.max_train_epochs and training.max_train_steps != TrainingOptions.max_train_steps:
        yield (
            "max_train_steps",
            f"has no effect with max_train_epochs = {training.max_train_epochs}; remove one of them",
        )


def uploads_without_repository(values: RunValues) -> Findings:
    hub = values[HuggingFaceOptions]
    chosen = {
        "huggingface_repo_type": hub.huggingface_repo_type,
        "huggingface_path_in_repo": hub.huggingface_path_in_repo,
        "huggingface_repo_visibility": hub.huggingface_repo_visibility,
        "save_state_to_huggingface": hub.save_state_to_huggingface,
    }
    if hub.huggingface_repo_id:
        return
    for name, value in chosen.items():
        if value:
            yield name, "has no effect without huggingface_repo_id, so nothing is uploaded; set it to upload"
