"""Routes under /studio by which the page paints masks: read, written and removed as edits that can be undone."""

import base64
import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from starlette.routing import Route

from kohya_gui.access.allowed_paths import AllowedPaths
from kohya_gui.dataset.dataset_views import answered
from kohya_gui.dataset.editing.opened_set import OpenedSet, Source, next_labels, opened
from kohya_gui.server.json_routes import writing
from kohya_gui.server.resident_process import ResidentProcess
from sd_scripts.formats.editing.editor import ChangedOutside, Editor, FileEdit
from sd_scripts.formats.editing.journal import Action
from sd_scripts.formats.editing.places import MISSING, Place, read_places, version_of
from sd_scripts.formats.images.image_folders import IMAGE_SUFFIXES, has_suffix
from sd_scripts.formats.images.mask_files import find_masks, new_mask
from sd_scripts.formats.words import counted

PROGRAM = "sd_scripts.dataset_view.serve"
LONGEST, IDLE_SECONDS = 300.0, 600.0
AT_ONCE = 500
"""Images that one request gives white masks."""
MOST_REMEMBERED = 256 * 2**20
"""Bytes of the masks of a restore point."""
METADATA = "masks: training reads none with a metadata file; open the folder of its images"


def drawing_process() -> ResidentProcess:
    """Return the process that decodes and writes what is painted and cut; it ends when it is not used."""
    return ResidentProcess(PROGRAM, LONGEST, IDLE_SECONDS)


class MaskPlaces:
    """Where the masks of a dataset's images are."""

    def __init__(self, allowed_paths: AllowedPaths) -> None:
        self._allowed_paths = allowed_paths

    def of(self, source: Source, images: Sequence[Path]) -> dict[Path, tuple[Place, Place]]:
        """Return for each image its mask, and where the next one is written: an image without a mask has the same
        place twice. Raises ValueError, one sentence."""
        if source.mask_root is None:
            raise ValueError(METADATA)
        root, folder = source.mask_root, source.folder
        assert folder is not None
        found = find_masks(root, folder.name, images) if root.is_dir() else {}
        places: dict[Path, tuple[Place, Place]] = {}
        for image in images:
            if not has_suffix(image.name, IMAGE_SUFFIXES):
                raise ValueError(f"images: '{image.name}' is not an image that training reads")
            # a link is followed, so that it stays one
            old = found.get(image) or new_mask(root, image)
            old = old.resolve() if old.is_symlink() else old
            self._allowed_paths.check("image", image)
            new = old if old.suffix.lower() == ".png" else old.with_suffix(".png")
            places[image] = self._place(old), self._place(new)
        return places

    def remembered(self, dataset: OpenedSet) -> set[Place]:
        """Return the masks of a dataset for a restore point: existing ones, and the places of those that do not exist
        yet. None if together they are too large."""
        places: set[Place] = set()
        for source, within in dataset.groups(dataset.all_images()):
            images = [image for image in within if has_suffix(image.name, IMAGE_SUFFIXES)]
            with contextlib.suppress(ValueError):  # no masks are painted there
                places.update(*self.of(source, images).values())
        sizes = (place.file.stat().st_size for place in places if place.file.is_file())
        return places if sum(sizes) <= MOST_REMEMBERED else set()

    def _place(self, file: Path) -> Place:
        return Place(self._allowed_paths.check("conditioning_data_dir", file), words="mask")


