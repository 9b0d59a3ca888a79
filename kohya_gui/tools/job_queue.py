"""Jobs of one tool that wait for each other: started in their order, also if the GUI is restarted in the meantime."""

import json
import logging
import secrets as random_ids
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kohya_gui.tools.job_form import ImagesJob
from sd_scripts.formats.atomic_files import write_whole
from sd_scripts.formats.disk import sentence_of
from sd_scripts.formats.private import private_folder
from sd_scripts.runs.folder import read_json

EVERY = 0.5
"""Seconds between two looks at the job that others wait for."""
MOST_WAITING = 50
logger = logging.getLogger("sd_scripts")


@dataclass(frozen=True, kw_only=True)
class WaitingJob:
    """A job that has not started."""

    values: Mapping[str, Any]
    images: Sequence[str]
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Never written to disk: after a restart the job has only those of the GUI."""
    id: str = field(default_factory=lambda: random_ids.token_hex(4))

    def described(self, choice: str) -> dict[str, Any]:
        """Return the row of the page's list."""
        folder = self.values.get("train_data_dir") or str(Path(self.images[0]).parent)
        return {"id": self.id, "folder": folder, "images": len(self.images), "method": self.values.get(choice)}


class JobQueue:
    """Starts jobs sequentially. All methods are safe in several threads."""

    def __init__(self, job: ImagesJob, folder: Path) -> None:
        self._job = job
        self._file = folder / f"waiting-{job.name}.json"
        self._lock = threading.Lock()
        self._waiting = _read(self._file, job)
        self._thread: threading.Thread | None = None
        if self._waiting:
            self._serve()

    def add(self, values: Mapping[str, Any], images: Sequence[str], secrets: Mapping[str, str]) -> None:
        """Start a job, now or after those that run and wait. Raises ValueError, one sentence."""
        with self._lock:
            if not self._waiting and not self._job.busy:
                self._job.start(values, images, secrets)
                return
            if len(self._waiting) >= MOST_WAITING:
                raise ValueError(f"{MOST_WAITING} jobs are waiting already; wait for one to end, or remove one")
            self._waiting.append(WaitingJob(values=values, images=images, secrets=secrets))
            self._save()
        self._serve()

    def remove(self, id: object) -> None:
        """Remove a job that waits; one that has started in the meantime stays."""
        with self._lock:
            self._waiting = [each for each in self._waiting if each.id != id]
            self._save()

    def described(self) -> list[dict[str, Any]]:
        with self._lock:
            return [each.described(self._job.form.choice) for each in self._waiting]

    def _serve(self) -> None:
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._start_all, name=f"queue of {self._job.name}", daemon=True)
                self._thread.start()

    def _start_all(self) -> None:
        """Start each job once the one before it has ended, until none waits."""
        pause = threading.Event()
        while True:
            with self._lock:
                if not self._waiting:
                    self._thread = None
                    return
                if not self._job.busy:
                    self._start_next()
            pause.wait(EVERY)

    def _start_next(self) -> None:
        following = self._waiting.pop(0)
        try:
            self._save()
            self._job.start(following.values, following.images, following.secrets)
        except ValueError as error:
            logger.warning(f"A job ({self._job.name}) could not be started: {error}")

    def _save(self) -> None:
        jobs = [{"values": dict(each.values), "images": list(each.images), "id": each.id} for each in self._waiting]
        try:
            private_folder(self._file.parent)
            write_whole(self._file, json.dumps(jobs))
        except OSError as error:
            raise ValueError(f"The waiting jobs could not be saved: {sentence_of(error)}") from error


def _read(file: Path, job: ImagesJob) -> list[WaitingJob]:
    """Return the jobs that waited when an earlier GUI ended."""
    content = read_json(file)
    jobs = content if isinstance(content, list) else []
    return [
        WaitingJob(values=job.form.read_values(each["values"]), images=each["images"], id=each["id"])
        for each in jobs
        if isinstance(each, dict) and isinstance(each.get("values"), dict) and isinstance(each.get("images"), list)
    ]
