"""The metadata that a run writes into its files."""

import threading
import time
from concurrent.futures import Future
from dataclasses import replace

from sd_scripts.data.metadata import dataset_metadata
from sd_scripts.library.files.ss_metadata import TrainingMetadata, base_file_metadata, modelspec, training_metadata
from sd_scripts.library.optim import optimizers
from sd_scripts.options.metadata import MetadataOptions, thumbnail_url
from sd_scripts.options.model import ModelOptions
from sd_scripts.options.networks.embedding import EmbeddingOptions
from sd_scripts.options.networks.network import DEFAULT_DIM, NetworkOptions
from sd_scripts.options.optimization.loss import NoiseOptions
from sd_scripts.options.optimization.optimizer import OptimizerOptions
from sd_scripts.options.saving import SavingOptions
from sd_scripts.runs.outputs import EMBEDDING_ENDING
from sd_scripts.training.methods.embeddings import TEXTUAL_INVERSION
from sd_scripts.training.process.error_hints import brief
from sd_scripts.training.saving.train_state import TrainState
from sd_scripts.training.training_data import TrainingData


class FileMetadata:
    """Makes the metadata of each file when it is saved. An adapter's also records its training and the hash of the base
    model, which is computed in the background once `hash_base_files` is called, or for the first file."""

    def __init__(self, training_data: TrainingData, train_state: TrainState):
        self._context = training_data.context
        self._family = training_data.family
        self._components = training_data.components
        self._train_state = train_state
        settings = self._context.settings
        self._run = _run_metadata(training_data, train_state)
        self._options = options = settings[MetadataOptions]
        if options.metadata_thumbnail:  # read once: the file may be gone when the last file is saved
            self._options = replace(options, metadata_thumbnail=thumbnail_url(options.metadata_thumbnail))
        embedding = settings.get(EmbeddingOptions)
        if embedding and embedding.token_string and not options.metadata_trigger_phrase:
            self._options = replace(self._options, metadata_trigger_phrase=embedding.token_string)
        self._is_network = train_state.trainable.is_network
        self._hashing: Future[dict[str, str]] | None = None
        self._last: dict[str, str] = {}

    def hash_base_files(self) -> None:
        """Begin to hash the base model, unless it has begun or no file will have the hash."""
        has_hash = self._is_network and self._context.is_main and not self._options.no_metadata
        if has_hash and not self._hashing:
            self._hashing = Future()
            # a daemon: a run that ends without saving does not wait for it
            threading.Thread(target=self._hash, args=(self._hashing,), name="hash-base-files", daemon=True).start()

    def _hash(self, hashing: Future[dict[str, str]]) -> None:
        settings = self._context.settings
        base = settings[ModelOptions].pretrained_model_name_or_path
        vae = settings.values()[self._family.card.files.vae_option]
        try:
            hashing.set_result(base_file_metadata(base, vae))
        except Exception as error:
            hashing.set_exception(error)

    def of_file(self, epochs: int) -> dict[str, str]:
        """Return the metadata of a file saved now, or the previous save's if they cannot be built."""
        self.hash_base_files()
        try:
            self._last = self._make(epochs, self._hashing.result() if self._hashing else {})
        except Exception as error:
            why = brief(error)
            self._context.warn_once(
                "metadata", f"could not build the metadata ({why}); the file has the metadata of the previous save"
            )
        return self._last

    def of_companion(self, suffix: str, metadata: dict[str, str]) -> dict[str, str]:
        """Return the metadata of a further file from the file that it is saved with: an embedding is a different kind
        of file, everything else the same under other names."""
        if suffix != EMBEDDING_ENDING:
            return metadata
        spec = {key: text for key, text in metadata.items() if key.startswith("modelspec.")}
        if architecture := spec.get("modelspec.architecture"):
            spec["modelspec.architecture"] = architecture.removesuffix("/lora") + TEXTUAL_INVERSION
        return spec

    def of_trial(self) -> dict[str, str]:
        """Return the metadata without the hash, which takes time."""
        self._last = self._make(0, {})
        return self._last

    def _make(self, epochs: int, base_files: dict[str, str]) -> dict[str, str]:
        now = time.time()
        settings = self._context.settings
        identity = self._family.identity
        noise = settings[NoiseOptions]
        bounded = noise.min_timestep is not None or noise.max_timestep is not None
        spec = modelspec(
            self._options,
            architecture=identity.architecture(self._components),
            implementation=identity.implementation,
            title=settings[SavingOptions].output_name,
            resolution=self._run.resolution,
            now=now,
            prediction_type=identity.prediction_type(settings),
            timestep_range=(noise.min_timestep or 0, noise.max_timestep or 1000) if bounded else None,
            suffix=self._train_state.trainable.architecture_suffix if self._is_network else "",
        )
        if not self._is_network:
            return _encodable(spec)
        complete = replace(self._run, base_files=base_files)
        steps = self._train_state.progress.step
        common = training_metadata(settings, complete, epoch=epochs, steps=steps, now=now)
        own = {} if self._options.no_metadata else identity.lora_entries(settings.values(), self._components)
        return _encodable({**common, **own, **spec})


def _run_metadata(training_data: TrainingData, train_state: TrainState) -> TrainingMetadata:
    """Return the part of the metadata that stays the same during the run."""
    context = training_data.context
    train_plan = train_state.train_plan
    network = context.settings.get(NetworkOptions)
    data = dataset_metadata(training_data.plan, short_batches=training_data.short_batches)
    batch_size = max(dataset.batch_size for dataset in training_data.plan.blueprint.datasets)
    return TrainingMetadata(
        session_id=context.number("session", time.time()) >> 31,
        started_at=time.time(),
        seed=context.seed,
        base_model_version=training_data.family.identity.base_model_version,
        optimizer=optimizers.description(train_state.optimizer, context.settings[OptimizerOptions]),
        network_dim=(network.network_dim or DEFAULT_DIM) if network else 0,
        max_train_steps=train_plan.max_steps,
        num_epochs=train_plan.epochs,
        total_batch_size=batch_size * context.world,
        **vars(data),
    )


def _encodable(texts: dict[str, str]) -> dict[str, str]:
    """Replace lone surrogates, which come from arguments in other encodings and are not valid UTF-8."""
    return {key: text.encode("utf-8", "replace").decode("utf-8") for key, text in texts.items()}
