"""Routes under /studio that move, remove, repeat, upload and export the images of a dataset."""

import secrets
import shutil
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from kohya_gui.access.allowed_paths import AllowedPaths
from kohya_gui.dataset.editing.in_use import run_using
from kohya_gui.dataset.editing.opened_set import OpenedSet, Source, next_labels, opened
from kohya_gui.server.json_routes import Answer, NotFound, get, writing
from sd_scripts.formats.disk import NotWritten, sentence_of
from sd_scripts.formats.editing.dataset_toml import with_subset_value
from sd_scripts.formats.editing.editor import Editor, TextEdit
from sd_scripts.formats.editing.image_group import (
    FolderFiles,
    in_trash,
    moves_back,
    moves_to,
    moves_to_trash,
    renamed_for,
    staged_in,
)
from sd_scripts.formats.editing.incoming import Incoming, Received, remove_stale_uploads
from sd_scripts.formats.editing.journal import Move
from sd_scripts.formats.editing.moving import TRASH
from sd_scripts.formats.editing.outgoing import zipped
from sd_scripts.formats.editing.places import Place, read_places, text_of, version_of
from sd_scripts.formats.images.mask_files import usual_root
from sd_scripts.formats.words import counted
from sd_scripts.runs.queue import RunQueue

EXPORTS = 16
"""Archives that can be asked for at the same time."""
SHOWN_NAMES = 50
MOST_TRASH = 2_000


