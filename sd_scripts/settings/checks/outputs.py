"""Checks of a run's outputs: files, samples, uploads."""

from sd_scripts.options.generating.sampling import SampleOptions
from sd_scripts.options.saving import HuggingFaceOptions, SavingOptions
from sd_scripts.options.spec import Findings
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
    for name in ("sample_every_n_steps", "sample_every_n_epochs", "sample_at_first"):
        if getattr(sample, name):
            yield name, "has no effect without sample_prompts"


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
