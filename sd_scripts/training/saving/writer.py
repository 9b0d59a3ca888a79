"""Writes a checkpoint with its EMA and state: complete or not at all; if other things fail, at least the weights."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from sd_scripts.formats.atomic_files import atomic_file, remove_whole
from sd_scripts.formats.disk import errno_of, saving, why_not_written
from sd_scripts.library.files.safetensors_io import PRECISIONS, on_cpu, save_model
from sd_scripts.options.saving import SavingOptions
from sd_scripts.runs.outputs import EMA_ENDING, STATE_ENDING
from sd_scripts.training.process.error_hints import brief
from sd_scripts.training.saving.hub_upload import HubUploads
from sd_scripts.training.saving.metadata import FileMetadata
from sd_scripts.training.saving.outputs import OwnOutputs
from sd_scripts.training.saving.train_state import TrainState, write_state
from sd_scripts.training.training_data import TrainingData

logger = logging.getLogger(__name__)

Save = Callable[[torch.dtype | None, dict[str, str]], None]
"""Writes a file in a dtype, with metadata."""


@dataclass(frozen=True)
class Failure:
    """Why a file or a state was not written."""

    text: str
    errno: int | None


class Writer:
    """Writes from the main process; with shards, all processes gather."""

    def __init__(self, training_data: TrainingData, train_state: TrainState, outputs: OwnOutputs, uploads: HubUploads):
        self._context = training_data.context
        self._components = training_data.components
        self._train_state, self._outputs, self._uploads = train_state, outputs, uploads
        self._metadata = FileMetadata(training_data, train_state)
        precision = self._context.settings[SavingOptions].save_precision
        self._dtype = PRECISIONS[precision] if precision else None

    @property
    def ending(self) -> str:
        return self._train_state.trainable.ending

    def hash_base_files(self) -> None:
        """Begin the part of the metadata that takes seconds of a CPU, in the background."""
        self._metadata.hash_base_files()

    def stem(self, file: Path) -> str:
        """Return the file name without extension; a folder has none."""
        return file.name.removesuffix(self.ending)

    def ema_file(self, file: Path) -> Path:
        return file.with_name(f"{self.stem(file)}{EMA_ENDING}{self.ending}")

    def companion_file(self, file: Path, suffix: str) -> Path:
        """Return the path of a further file of the trainable, saved with `file`."""
        return file.with_name(f"{self.stem(file)}{suffix}{self.ending}")

    def state_folder(self, file: Path) -> Path:
        return file.with_name(f"{self.stem(file)}{STATE_ENDING}")

    def write(self, path: Path, epochs: int, *, with_state: bool) -> list[Failure]:
        """Write the file, the EMA file and the state. The state is always tried: nothing else can replace it."""
        failed = []
        if self._context.is_main or self._train_state.trainable.shards:
            with self._train_state.averaged():
                failed += self.write_model(path, epochs)
            if ema := self._train_state.ema:
                with ema.in_place():
                    failed += self.write_model(self.ema_file(path), epochs)
        self._context.accelerator.wait_for_everyone()
        if with_state:
            failed += self.write_state(self.state_folder(path))
            self._context.accelerator.wait_for_everyone()
        return failed

    def write_model(self, path: Path, epochs: int) -> list[Failure]:
        """Write the trainable's file and those that belong to it."""
        trainable = self._train_state.trainable
        metadata = self._metadata.of_file(epochs)
        failed = self._write(path, partial(trainable.save, path), metadata)
        for suffix in trainable.companions:
            file = self.companion_file(path, suffix)
            own = self._metadata.of_companion(suffix, metadata)
            failed += self._write(file, partial(trainable.save_companion, suffix, file), own)
        return failed

    def _write(self, path: Path, save: Save, metadata: dict[str, str]) -> list[Failure]:
        try:
            self._make_room(path)
            try:
                save(self._dtype, metadata)
            except OSError:
                raise
            except Exception as error:
                path = self._write_plain(path, save, error)
        except OSError as error:
            return [Failure(f"output_dir: {error}", errno_of(error))]
        except Exception as error:
            return [Failure(f"'{path}' could not be written: {brief(error)}", None)]
        self._emit_saved(path)
        return []

    def try_out(self, probe: Path) -> int:
        """Save for a test and remove the file; return the bytes that a file will take at least. Of a whole model only
        one tensor is written, to save time. Raises the save's exceptions."""
        trainable = self._train_state.trainable
        metadata = self._metadata.of_trial()
        try:
            if trainable.is_network:
                with self._train_state.averaged():
                    trainable.save(probe, self._dtype, metadata)
                return probe.stat().st_size
            save_model(probe, {"probe": torch.zeros(1)}, metadata, self._dtype)
            tensors = (each for group in self._train_state.optimizer.param_groups for each in group["params"])
            return sum(each.numel() * (self._dtype or each.dtype).itemsize for each in tensors)
        finally:
            probe.unlink(missing_ok=True)

    def _write_plain(self, path: Path, save: Save, error: Exception) -> Path:
        """Write without cast and metadata, or else as a dict of tensors; return the path."""
        if self._train_state.trainable.shards:  # the other processes have gathered already and would not do it again
            raise error
        why = brief(error)
        self._context.warn(f"'{path}' could not be written as planned ({why}); writing it in a simpler form")
        try:
            save(None, {})
            return path
        except OSError:
            raise
        except Exception:
            logger.debug("the simpler form failed", exc_info=True)
        plain = path.with_name(f"{self.stem(path)}-weights.pt")
        with saving(plain), atomic_file(plain) as part:
            state = self._train_state.trainable.state_dict()
            torch.save({name: on_cpu(tensor) for name, tensor in state.items()}, part)
        self._context.warn(f"the trained weights are in '{plain}', a dict of tensors for torch.load")
        return plain

    def write_state(self, folder: Path) -> list[Failure]:
        """Write the train state. Only with shards must all processes call it."""
        state = self._train_state.state() if self._context.is_main or self._train_state.trainable.shards else {}
        if not self._context.is_main:
            return []
        try:
            self._make_room(folder)
            write_state(folder, state, self._train_state, self._context.seed)
        except Exception as error:  # a third-party optimizer may contain objects that cannot be pickled
            why = why_not_written(error)
            return [Failure(f"output_dir: the state '{folder}' could not be written: {why}", errno_of(error))]
        self._emit_saved(folder)
        self._context.last_state = self._train_state.progress.step, folder
        for replaced in self._outputs.replaced_states(folder):
            self.remove(replaced)
        return []

    def remove_model(self, path: Path) -> None:
        for file in (path, self.ema_file(path)):
            self.remove(file)
            for suffix in self._train_state.trainable.companions:
                self.remove(self.companion_file(file, suffix))

    def remove(self, path: Path) -> None:
        """Remove a file or folder of this run; a failure ends no run."""
        if not self._context.is_main or not self._outputs.owns(path):
            return
        try:
            if path.is_dir():
                remove_whole(path)
            else:
                path.unlink(missing_ok=True)
        except OSError as error:
            self._context.warn_once("remove", f"output_dir: '{path}' could not be removed: {why_not_written(error)}")

    def _make_room(self, path: Path) -> None:
        """Rename files at `path` that are not this run's."""
        if not self._context.is_main:
            return
        announced = self._outputs.kept
        moved = self._outputs.make_room(path)
        for old, new in moved.items():
            if old in announced:
                logger.info("'%s' of an earlier run is now '%s'", old, new.name)
            else:
                self._context.warn(
                    f"output_name: another run wrote '{old}' in the meantime; that file is kept as '{new.name}'"
                )
        if moved:  # follow a base model that had the name of our files: each save reads it again
            targets = {old.resolve(): new for old, new in moved.items()}
            extras = self._components.extras
            extras |= {name: targets.get(v.resolve(), v) for name, v in extras.items() if isinstance(v, Path)}

    def _emit_saved(self, path: Path) -> None:
        if not self._context.is_main:
            return
        written = self._outputs.wrote(path)
        payload = written._asdict() if written else {}
        self._context.emit("saved", path=str(path), step=self._train_state.progress.step, **payload)
        self._uploads.add(path)
