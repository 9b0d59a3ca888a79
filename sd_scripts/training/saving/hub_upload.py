"""Upload a run's saved files to a repository of the Hugging Face Hub, while it trains.

A failed upload is reported and does not end the run: the file stays where it was saved.
"""

from __future__ import annotations

import queue
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from sd_scripts.library.files.hub import Refused, hub_api, hub_reason, open_repository
from sd_scripts.options.saving import HuggingFaceOptions

if TYPE_CHECKING:
    from sd_scripts.training.context import Context

UPLOADING = "uploading"


class HubUploads:
    """The uploads of a run, one at a time, on a thread of their own; only the main process has any."""

    def __init__(self, context: Context):
        self._context = context
        self._options = context.settings[HuggingFaceOptions]
        self._waiting: queue.Queue[Path | None] = queue.Queue()
        self._thread: threading.Thread | None = None
        if self._options.huggingface_repo_id and context.is_main:
            self._open(self._options.huggingface_repo_id)

    def _open(self, repo: str) -> None:
        """Create the repository if it does not exist. Raises ValueError if the Hub refuses: before the model loads."""
        self._repo = repo
        self._api = hub_api()
        private = self._options.huggingface_repo_visibility != "public"
        try:
            open_repository(self._api, repo, private=private, repo_type=self._options.huggingface_repo_type)
        except Refused as error:
            raise ValueError(
                f"huggingface_repo_id: '{repo}' cannot be written to: {error}. Set HF_TOKEN or huggingface_token to "
                "a token with write access, or choose another repository"
            ) from None
        except Exception as error:
            self._context.warn(
                f"huggingface_repo_id: the Hub cannot be reached ({hub_reason(error)}). The run continues and tries "
                "to upload each saved file"
            )
        self._thread = threading.Thread(target=self._work, name="uploads", daemon=True)
        self._thread.start()

    def add(self, path: Path) -> None:
        """Upload a saved file, or a state if save_state_to_huggingface is on, as soon as the ones before it are."""
        if self._thread and (path.is_file() or self._options.save_state_to_huggingface):
            self._waiting.put(path)

    def finish(self) -> None:
        """Wait until everything is uploaded, or until somebody interrupts."""
        if not self._thread:
            return
        if not self._waiting.empty():
            self._context.phase(UPLOADING)
        self._waiting.put(None)
        while self._thread.is_alive():
            self._thread.join(1.0)  # short, so that Ctrl+C is heard
        self._thread = None

    def _work(self) -> None:
        while path := self._waiting.get():
            try:
                url = self._upload(path)
            except Exception as error:
                if path.exists():  # else it was removed in the meantime, as save_last_n_steps asks
                    self._context.warn(
                        f"huggingface_repo_id: '{path.name}' was not uploaded to '{self._repo}' ({hub_reason(error)}). "
                        f"It stays in '{path.parent}'; upload it with: hf upload {self._repo} '{path}'"
                    )
            else:
                self._context.emit("uploaded", path=str(path), url=url)

    def _upload(self, path: Path) -> str:
        folder = (self._options.huggingface_path_in_repo or "").strip("/")
        place = f"{folder}/{path.name}" if folder else path.name
        kind = self._options.huggingface_repo_type
        message = f"Upload {path.name}"
        api = self._api
        if path.is_dir():
            commit = api.upload_folder(
                repo_id=self._repo, folder_path=path, path_in_repo=place, repo_type=kind, commit_message=message
            )
        else:
            commit = api.upload_file(
                repo_id=self._repo, path_or_fileobj=path, path_in_repo=place, repo_type=kind, commit_message=message
            )
        return str(commit.commit_url)
