"""The compiler cache in the tab Machine: HTTP routes under /studio that show, clear, export and import it."""

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.routing import Route

from kohya_gui.access.allowed_paths import AllowedPaths
from kohya_gui.server.json_routes import NotFound, dated, download, get, post
from sd_scripts.formats.disk import format_bytes, sentence_of
from sd_scripts.formats.private import private_folder
from sd_scripts.formats.words import counted
from sd_scripts.machine.compile_cache import clear, contents
from sd_scripts.machine.compile_cache_file import SUFFIX, export_cache, import_cache
from sd_scripts.runs.store import state_folder


def routes(allowed_paths: AllowedPaths) -> list[Route]:
    one_at_a_time = threading.Lock()

    def changing(work: Callable[[Mapping[str, Any]], str]) -> Callable[[Request, Mapping[str, Any]], Any]:
        """Return a route that does `work`, and answers with the sentence it returns and the state after it."""

        def change(request: Request, body: Mapping[str, Any]) -> Any:
            with one_at_a_time:
                try:
                    return {"done": work(body), **state()}
                except OSError as error:
                    raise ValueError(sentence_of(error)) from error

        return change

    def remove(body: Mapping[str, Any]) -> str:
        return f"Removed {format_bytes(clear(others=bool(body.get('others'))))}"

    def export(body: Mapping[str, Any]) -> str:
        private_folder(state_folder())
        moved = export_cache(exported_file())
        return f"Exported {counted(moved.graphs, 'graph')}, {format_bytes(moved.size)}"

    def add(body: Mapping[str, Any]) -> str:
        moved = import_cache(allowed_paths.check("file", str(body.get("file") or "").strip().strip('"')))
        done = f"Imported {counted(moved.graphs, 'graph')}"
        return f"{done}. {moved.note}" if moved.note else done

    def exported(request: Request) -> Any:
        file = exported_file()
        if not file.is_file():
            raise NotFound("The compiler cache has not been exported yet")
        return download(file, f"{dated('compiler-cache', file)}{SUFFIX}", once=True)  # it may be large

    return [
        get("compile-cache", lambda request: state()),
        post("compile-cache/clear", changing(remove)),
        post("compile-cache/export", changing(export)),
        post("compile-cache/import", changing(add)),
        get("compile-cache/file", exported),
    ]


def exported_file() -> Path:
    return state_folder() / f"compiler-cache{SUFFIX}"


def state() -> dict[str, Any]:
    """Return the data that the page shows."""
    cache = contents()
    return {
        "folder": str(cache.folder),
        "chosen_by_user": cache.chosen_by_user,
        "held": f"{counted(cache.graphs, 'graph')}, {format_bytes(cache.size)}" if cache.files else "",
        "oldest": cache.oldest,
        "newest": cache.newest,
        "others": format_bytes(cache.others) if cache.others else "",
    }
