"""The route under /studio that cuts an image by hand: the cut takes its place, and the original goes to the trash."""

import contextlib
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from starlette.routing import Route

from kohya_gui.access.allowed_paths import AllowedPaths
from kohya_gui.dataset.dataset_views import answered
from kohya_gui.dataset.editing.in_use import run_using
from kohya_gui.dataset.editing.mask_routes import MaskPlaces
from kohya_gui.dataset.editing.opened_set import Source, next_labels, opened
from kohya_gui.server.json_routes import writing
from kohya_gui.server.resident_process import ResidentProcess
from sd_scripts.formats.editing.editor import Editor, FileEdit
from sd_scripts.formats.editing.image_group import FolderFiles, moves_of_crop, staging_for
from sd_scripts.formats.editing.journal import Move
from sd_scripts.formats.editing.places import LARGEST_MASK, Place, read_bytes, read_places, version_of
from sd_scripts.formats.images.image_folders import IMAGE_SUFFIXES, has_suffix
from sd_scripts.machine.thumbnail_store import image_key
from sd_scripts.runs.queue import RunQueue


class CropPage:
    """Answers requests to cut images."""

    def __init__(self, editor: Editor, queue: RunQueue, allowed_paths: AllowedPaths, process: ResidentProcess) -> None:
        self._editor = editor
        self._queue = queue
        self._allowed_paths = allowed_paths
        self._process = process
        self._places = MaskPlaces(allowed_paths)

    def crop(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Put the part of an image within a `box` [left, top, width, height] in its place, with its mask and control
        images cut in the same way; `key` is the version of the image that was shown."""
        dataset = opened(body, self._allowed_paths)
        images = dataset.named_images(body.get("images") or {})
        box = body.get("box")
        if len(images) != 1:
            raise ValueError("images: name one image")
        if not isinstance(box, list) or len(box) != 4 or not all(type(each) is int for each in box):
            raise ValueError("box: must be left, top, width and height in pixels")
        ((source, _),) = dataset.groups(images)
        (image,) = images
        self._require_unchanged(source, image, body.get("key"))
        return self._cut(dataset.scope, source, image, box)

    def _require_unchanged(self, source: Source, image: Path, key: Any) -> None:
        if source.metadata:
            raise ValueError(f"{source.metadata.name} lists images by their names; cut them before it is made")
        if not has_suffix(image.name, IMAGE_SUFFIXES):
            raise ValueError(f"images: '{image.name}' is not an image that training reads")
        self._allowed_paths.check("images", image)
        if image.is_symlink():
            raise ValueError(f"'{image.name}' is a link; cut the image that it leads to")
        try:
            stat = image.stat()
        except OSError:
            raise ValueError(f"'{image.name}' no longer exists; reload the dataset") from None
        if key != image_key(str(image), stat.st_size, stat.st_mtime_ns):
            raise ValueError(f"'{image.name}' was changed outside this page; reload the dataset")
        if run := run_using(self._queue, image):
            raise ValueError(f"'{image.name}' cannot be cut while {run} uses it; wait until it has ended")

    def _cut(self, scope: str, source: Source, image: Path, box: list[int]) -> dict[str, Any]:
        files = FolderFiles(image.parent, source.extension, source.masks)
        ((_, (mask, mask_after)),) = self._places.of(source, [image]).items()
        content = read_places([mask])[mask]
        number = secrets.token_hex(8)
        controls = [
            self._allowed_paths.check("control_directory", file)
            for file, root in files.beside(image)
            if root != source.mask_root
        ]
        staged = {file: staging_for(file, number) for file in dict.fromkeys([image, *controls])}
        staged_mask = staging_for(mask.file, number)
        along = [[str(file), str(staged[file]), False] for file in staged if file != image]
        if content is not None:
            along.append([str(mask.file), str(staged_mask), True])
        for target in (*staged.values(), staged_mask):
            self._allowed_paths.check("crop", target)
        try:
            request = {"do": "cut", "image": str(image), "box": box, "target": str(staged[image]), "along": along}
            left = {Path(each) for each in answered(self._process, request)["left"]}
            edits = self._mask_edits(mask, mask_after, content, staged_mask) if mask.file not in left else []
            moves = self._moves(files, image, {file: part for file, part in staged.items() if file not in left})
            action = self._editor.write_files(scope, f"Crop {image.name}", edits, moves)
        finally:
            for folder in {part.parent for part in (*staged.values(), staged_mask)}:
                shutil.rmtree(folder, ignore_errors=True)
                with contextlib.suppress(OSError):
                    folder.parent.rmdir()
        done = action.label if action else "Nothing has changed"
        answer = {"done": done, "path": str(image.with_suffix(".png")), "left": [each.name for each in left]}
        return {**answer, **next_labels(self._editor, scope)}

    def _mask_edits(self, mask: Place, after: Place, content: bytes | None, staged: Path) -> list[FileEdit]:
        if content is None:
            return []
        cut = read_bytes(staged, LARGEST_MASK, "mask")
        edit = FileEdit(place=after, content=cut, seen=version_of(content if after == mask else None))
        return [edit] if after == mask else [FileEdit(place=mask, content=None, seen=version_of(content)), edit]

    def _moves(self, files: FolderFiles, image: Path, staged: Mapping[Path, Path]) -> list[Move]:
        along = {file: part for file, part in staged.items() if file != image}
        moves = moves_of_crop(image, staged[image], along, files.caches(image))
        for move in moves:
            self._allowed_paths.check("crop", move.source)
            self._allowed_paths.check("crop", move.target)
        return moves


def routes(editor: Editor, queue: RunQueue, allowed_paths: AllowedPaths, process: ResidentProcess) -> list[Route]:
    """Return the route, for `launch(app_kwargs={"routes": ...})`."""
    page = CropPage(editor, queue, allowed_paths, process)
    return [writing("dataset/crop", page.crop)]
