"""The runs of this machine as one process sees them: started here or found again, each read once for every viewer."""

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sd_scripts.runs import process
from sd_scripts.runs.events import EventTail
from sd_scripts.runs.folder import RunFolder
from sd_scripts.runs.process import RunningRun
from sd_scripts.runs.store import RunStore
from sd_scripts.runs.story import RunStory

FRESH = 0.2
"""Seconds for which what was read counts as new: several browsers ask, the file is read once."""


@dataclass
class WatchedRun:
    """A run with its process, if that is alive, and its story so far."""

    folder: RunFolder
    run: RunningRun | None
    story: RunStory = field(default_factory=RunStory)
    _tail: EventTail = field(init=False, repr=False)
    _asked: EventTail = field(init=False, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _read: float = field(default=0.0, repr=False)

    def __post_init__(self) -> None:
        self._tail, self._asked = self.folder.events(), self.folder.commands()

    def refresh(self) -> RunStory:
        """The story with all that was told by now. A process that is gone without a last word is told as lost."""
        with self._lock:
            if time.monotonic() - self._read < FRESH or (self.story.over and self._read):
                return self.story
            self._read = time.monotonic()
            alive = self.alive  # asked before reading: the last words of a process come before its end
            for event in self._tail:
                self.story.tell(event)
            if any(command["kind"] == "stop" for command in self._asked):
                self.story.asked_to_stop()
            if not alive:
                self.story.lost(self._last_sight(), self.folder.console_tail())
            return self.story

    @property
    def alive(self) -> bool:
        return self.run is not None and self.run.alive

    def stop(self) -> None:
        if self.run:
            self.run.stop()
            self.story.asked_to_stop()

    def end_now(self) -> None:
        """Do not wait for the step: end the processes."""
        if self.run:
            self.run.terminate()

    def _last_sight(self) -> str:
        code = self.run.exit_code if self.run else None
        if code == 0:
            return (
                "The run ended by itself, and what it told is gone: was its folder deleted? What it saved may be there"
            )
        if self.story.state == "stopping":
            return "The run was ended before it could save; what it had saved earlier is still there"
        if code is None:
            return "The training process is gone and left no word about why"
        if code < 0 or code == 137:
            return "The training process was killed by the system: often a sign that the memory was full"
        return f"The training process ended with exit code {code}; its last lines are under Details"


class RunBook:
    """Starts runs, finds those of an earlier GUI, and knows the one that runs."""

    def __init__(self, store: RunStore):
        self._store = store
        self._watched: dict[RunFolder, WatchedRun] = {}
        self._lock = threading.Lock()

    def start(self, argv: Sequence[str], env: Mapping[str, str], folder: RunFolder) -> WatchedRun:
        """Raises ValueError when a run is on already, or the program cannot be started."""
        with self._lock:
            self.check_free()
            watched = WatchedRun(folder, process.start(argv, env, folder))
            self._watched[folder] = watched
            self._store.add(folder)
            return watched

    def check_free(self) -> None:
        """Raises ValueError when a run is on."""
        if busy := self.running():
            raise ValueError(f"a run is on already ({busy.folder.path.name}): stop it or wait for its end")

    def folders(self) -> list[RunFolder]:
        """Newest first; that of a run whose folder somebody deleted under it stays until it ends."""
        kept = self._store.folders()
        watched = [watched for folder, watched in list(self._watched.items()) if folder not in kept]
        return [*(each.folder for each in watched if each.alive), *kept]

    def watch(self, folder: RunFolder) -> WatchedRun:
        if folder not in self._watched:
            self._watched[folder] = WatchedRun(folder, process.find(folder))
        return self._watched[folder]

    def latest(self) -> WatchedRun | None:
        folders = self.folders()
        return self.watch(folders[0]) if folders else None

    def running(self) -> WatchedRun | None:
        latest = self.latest()
        return latest if latest and latest.alive else None
