"""The routes of the tab Models: what a family needs, downloads, and the files on this machine."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.routing import Route

from kohya_gui.access.allowed_paths import AllowedPaths
from kohya_gui.models import catalogue, library
from kohya_gui.models.address import CIVITAI, HUB, Address, HubAddress, read_address
from kohya_gui.models.downloads import Downloads
from kohya_gui.models.library import Library
from kohya_gui.models.remote import TOKEN_PAGES, NoAccess, RemoteFile, file_of_hub, files_at
from kohya_gui.server.json_routes import get, post, writing
from sd_scripts.runs.queue import RunQueue
from sd_scripts.runs.store import state_folder
from sd_scripts.settings.catalog import FAMILY_TITLES


class ModelsRoutes:
    def __init__(self, queue: RunQueue, allowed_paths: AllowedPaths) -> None:
        self._queue = queue
        self._allowed_paths = allowed_paths
        self._library = Library(state_folder() / "models.json", allowed_paths)
        self._downloads = Downloads(state_folder() / "downloads", allowed_paths.holds)

    def described(self, request: Request) -> Any:
        """Return the model files on this machine and what a family needs."""
        files, more = self._library.scan()
        used = library.used_by(self._queue.store)
        family = request.query_params.get("family", "")
        return {
            "families": FAMILY_TITLES,
            "folders": [str(folder) for folder in self._library.folders],
            "files": [library.row(each, used(each.path)) for each in files],
            "more": more,
            "needs": catalogue.needs(family, files) if family else [],
        }

    def downloads(self, request: Request) -> Any:
        return {"downloads": self._downloads.described()}

    def look(self, request: Request, body: Mapping[str, Any]) -> Any:
        """Return the files at a pasted address, or what the site wants first."""
        address = read_address(_text(body, "address"))
        return self._ask(
            site_of(address), body, lambda token: {"files": [_shown(file) for file in files_at(address, token)]}
        )

    def add(self, body: Mapping[str, Any]) -> Any:
        """Download a file that a family lists, or one of those at an address."""
        if "address" in body:
            address = read_address(_text(body, "address"))
            return self._ask(
                site_of(address), body, lambda token: self._add(_chosen(files_at(address, token), body), body)
            )
        listed = catalogue.hub_file(body.get("family"), body.get("repo"), body.get("file"))

        def add_listed(token: str | None) -> Any:
            return self._add(replace(file_of_hub(listed.repo, listed.file, token=token), licence=listed.licence), body)

        return self._ask(HUB, body, add_listed)

    def resume(self, request: Request, body: Mapping[str, Any]) -> None:
        if token := _text(body, "token", ""):
            self._downloads.use_token(_text(body, "site"), token)
        self._downloads.resume(body.get("id"))

    def pause(self, request: Request, body: Mapping[str, Any]) -> None:
        self._downloads.pause(body.get("id"))

    def remove(self, body: Mapping[str, Any]) -> None:
        self._downloads.remove(body.get("id"))

    def set_folders(self, body: Mapping[str, Any]) -> None:
        self._library.set(body.get("folders"))

    def _ask(self, site: str, body: Mapping[str, Any], ask: Callable[[str | None], Any]) -> Any:
        """Ask a site, with the token of this request or of an earlier one."""
        if token := _text(body, "token", ""):
            self._downloads.use_token(site, token)
        try:
            return ask(self._downloads.token(site))
        except NoAccess as refusal:
            return {
                "refused": str(refusal),
                "site": refusal.site,
                "page": refusal.page,
                "token_page": TOKEN_PAGES[refusal.site],
                "needs_token": refusal.needs_token,
            }

    def _add(self, file: RemoteFile, body: Mapping[str, Any]) -> Any:
        folders = self._library.folders
        if not (wanted := _text(body, "folder", "")) and not folders:
            raise ValueError("folder: not set; choose a folder for models")
        folder = self._allowed_paths.check("folder", wanted or folders[0])
        if folder not in folders:
            self._library.set([*map(str, folders), str(folder)])
        return {"id": self._downloads.add(file, self._allowed_paths.check("folder", folder / file.name))}


def routes(queue: RunQueue, allowed_paths: AllowedPaths) -> list[Route]:
    """Return the routes, for `launch(app_kwargs={"routes": ...})`."""
    models = ModelsRoutes(queue, allowed_paths)
    return [
        get("models", models.described),
        get("models/downloads", models.downloads),
        post("models/look", models.look),
        writing("models/add", models.add),
        post("models/pause", models.pause),
        post("models/resume", models.resume),
        writing("models/remove", models.remove),
        writing("models/folders", models.set_folders),
    ]


def site_of(address: Address) -> str:
    return HUB if isinstance(address, HubAddress) else CIVITAI


def _chosen(files: Sequence[RemoteFile], body: Mapping[str, Any]) -> RemoteFile:
    found = next((file for file in files if file.url == body.get("url")), None)
    if found is None:
        raise ValueError("The file is no longer at this address; look again")
    return found


def _shown(file: RemoteFile) -> dict[str, Any]:
    return {
        "name": file.name,
        "url": file.url,
        "bytes": file.bytes,
        "licence": file.licence,
        "page": file.page,
        "parts": len(file.parts),
    }


def _text(body: Mapping[str, Any], name: str, default: str | None = None) -> str:
    value = body.get(name, default)
    if not isinstance(value, str):
        raise ValueError(f"{name}: not a text")
    return value