class SetPage:
    """Answers requests about the files of a dataset."""

    def __init__(self, editor: Editor, queue: RunQueue, allowed_paths: AllowedPaths) -> None:
        self._editor = editor
        self._queue = queue
        self._allowed_paths = allowed_paths
        self._exports: OrderedDict[str, tuple[Path, list[Path]]] = OrderedDict()

    def move(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Move images into a different folder of the dataset, with all that belongs to them."""
        dataset = opened(body, self._allowed_paths)
        images = self._images(dataset, body)
        target = self._allowed_paths.check("target", str(body.get("target") or ""))
        if target not in dataset.folders:
            raise ValueError(f"target: '{target}' is not a folder of this dataset")
        moves: list[Move] = []
        copies: dict[Path, Path] = {}
        for source, within in dataset.groups(images):
            _require_text_files(source)
            more, copied = moves_to(within, target, source.extension, source.masks)
            moves += more
            copies |= copied
        label = f"Move {counted(len(images), 'image')} to {target.name}"
        return self._moved(dataset, label, moves, copies)

    def remove(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Move images into the trash of their folders, with all that belongs to them."""
        dataset = opened(body, self._allowed_paths)
        images = self._images(dataset, body)
        moves: list[Move] = []
        for source, within in dataset.groups(images):
            moves += moves_to_trash(within, source.extension, source.masks)
        return self._moved(dataset, f"Remove {counted(len(images), 'image')}", moves)

    def trash(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the images in the trash, newest first."""
        dataset = opened(body, self._allowed_paths)
        images = in_trash(dataset.folders)
        shown = [{"path": str(path), "name": path.name, "when": path.parent.name} for path in images[:MOST_TRASH]]
        return {"trash": shown, "count": len(images)}

    def put_back(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Move images from the trash to where they were."""
        dataset = opened(body, self._allowed_paths)
        named = body.get("paths")
        known = {str(path): path for path in in_trash(dataset.folders)}
        if not isinstance(named, list) or not named or any(path not in known for path in named):
            raise ValueError("paths: these images are no longer in the trash; look at it again")
        moves = moves_back([known[path] for path in named])
        return self._moved(dataset, f"Put back {counted(len(named), 'image')}", moves)

    def empty(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Delete the trash of the dataset for good."""
        dataset = opened(body, self._allowed_paths)
        images = in_trash(dataset.folders)
        with self._editor.alone():
            staged = (path for folder in dataset.folders for path in staged_in(folder))
            for folder in {*(path.parent for path in images), *staged}:
                shutil.rmtree(folder, ignore_errors=True)
                self._editor.journal.forget_moves_into(folder)
        return {"done": f"Deleted {counted(len(images), 'image')} for good"}

    def repeats(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Set the repeats of a folder: in its name, or in the dataset_config that lists it."""
        dataset = opened(body, self._allowed_paths)
        repeats = body.get("repeats")
        folder = next((each for each in dataset.folders if str(each) == body.get("folder")), None)
        if type(repeats) is not int or folder is None:
            raise ValueError("repeats: type a whole number for one of the folders of this dataset")
        if dataset.subsets:
            return self._configured(dataset, folder, "num_repeats", repeats)
        target = renamed_for(folder, repeats)
        if target == folder:
            return {"done": f"{folder.name} has these repeats already"}
        self._allowed_paths.check("repeats", target)
        if run := run_using(self._queue, folder):
            raise ValueError(f"repeats: '{folder.name}' cannot be renamed while {run} uses it; wait until it has ended")
        if folder == dataset.place:
            raise ValueError(f"repeats: open the folder above '{folder.name}' to rename it")
        return self._moved(dataset, f"Rename {folder.name} to {target.name}", [Move(source=folder, target=target)])

    def masks(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Train a folder with its masks: name their folder in the dataset_config that lists it."""
        dataset = opened(body, self._allowed_paths)
        folder = next((each for each in dataset.folders if str(each) == body.get("folder")), None)
        if folder is None or not dataset.subsets:
            raise ValueError("masks: choose a folder that a dataset_config lists")
        root = self._allowed_paths.check("masks", usual_root(folder))
        if not root.is_dir():
            raise ValueError(f"masks: folder not found: '{root}'; paint masks first")
        return self._configured(dataset, folder, "conditioning_data_dir", str(root))

    def _configured(self, dataset: OpenedSet, folder: Path, key: str, value: str | int) -> dict[str, Any]:
        if dataset.place.suffix.lower() != ".toml":
            raise ValueError(f"{key}: only dataset_config files in TOML are changed here; edit this one by hand")
        places = [
            subset.place
            for subset in dataset.subsets
            if Path(str(subset.values.get("image_dir"))).expanduser() == folder
        ]
        if not places:
            raise ValueError(f"{key}: the dataset_config does not list '{folder}'")
        place = Place(dataset.place)
        content = read_places([place])[place] or b""
        changed = content
        for each in places:
            changed = with_subset_value(changed, each, key, value)
        edit = TextEdit(place=place, text=text_of(place, changed), seen=version_of(content))
        self._editor.write(dataset.scope, f"{key} = {value} for {folder.name}", [edit])
        return {"done": f"{dataset.place.name}: {key} = {value} for {folder.name}", "reload": True}

    # Uploads

    def begin_upload(self, body: Mapping[str, Any]) -> dict[str, Any]:
        folder = self._target(body)
        remove_stale_uploads(folder)
        return {"batch": Incoming.new_batch()}

    def finish_upload(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Move the files that were sent into the folder, all together."""
        dataset = opened(body, self._allowed_paths)
        folder = self._target(body)
        incoming = Incoming(folder, str(body.get("batch")), str(body.get("extension") or ".txt"))
        try:
            received = incoming.finish()
            if received.moves:
                self._editor.move(dataset.scope, f"Upload {counted(received.images, 'image')}", received.moves)
        finally:
            incoming.discard()
        return {"done": _arrival(received), **_names(received), "reload": bool(received.moves)}

    def discard_upload(self, body: Mapping[str, Any]) -> None:
        Incoming(self._target(body), str(body.get("batch"))).discard()

    async def receive(self, request: Request) -> Response:
        """Write the body of a request to a file of an upload as it arrives."""
        query = request.query_params
        try:
            body = {name: query.get(name, "") for name in ("place", "folder", "extension")}
            folder = await run_in_threadpool(self._target, body)
            incoming = Incoming(folder, query.get("batch", ""), query.get("extension") or ".txt")
            length = request.headers.get("content-length", "")
            size = int(length) if length.isascii() and length.isdecimal() and len(length) < 16 else 0
            with incoming.file(query.get("name", ""), size) as sink:
                async for part in request.stream():
                    await run_in_threadpool(sink.write, part)
        except NotWritten as error:
            return Answer({"error": str(error)}, 400)
        except OSError as error:
            return Answer({"error": sentence_of(error)}, 400)
        except ValueError as error:
            return Answer({"error": str(error)}, 400)
        return Answer({"ok": True})

    # Export

    def export(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the address of an archive of images with their captions, or of the whole dataset."""
        dataset = opened(body, self._allowed_paths)
        images = self._images(dataset, body)
        files: dict[Path, None] = {}
        for source, within in dataset.groups(images):
            group = FolderFiles(source.folder or dataset.place, source.extension, source.masks)
            for image in within:
                caches = set(group.caches(image))
                own = [file for file, _ in (*group.of(image, frozenset(within)), *group.beside(image))]
                files |= dict.fromkeys(file for file in own if file not in caches)
        allowed = [file for file in files if self._allowed_paths.holds(file)]
        if dataset.place.is_file():
            allowed.append(dataset.place)
        token = secrets.token_hex(12)
        root = dataset.place.parent
        self._exports[token] = root, allowed
        while len(self._exports) > EXPORTS:
            self._exports.popitem(last=False)
        return {"url": f"studio/dataset/export/{token}", "files": len(allowed)}

    def exported(self, request: Request) -> Response:
        """Return an archive as a download; each address works once."""
        found = self._exports.pop(request.path_params["token"], None)
        if found is None:
            raise NotFound("This archive is no longer available; export it again")
        headers = {"Content-Disposition": 'attachment; filename="dataset.zip"', "Cache-Control": "no-store"}
        root, files = found
        return StreamingResponse(zipped(files, root), media_type="application/zip", headers=headers)

    def _images(self, dataset: OpenedSet, body: Mapping[str, Any]) -> list[Path]:
        named = body.get("images")
        images = dataset.named_images({} if named is None else named)
        if not images:
            raise ValueError("images: select at least one image")
        for image in images:
            if not self._allowed_paths.holds(image):
                raise ValueError(f"images: '{image.name}' is outside the allowed folders")
        return images

    def _target(self, body: Mapping[str, Any]) -> Path:
        """Return the folder that an upload is for."""
        dataset = opened(body, self._allowed_paths)
        named = body.get("folder") or str(dataset.folders[0] if dataset.folders else "")
        folder = next((each for each in dataset.folders if str(each) == named), None)
        if folder is None or not folder.is_dir() or TRASH in folder.parts:
            raise ValueError("folder: choose one of the folders of this dataset")
        return folder

    def _moved(
        self, dataset: OpenedSet, label: str, moves: list[Move], copies: Mapping[Path, Path] | None = None
    ) -> dict[str, Any]:
        for move in moves:
            self._allowed_paths.check("move", move.source)
            self._allowed_paths.check("move", move.target)
        self._editor.move(dataset.scope, label, moves, copies or {})
        return {"done": label, "reload": True, **next_labels(self._editor, dataset.scope)}


def routes(editor: Editor, queue: RunQueue, allowed_paths: AllowedPaths) -> list[Route]:
    """Return the routes, for `launch(app_kwargs={"routes": ...})`."""
    page = SetPage(editor, queue, allowed_paths)
    return [
        writing("dataset/files/move", page.move),
        writing("dataset/files/remove", page.remove),
        writing("dataset/files/trash", page.trash),
        writing("dataset/files/put-back", page.put_back),
        writing("dataset/files/empty-trash", page.empty),
        writing("dataset/files/repeats", page.repeats),
        writing("dataset/files/masks", page.masks),
        writing("dataset/upload/begin", page.begin_upload),
        writing("dataset/upload/finish", page.finish_upload),
        writing("dataset/upload/discard", page.discard_upload),
        Route("/studio/dataset/upload/file", page.receive, methods=["POST"]),
        writing("dataset/export", page.export),
        get("dataset/export/{token}", page.exported),
    ]


def _require_text_files(source: Source) -> None:
    if source.metadata:
        raise ValueError(
            f"{source.metadata.name} lists images by their folders; move them with a file manager and make it again"
        )


def _arrival(received: Received) -> str:
    parts = [f"{counted(received.images, 'image')} added" if received.moves else "Nothing was added"]
    parts += [f"{counted(len(received.present), 'file')} already here"] if received.present else []
    parts += [f"{counted(len(received.renamed), 'file')} renamed"] if received.renamed else []
    parts += [f"{counted(len(received.skipped), 'file')} left out"] if received.skipped else []
    return ", ".join(parts)


def _names(received: Received) -> dict[str, list[str]]:
    return {name: getattr(received, name)[:SHOWN_NAMES] for name in ("skipped", "present", "renamed")}
