"""The metadata that a run writes into its files."""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from torch.optim import Optimizer

from sd_scripts.data.metadata import dataset_metadata
from sd_scripts.families.family import Components, Family
from sd_scripts.library import optimizers
from sd_scripts.library.metadata import TrainingMetadata, base_file_metadata, modelspec, training_metadata
from sd_scripts.networks.plan import DEFAULT_DIM
from sd_scripts.options.loss import NoiseOptions
from sd_scripts.options.metadata import MetadataOptions, thumbnail_url
from sd_scripts.options.network import NetworkOptions
from sd_scripts.options.optimizer import OptimizerOptions
from sd_scripts.options.saving import SavingOptions
from sd_scripts.options.settings import Settings
from sd_scripts.training.context import Context
from sd_scripts.training.progress import TrainPlan
from sd_scripts.training.training_data import TrainingData
from sd_scripts.training.writer import Metadata


def run_metadata(
    context: Context, family: Family, training_data: TrainingData, train_plan: TrainPlan, optimizer: Optimizer
) -> TrainingMetadata:
    """Return the part of the metadata that stays the same during the run."""
    data = dataset_metadata(training_data.plan, short_batches=training_data.short_batches)
    batch_size = max(dataset.batch_size for dataset in training_data.plan.blueprint.datasets)
    return TrainingMetadata(
        session_id=context.number("session", time.time()) >> 31,
        started_at=time.time(),
        seed=context.seed,
        base_model_version=family.identity.base_model_version,
        optimizer=optimizers.description(optimizer, context.settings[OptimizerOptions]),
        network_dim=_network_dim(context.settings),
        max_train_steps=train_plan.max_steps,
        num_epochs=train_plan.epochs,
        total_batch_size=batch_size * context.world,
        **vars(data),
    )


def _network_dim(settings: Settings) -> int:
    network = settings.get(NetworkOptions)
    return (network.network_dim or DEFAULT_DIM) if network else 0


def file_metadata(
    context: Context, family: Family, components: Components, about_run: TrainingMetadata, *, network: bool
) -> Metadata:
    """Return a function that makes the metadata of a file when it is saved. That of an adapter also records its
    training and the hash of the base model, which is computed in the background."""
    settings = context.settings
    about = settings[MetadataOptions]
    if about.metadata_thumbnail:  # read once: the file may be gone when the last file is saved
        about = replace(about, metadata_thumbnail=thumbnail_url(about.metadata_thumbnail))
    hashing = ThreadPoolExecutor(max_workers=1).submit(base_file_metadata, settings) if network else None

    def metadata(epochs: int, steps: int, *, hashed: bool = True) -> dict[str, str]:
        now = time.time()
        noise = settings[NoiseOptions]
        bounded = noise.min_timestep is not None or noise.max_timestep is not None
        spec = modelspec(
            about,
            architecture=family.identity.architecture(components),
            implementation=family.identity.implementation,
            title=settings[SavingOptions].output_name,
            resolution=about_run.resolution,
            now=now,
            prediction_type=family.identity.prediction_type(settings),
            timestep_range=(noise.min_timestep or 0, noise.max_timestep or 1000) if bounded else None,
            lora=network,
        )
        if hashing is None:
            return _encodable(spec)
        complete = replace(about_run, base_files=hashing.result() if hashed else {})
        common = training_metadata(settings, complete, epoch=epochs, steps=steps, now=now)
        own = {} if settings[MetadataOptions].no_metadata else family.identity.lora_metadata(settings, components)
        return _encodable({**common, **own, **spec})

    return metadata


def _encodable(texts: dict[str, str]) -> dict[str, str]:
    """Replace lone surrogates, which arguments in another encoding bring and UTF-8 cannot hold."""
    return {key: text.encode("utf-8", "replace").decode("utf-8") for key, text in texts.items()}
