"""Publish a run from its view: HTTP routes under /studio that show its model card, upload and pack it.

The work is done by `sd_scripts.tools.publish` in a process of its own. A token is passed in its environment and never
stored.
"""

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.routing import Route

from kohya_gui.access.allowed_paths import EVERYWHERE, AllowedPaths
from kohya_gui.doctor import environment
from kohya_gui.form.field_links import FieldLinks
from kohya_gui.server.json_routes import NotFound, download, get, post, row_of
from sd_scripts.formats.atomic_files import write_whole
from sd_scripts.formats.disk import saving
from sd_scripts.formats.private import private_folder
from sd_scripts.formats.words import shortened
from sd_scripts.options.generating.publish import PublishOptions
from sd_scripts.options.saving import REPOSITORY
from sd_scripts.options.spec import Option
from sd_scripts.runs.queue import RunQueue
from sd_scripts.runs.store import RunRow, state_folder
from sd_scripts.settings.family_options import each_option

PROGRAM = "sd_scripts.tools.publish"
SECONDS_FOR_CARD = 60.0
MOST_TEXT = 200_000
"""Characters of a card."""
PACKED = "published-{}.zip"
"""The zip of a run in the state folder, until it is downloaded."""
KEPT_SECONDS = 24 * 3600
"""A zip that was never downloaded is removed by a later GUI."""
OPTIONS: dict[str, Option] = {o.name: o for o in each_option(PublishOptions)}
LINKS = FieldLinks("publish", OPTIONS)


@dataclass
class Job:
    """An upload, or the packing of a zip, of one run."""

    running: bool = True
    url: str = ""
    zip: Path | None = None
    error: str = ""


class PublishRoutes:
    def __init__(self, queue: RunQueue, allowed_paths: AllowedPaths) -> None:
        self._queue = queue
        self._allowed_paths = allowed_paths
        self._jobs: dict[int, Job] = {}
        self._lock = threading.Lock()

    def card(self, request: Request) -> Any:
        """Return the card of a run, as last edited or a new one, and the files that are published."""
        content = self._content(row_of(request, self._queue))
        return {
            "text": content["text"],
            "file": content["file"],
            "names": [*content["contents"]],
            "sources": content["contents"],
            "left_out": content["left_out"],
            "fields": {
                o.name: {"label": o.label, "help": o.help, "placeholder": o.placeholder} for o in OPTIONS.values()
            },
        }

    def start(self, request: Request, body: Mapping[str, Any]) -> None:
        """Save the edited card; then upload the run to `repo_id`, or pack it if `zip` is on."""
        row = row_of(request, self._queue)
        text = body.get("text")
        token = body.get("token") or ""
        repo = "" if body.get("zip") else body.get("repo_id")
        if not isinstance(text, str) or len(text) > MOST_TEXT or not text.strip():
            raise LINKS.refusal([f"text: the card must have 1 to {MOST_TEXT:,} characters"])
        if not isinstance(repo, str) or not isinstance(token, str) or (not repo and not body.get("zip")):
            raise LINKS.refusal(["repo_id: enter the repository to upload to, such as me/my-lora"])
        if repo and not REPOSITORY.fullmatch(repo):
            name = shortened(repr(repo))
            raise LINKS.refusal([f"repo_id: {name} is not a repository name; write me/my-lora"])
        card = self._allowed_paths.check("card", self._content(row)["card"])
        flags = ["--card", str(card)]
        if repo:
            flags.append(f"--repo_id={repo}")
            if body.get("public"):
                flags.append("--public")
        else:
            flags += ["--zip", str(private_folder(state_folder()) / PACKED.format(row.id))]
        with self._lock:
            if row.id in self._jobs and self._jobs[row.id].running:
                raise ValueError("This run is being published already")
            job = self._jobs[row.id] = Job()
        try:
            with saving(card):
                write_whole(card, text.rstrip() + "\n")
        except OSError as error:
            job.running = False
            job.error = str(error)
            raise ValueError(f"The card {error}") from error
        hub = {"HF_TOKEN": token.strip()} if token.strip() else {}
        threading.Thread(target=_work, args=(job, row.folder, flags, hub), name="publish", daemon=True).start()

    def state(self, request: Request) -> Any:
        """Return the result of a run's last job, or why it failed."""
        job = self._jobs.get(row_of(request, self._queue).id)
        if job is None:
            raise NotFound("This run has not been published")
        return {
            "running": job.running,
            "url": job.url,
            "zip": job.zip is not None and job.zip.is_file(),
            "error": job.error,
            "html": job.error and LINKS.refused(ValueError(job.error)),
        }

    def packed(self, request: Request) -> Any:
        row = row_of(request, self._queue)
        job = self._jobs.get(row.id)
        if job is None or job.zip is None or not job.zip.is_file():
            raise NotFound("There is no zip of this run")
        return download(job.zip, f"{row.name}.zip", once=True)  # as large as the file

    def _content(self, row: RunRow) -> dict[str, Any]:
        """Return the program's report about a run. Raises ValueError if the page may not read one of its files."""
        content = _run([str(row.folder)], {}, SECONDS_FOR_CARD)
        for path in content["contents"].values():
            self._allowed_paths.check("file", path)
        return content


def routes(queue: RunQueue, allowed_paths: AllowedPaths = EVERYWHERE) -> list[Route]:
    """Return the routes. They must come before live_routes, which match any action of a run."""
    _remove_old_zips()
    publish = PublishRoutes(queue, allowed_paths)
    return [
        get("run/{id:row}/card", publish.card),
        get("run/{id:row}/published", publish.state),
        get("run/{id:row}/published/zip", publish.packed),
        post("run/{id:row}/publish", publish.start),
    ]


def _remove_old_zips() -> None:
    for file in state_folder().glob(PACKED.format("*")):
        with contextlib.suppress(OSError):  # another GUI removed it
            if file.stat().st_mtime < time.time() - KEPT_SECONDS:
                file.unlink()


def _work(job: Job, folder: Path, flags: list[str], hub: Mapping[str, str]) -> None:
    try:
        report = _run([str(folder), *flags], hub, None)
        job.url = report.get("url", "")
        job.zip = Path(report["zip"]) if "zip" in report else None
    except ValueError as error:
        job.error = str(error)
    finally:
        job.running = False


def _run(flags: list[str], hub: Mapping[str, str], seconds: float | None) -> dict[str, Any]:
    """Run the program and return the JSON that it prints. Raises ValueError with its last line on stderr."""
    command = [sys.executable, "-m", PROGRAM, *flags, "--json"]
    try:
        ended = subprocess.run(
            command,
            env={**environment(), **hub, "PYTHONIOENCODING": "utf-8"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=seconds,
            check=False,
        )
        if ended.returncode == 0:
            return dict(json.loads(ended.stdout.splitlines()[-1]))
    except subprocess.TimeoutExpired:
        raise ValueError("The run could not be read in time; try again") from None
    except (OSError, ValueError, IndexError) as error:
        raise ValueError(f"{PROGRAM} could not be run: {error}") from None
    lines = [line for line in ended.stderr.splitlines() if line.strip()]
    raise ValueError(lines[-1] if lines else f"{PROGRAM} ended with exit code {ended.returncode}")