class MaskPage:
    """Answers requests about masks."""

    def __init__(self, editor: Editor, allowed_paths: AllowedPaths, process: ResidentProcess) -> None:
        self._editor = editor
        self._allowed_paths = allowed_paths
        self._process = process
        self._places = MaskPlaces(allowed_paths)

    def read(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the mask of an image as pixels, with the version that was read; `mask` is None if there is none."""
        dataset = opened(body, self._allowed_paths)
        image, place, _ = self._one(dataset, body)
        content = read_places([place])[place]
        ((source, _),) = dataset.groups([image])
        answer: dict[str, Any] = {"version": version_of(content), "file": place.name, "root": str(source.mask_root)}
        if content is None:
            return {**answer, "mask": None}
        mask = answered(self._process, {"do": "mask", "path": str(place.file)})
        if version_of(read_places([place])[place]) != answer["version"]:
            raise ValueError(f"{place.name}: is being written by a different program; try again")
        return {**answer, "mask": mask}

    def write(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Write the mask that was painted for an image, or with `mask` None remove it; refused if the file has changed
        since `version`, unless that is what the person wants."""
        dataset = opened(body, self._allowed_paths)
        image, old, new = self._one(dataset, body)
        seen, mask = body.get("version"), body.get("mask")
        if not isinstance(seen, str):
            raise ValueError("version: is missing from the request")
        content = None if mask is None else self._file(image, mask)
        edits = [FileEdit(place=old, content=content, seen=seen)]
        if content is not None and new != old:  # a mask of a different format; two of a name would be a riddle
            edits = [FileEdit(place=old, content=None, seen=seen), FileEdit(place=new, content=content, seen=MISSING)]
        label = f"Remove the mask of {image.name}" if mask is None else f"Paint the mask of {image.name}"
        try:
            action = self._editor.write_files(dataset.scope, label, edits)
        except ChangedOutside as error:
            now = read_places([old])[old]
            return {"refused": str(error), "version": version_of(now)}
        place = old if mask is None else new
        version = version_of(read_places([place])[place])
        return {**self._done(dataset, action), "version": version, "file": place.name}

    def fill(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Write white masks for those of the images that have none: training wants one for each."""
        dataset = opened(body, self._allowed_paths)
        wanted: dict[Path, Place] = {}
        for source, within in dataset.groups(dataset.named_images(body.get("images"))):
            images = [image for image in within if has_suffix(image.name, IMAGE_SUFFIXES)]
            for image, (old, _) in self._places.of(source, images).items():
                if not old.file.exists() and len(wanted) < AT_ONCE:
                    wanted[image] = old
        answer = answered(self._process, {"do": "white_masks", "images": [str(image) for image in wanted]})
        edits = [
            FileEdit(place=place, content=base64.b64decode(answer["files"][str(image)]), seen=MISSING)
            for image, place in wanted.items()
            if str(image) in answer["files"]
        ]
        label = f"White masks for {counted(len(edits), 'image')}"
        try:
            action = self._editor.write_files(dataset.scope, label, {edit.place: edit for edit in edits}.values())
        except ChangedOutside as error:
            raise ValueError(f"{error}; try again") from error
        return {**self._done(dataset, action), "count": len(edits)}

    def _one(self, dataset: OpenedSet, body: Mapping[str, Any]) -> tuple[Path, Place, Place]:
        images = dataset.named_images(body.get("images") or {})
        if len(images) != 1:
            raise ValueError("images: name one image")
        ((source, within),) = dataset.groups(images)
        ((image, (old, new)),) = self._places.of(source, within).items()
        if not image.is_file():
            raise ValueError(f"'{image.name}' no longer exists; reload the dataset")
        return image, old, new

    def _file(self, image: Path, mask: Any) -> bytes:
        """Return the file of the mask that a page sent. Raises ValueError, one sentence."""
        sent = mask if isinstance(mask, Mapping) else {}
        width, height, pixels = sent.get("width"), sent.get("height"), sent.get("pixels")
        if type(width) is not int or type(height) is not int or not isinstance(pixels, str):
            raise ValueError("mask: must have width, height and pixels")
        request = {"do": "mask_file", "image": str(image), "width": width, "height": height, "pixels": pixels}
        return base64.b64decode(answered(self._process, request)["file"])

    def _done(self, dataset: OpenedSet, action: Action | None) -> dict[str, Any]:
        done = action.label if action else "Nothing has changed"
        return {"done": done, **next_labels(self._editor, dataset.scope)}


def routes(editor: Editor, allowed_paths: AllowedPaths, process: ResidentProcess) -> list[Route]:
    """Return the routes, for `launch(app_kwargs={"routes": ...})`."""
    page = MaskPage(editor, allowed_paths, process)
    return [
        writing("dataset/masks/read", page.read),
        writing("dataset/masks/write", page.write),
        writing("dataset/masks/fill", page.fill),
    ]
