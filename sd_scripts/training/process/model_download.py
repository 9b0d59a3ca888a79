"""Download a base model that is named by its Hugging Face id, in a phase with bytes, speed and remaining time."""

import threading
import time

from sd_scripts.families.cards.model_file import locate
from sd_scripts.families.common.loading import download
from sd_scripts.options.model import ModelOptions
from sd_scripts.runs.reporter import Progress, Reporter

PHASE = "downloading the model"
EVERY = 1.0
"""Seconds between two reports."""
MEGABYTE = 10**6


def download_model(options: ModelOptions, reporter: Reporter) -> None:
    """Download the base model into the cache of the Hub, unless it is a file or folder or in the cache. A requested
    stop raises KeyboardInterrupt; what was downloaded stays in the cache, and is not downloaded again."""
    model = locate(options.pretrained_model_name_or_path)
    if isinstance(model, str):
        download(model, DownloadPhase(reporter))


class DownloadPhase:
    """The phase of a download; called with received bytes by several threads."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._lock = threading.Lock()
        self._phase: Progress | None = None
        self._began = self._reported = 0.0
        self._had = 0
        """Bytes that an earlier run had downloaded, or that came before the first report."""
        self._is_stopped = False

    def __call__(self, done: int, total: int) -> None:
        with self._lock:
            if self._is_stopped:  # in the other threads, too
                raise KeyboardInterrupt
            now = time.monotonic()
            if self._phase is None:
                self._phase = self._reporter.cancellable_phase(PHASE)
                self._began, self._had = now, done
            elif now - self._reported < EVERY and done < total:
                return
            self._reported = now
            try:
                self._phase(done // MEGABYTE, total // MEGABYTE, self._note(now, done, total))
            except KeyboardInterrupt:
                self._is_stopped = True
                raise

    def _note(self, now: float, done: int, total: int) -> str:
        seconds = now - self._began
        speed = (done - self._had) / seconds if seconds > 0 else 0.0
        if speed <= 0 or done >= total:
            return "MB"
        return f"MB · {speed / MEGABYTE:.1f} MB/s · {(total - done) / speed / 60:.0f} min left"
