"""The resident process that generates images for the page: started when needed, ended when idle, one at a time."""

import secrets
import sys
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from kohya_gui.tools.tool_job import ToolJob
from sd_scripts.options.generating.generate import GENERATE, PREVIEW
from sd_scripts.runs.events import EventLog, EventTail
from sd_scripts.runs.events import Request as Command
from sd_scripts.runs.folder import RunFolder
from sd_scripts.runs.queue import RunQueue
from sd_scripts.runs.watched import WatchedRun
from sd_scripts.settings.catalog import script_for, script_path

IDLE_SECONDS = 600
"""Seconds without a request after which the process ends and gives its memory back."""
KEPT = 50
"""Requests that are remembered."""
State = Literal["waiting", "generating", "done", "failed"]


@dataclass
class Request:
    """A request for images, and its progress."""

    id: str
    prompt: str
    state: State = "waiting"
    phase: str = ""
    done: int = 0
    total: int = 0
    """Sampling steps of the current image."""
    image: int = 0
    last: int = 0
    images: int = 0
    """The current image or images, first and last, and how many it will be."""
    error: str = ""
    seconds: float = 0.0
    files: list[str] = field(default_factory=list)
    preview: int = 0
    """Number of the newest preview of the current image; 0 if there is none."""

    @property
    def open(self) -> bool:
        return self.state in ("waiting", "generating")


class GenerateJob(ToolJob):
    """The process and the requests to it. All methods are thread-safe."""

    name = GENERATE

    def __init__(self, queue: RunQueue) -> None:
        super().__init__(queue)
        self.requests: OrderedDict[str, Request] = OrderedDict()
        self.warnings: list[str] = []
        self.changes = 0
        """Number of changes so far; a page that has seen them all is up to date."""
        self._tail: EventTail | None = None
        self._lock = threading.RLock()
        if self.watched:
            self._requests_of(self.watched.folder)

    @property
    def family(self) -> str:
        """The model family of the current or last process."""
        return str(self.record.get("family") or "")

    def generate(self, family: str, values: Mapping[str, Any]) -> str:
        """Send a request with these options to the family's process, which is started if needed; return its id.

        Raises ValueError, one sentence, if it cannot be started.
        """
        with self._lock:
            self.follow()
            if self.busy and family != self.family:
                if self._open_requests():
                    raise ValueError(
                        "Images of a different model family are being generated: wait for them, or cancel them"
                    )
                self.stop()
            if not self.busy or family != self.family:
                self._start(family)
            assert self.watched
            id = secrets.token_hex(4)
            self._send("generate", id=id, values=dict(values))
            self._remember(id, values)
            return id

    def _open_requests(self) -> list[Request]:
        return [request for request in self.requests.values() if request.open]

    def _fail(self, request: Request, error: str) -> None:
        request.state = "failed"
        request.error = error
        self.changes += 1

    def _remember(self, id: str, values: Mapping[str, Any]) -> None:
        self.requests[id] = Request(id, " · ".join(values.get("prompt") or ["prompt file"]))
        while len(self.requests) > KEPT:
            self.requests.popitem(last=False)
        self.changes += 1

    def _requests_of(self, folder: RunFolder) -> None:
        """Take over the requests of an earlier GUI to a process, which answers all of them before it ends."""
        self._tail = folder.events()
        for command in folder.commands():
            values = command.get("values")
            if command.get("kind") == "generate" and isinstance(values, dict):
                self._remember(str(command.get("id")), values)

    def cancel(self, id: str) -> None:
        with self._lock:
            request = self.requests.get(id)
            if request is None or not request.open or not self.watched:
                return
            if self.watched.waiting:
                self._fail(request, "Cancelled")
            self._send("cancel", id=id)
            self.changes += 1

    def make_way(self) -> None:
        """End an idle process, which occupies the model's memory."""
        with self._lock:
            self.follow()
            if not self._open_requests():
                self.stop()

    def free(self) -> None:
        """End the process and the requests that wait for it."""
        with self._lock:
            self.stop()
            self.changes += 1

    def follow(self) -> None:
        """Read what the process reported since the last time."""
        with self._lock:
            for event in self._tail or ():
                self._apply(event)
            if self.watched and self.watched.refresh().over:
                for request in self._open_requests():
                    self._fail(request, self._why_ended(self.watched))

    def _why_ended(self, process: WatchedRun) -> str:
        """Return why the process ended before it answered, with the last line that it printed."""
        reason = process.run_state.failure.get("error") or "The process ended before the images were made"
        printed = process.folder.console_tail(1)
        return f"{reason}: {printed}" if process.run_state.state == "lost" and printed else reason

    def _start(self, family: str) -> None:
        script = script_path(script_for(family, GENERATE))
        self.warnings = []
        command = [sys.executable, str(script), "--resident", "--idle_seconds", str(IDLE_SECONDS)]
        self.begin(command, record={"family": family})
        assert self.watched
        self._tail = self.watched.folder.events()

    def _send(self, kind: Command, **payload: Any) -> None:
        assert self.watched
        try:
            log = EventLog(self.watched.folder.commands_file)
            try:
                log(kind, **payload)
            finally:
                log.close()
        except OSError as error:
            raise ValueError(f"{error.filename} cannot be written ({error.strerror})") from error

    def _apply(self, event: Mapping[str, Any]) -> None:
        self.changes += 1
        request = self.requests.get(str(event.get("id"))) or next(iter(self._open_requests()), None)
        if event["kind"] == "warning":
            self.warnings = [*self.warnings, str(event.get("text"))][-8:]
        if request is None:
            return
        match event["kind"]:
            case "phase" if event.get("name") != "waiting":
                request.state = "generating"
                request.phase = str(event.get("name"))
                request.done = int(event.get("done") or 0)
                request.total = int(event.get("total") or 0)
                request.image = int(event.get("image") or request.image)
                request.last = int(event.get("last") or request.image)
                request.images = int(event.get("images") or request.images)
            case "preview":
                request.preview = int(event.get("number") or 0)
            case "image":
                request.preview = 0
                request.files.append(str(event.get("path")))
            case "answered":
                request.error = str(event.get("error") or "")
                request.seconds = float(event.get("seconds") or 0)
                request.state = "failed" if request.error else "done"

    @property
    def preview(self) -> Path | None:
        """The image so far, if there is a process."""
        return self.watched.folder.path / PREVIEW if self.watched else None

    def state(self) -> dict[str, Any]:
        """Return the state of the process and its requests for the page, the newest first."""
        with self._lock:
            alive = self.busy
            waits_for = self.waits_for
            return {
                "known": f"{self._launch}.{self.changes}.{alive}.{bool(waits_for)}",
                "alive": alive,
                "family": self.family if alive else "",
                "waits_for": waits_for,
                "warnings": self.warnings,
                "requests": [asdict(request) for request in reversed(self.requests.values())][:12],
            }
