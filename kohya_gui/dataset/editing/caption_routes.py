"""Routes under /studio by which the page reads and edits captions, with bulk edits, undo and restore points."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.routing import Route

from kohya_gui.access.allowed_paths import AllowedPaths
from kohya_gui.dataset.editing.mask_routes import MaskPlaces
from kohya_gui.dataset.editing.opened_set import OpenedSet, next_labels, opened
from kohya_gui.server.json_routes import writing
from sd_scripts.formats.editing.editor import ChangedOutside, Editor, TextEdit
from sd_scripts.formats.editing.journal import Action, Author
from sd_scripts.formats.editing.places import Place, read_places, text_of, version_of
from sd_scripts.formats.editing.tag_edits import BulkEdit, edited, tag_counts
from sd_scripts.formats.images.folder_names import numbered
from sd_scripts.formats.words import counted

SHOWN_CHANGES = 100
"""Captions of a preview that are sent; the number of all is sent too."""
MOST_TAGS = 5_000
MOST_POINT_NAME = 80
HISTORY = 20


@dataclass(frozen=True, kw_only=True)
class Bulk:
    """A bulk edit, by image: where the captions are, their texts before and after, and the versions that were read."""

    places: dict[Path, Place]
    before: dict[Path, str]
    after: dict[Path, str]
    versions: dict[Path, str]

    @property
    def digest(self) -> str:
        """Return a text that differs for different texts before or after."""
        whole = "\0".join(f"{path}\0{self.before[path]}\0{text}" for path, text in sorted(self.after.items()))
        return hashlib.sha256(whole.encode(errors="surrogateescape")).hexdigest()[:20]


class CaptionPage:
    """Answers requests about captions."""

    def __init__(self, editor: Editor, allowed_paths: AllowedPaths) -> None:
        self._editor = editor
        self._allowed_paths = allowed_paths

    def read(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return text, version and author of the captions of these images."""
        dataset = opened(body, self._allowed_paths)
        images = dataset.named_images(body.get("images"))
        return {"captions": self._shown(dataset, images), **self._state(dataset)}

    def changed(self, body: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the captions whose version differs from the one that the page has; None if none does."""
        dataset = opened(body, self._allowed_paths)
        versions = body.get("versions")
        known = versions if isinstance(versions, Mapping) else {}
        shown = self._shown(dataset, dataset.named_images(body.get("images")))
        new = {path: caption for path, caption in shown.items() if known.get(path) != caption["version"]}
        return {"captions": new, **self._state(dataset)} if new else None

    def write(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Write the texts that a person typed; refused as a whole if one of the captions was changed in between."""
        dataset = opened(body, self._allowed_paths)
        texts = {Path(path): edit for path, edit in _table(body, "edits").items()}
        images = dataset.named_images(_by_folder(texts))
        places = self._places(dataset, images)
        edits = []
        for image, place in places.items():
            edit = texts[image]
            if not isinstance(edit, Mapping) or not isinstance(edit.get("text"), str):
                raise ValueError(f"edits: '{image.name}' has no text")
            seen = edit.get("version")
            edits.append(TextEdit(place=place, text=edit["text"], seen=seen if isinstance(seen, str) else None))
        label = f"Edit {images[0].name}" if len(images) == 1 else f"Edit {counted(len(images), 'caption')}"
        return self._written(dataset, places, lambda: self._editor.write(dataset.scope, label, edits))

    def preview(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the changes of a bulk edit, and a digest by which it can be carried out."""
        dataset, bulk = self._bulk(body)
        before, after = bulk.before, bulk.after
        changes = [(image, before[image], text) for image, text in after.items() if text != before[image]]
        rows = [{"path": str(image), "before": old, "after": new} for image, old, new in changes[:SHOWN_CHANGES]]
        return {
            "changes": rows,
            "count": len(changes),
            "of": len(after),
            "digest": bulk.digest,
            **self._state(dataset),
        }

    def bulk(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Carry out a bulk edit that was previewed; refused if captions have changed since."""
        dataset, bulk = self._bulk(body)
        if body.get("digest") != bulk.digest:
            raise ValueError("Captions have changed since the preview; look at it again")
        edits = [
            TextEdit(place=place, text=bulk.after[image], seen=bulk.versions[image])
            for image, place in bulk.places.items()
            if bulk.after[image] != bulk.before[image]
        ]
        label = f"{BulkEdit.of(_table(body, 'edit')).label} · {counted(len(edits), 'caption')}"
        return self._written(dataset, bulk.places, lambda: self._editor.write(dataset.scope, label, edits))

    def undo(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return self._turned(body, self._editor.undo, "Undone")

    def redo(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return self._turned(body, self._editor.redo, "Redone")

    def skip(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Forget the newest edit, which cannot be undone any more, so that the one before it can be."""
        dataset = opened(body, self._allowed_paths)
        undo, _ = self._editor.next_actions(dataset.scope)
        if undo:
            self._editor.journal.forget(undo)
        return {"done": f"Left as it is: {undo.label}" if undo else "", **self._state(dataset)}

    def history(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the last edits, newest first, and the restore points."""
        dataset = opened(body, self._allowed_paths)
        actions = self._editor.journal.actions(dataset.scope, "done", "undone")[:HISTORY]
        points = self._editor.journal.points(dataset.scope)
        return {
            "actions": [{"label": a.label, "made": a.made, "state": a.state, "author": a.author} for a in actions],
            "points": [vars(point) for point in points],
            "folders": [_described(folder) for folder in dataset.folders],
            **self._state(dataset),
        }

    def add_point(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Remember all captions and masks of the dataset under a name."""
        dataset = opened(body, self._allowed_paths)
        name = str(body.get("name") or "").strip()
        if not name or len(name) > MOST_POINT_NAME or not name.isprintable():
            raise ValueError(f"name: type 1 to {MOST_POINT_NAME} characters")
        places = self._places(dataset, dataset.all_images())
        masks = MaskPlaces(self._allowed_paths).remembered(dataset)
        with self._editor.alone():
            self._editor.journal.add_point(dataset.scope, name, read_places([*places.values(), *masks]))
        return self.history(body)

    def restore(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Put the captions and masks of a restore point back; the edit can be undone."""
        dataset = opened(body, self._allowed_paths)
        id = _number(body, "point")
        names = {point.id: point.name for point in self._editor.journal.points(dataset.scope)}
        for place in self._editor.journal.point_contents(dataset.scope, id):
            self._allowed_paths.check("restore", place.file)
        action = self._editor.restore(dataset.scope, id, names.get(id, ""))
        masks = sum(change.place.words == "mask" for change in action.changes) if action else 0
        captions = len(action.changes) - masks if action else 0
        parts = [counted(count, noun) for count, noun in ((captions, "caption"), (masks, "mask")) if count]
        done = f"Restored {' and '.join(parts)}" if parts else "All captions and masks are as they were"
        return {"done": done, "reload": action is not None, **self.history(body)}

    def remove_point(self, body: Mapping[str, Any]) -> dict[str, Any]:
        dataset = opened(body, self._allowed_paths)
        self._editor.journal.remove_point(dataset.scope, _number(body, "point"))
        return self.history(body)

    def tags(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the tags of these images with the number of their captions, most frequent first."""
        dataset = opened(body, self._allowed_paths)
        images = dataset.named_images(body.get("images"))
        separator = body.get("separator")
        texts = [caption["text"] for caption in self._shown(dataset, images).values() if not caption["problem"]]
        counts = tag_counts(texts, separator if isinstance(separator, str) and separator.strip() else ",")
        return {"tags": counts.most_common(MOST_TAGS), "captions": len(texts)}

    def _places(self, dataset: OpenedSet, images: Iterable[Path]) -> dict[Path, Place]:
        return dataset.places(images, self._allowed_paths)

    def _shown(self, dataset: OpenedSet, images: Sequence[Path]) -> dict[str, Any]:
        """Return the captions of images for the page, by path."""
        places = self._places(dataset, images)
        contents, problems = _read_each(places.values())
        authors = self._editor.journal.authors(contents)
        readers = Counter(places.values())
        shown: dict[str, Any] = {}
        for image in images:
            place = places.get(image)
            if place is None:
                shown[str(image)] = _missing("The metadata file has no entry for this image")
                continue
            text, problem = _text(place, contents.get(place), problems.get(place, ""))
            shown[str(image)] = {
                "text": text,
                "version": version_of(contents.get(place)),
                "author": authors.get(place),
                "file": place.name,
                "shared": readers[place] - 1,
                "captioned": contents.get(place) is not None,
                "problem": problem,
            }
        return shown

    def _bulk(self, body: Mapping[str, Any]) -> tuple[OpenedSet, Bulk]:
        """Return the dataset and a bulk edit of its captions. Images that share a caption count once."""
        dataset = opened(body, self._allowed_paths)
        edit = BulkEdit.of(_table(body, "edit"))
        found = self._places(dataset, dataset.named_images(body.get("images")))
        firsts: dict[Place, Path] = {}
        for image, place in found.items():
            firsts.setdefault(place, image)
        places = {image: place for place, image in firsts.items()}
        contents = read_places(places.values())
        before = {image: text_of(place, contents[place]) for image, place in places.items()}
        after = dict(zip(before, edited([*before.values()], edit), strict=True))
        versions = {image: version_of(contents[place]) for image, place in places.items()}
        return dataset, Bulk(places=places, before=before, after=after, versions=versions)

    def _written(self, dataset: OpenedSet, places: Mapping[Path, Place], write: Any) -> dict[str, Any]:
        """Return the captions after `write`, or the conflicts for which nothing was written."""
        try:
            action = write()
        except ChangedOutside as error:
            return self._refused(dataset, error, places)
        changed = {change.place for change in action.changes} if action else set()
        images = [image for image, place in places.items() if place in changed]
        done = f"{action.label}" if action else "All captions have these texts already"
        return {"done": done, "captions": self._shown(dataset, images), **self._state(dataset)}

    def _refused(self, dataset: OpenedSet, error: ChangedOutside, places: Mapping[Path, Place]) -> dict[str, Any]:
        images = {place: image for image, place in places.items()}
        conflicts = [
            {"path": str(images.get(c.place, c.place.file)), "theirs": c.theirs, "yours": c.yours}
            for c in error.conflicts[:SHOWN_CHANGES]
        ]
        now = self._shown(dataset, [images[c.place] for c in error.conflicts if c.place in images])
        return {"refused": str(error), "conflicts": conflicts, "captions": now, **self._state(dataset)}

    def _turned(self, body: Mapping[str, Any], turn: Any, word: str) -> dict[str, Any]:
        dataset = opened(body, self._allowed_paths)
        self._require_allowed(dataset, turn == self._editor.undo)
        try:
            action: Action = turn(dataset.scope)
        except ChangedOutside as error:
            return self._refused(dataset, error, {})
        return {"done": f"{word}: {action.label}", "reload": True, "moved": bool(action.moves), **self._state(dataset)}

    def _require_allowed(self, dataset: OpenedSet, undo: bool) -> None:
        """Raise ValueError if the action to be turned has files outside the allowed folders."""
        if self._allowed_paths.allowed is None:
            return
        action = self._editor.next_actions(dataset.scope)[0 if undo else 1]
        if action:
            whole = self._editor.journal.with_contents(action)
            files = {change.place.file for change in whole.changes}
            files |= {path for move in whole.moves for path in (move.source, move.target)}
            for file in files:
                self._allowed_paths.check("undo" if undo else "redo", file)

    def _state(self, dataset: OpenedSet) -> dict[str, Any]:
        return next_labels(self._editor, dataset.scope)


def routes(editor: Editor, allowed_paths: AllowedPaths) -> list[Route]:
    """Return the routes, for `launch(app_kwargs={"routes": ...})`."""
    page = CaptionPage(editor, allowed_paths)
    return [
        _post("dataset/captions/read", page.read),
        _post("dataset/captions/changed", page.changed),
        _post("dataset/captions/write", page.write),
        _post("dataset/captions/preview", page.preview),
        _post("dataset/captions/bulk", page.bulk),
        _post("dataset/captions/undo", page.undo),
        _post("dataset/captions/redo", page.redo),
        _post("dataset/captions/skip", page.skip),
        _post("dataset/captions/history", page.history),
        _post("dataset/captions/points/add", page.add_point),
        _post("dataset/captions/points/restore", page.restore),
        _post("dataset/captions/points/remove", page.remove_point),
        _post("dataset/captions/tags", page.tags),
    ]


def _post(path: str, work: Any) -> Route:
    return writing(path, lambda body: work(body) or {"unchanged": True})


def _described(folder: Path) -> dict[str, Any]:
    named = numbered(folder.name)
    return {"path": str(folder), "name": folder.name, "repeats": named[0] if named else None}


def _read_each(places: Iterable[Place]) -> tuple[dict[Place, bytes | None], dict[Place, str]]:
    """Return the contents of the places that can be read, and the problems of the others."""
    wanted = list(dict.fromkeys(places))
    try:
        return read_places(wanted), {}
    except ValueError:
        contents: dict[Place, bytes | None] = {}
        problems: dict[Place, str] = {}
        for place in wanted:
            try:
                contents |= read_places([place])
            except ValueError as error:
                problems[place] = str(error)
        return contents, problems


def _text(place: Place, content: bytes | None, problem: str) -> tuple[str, str]:
    try:
        return text_of(place, content), problem
    except ValueError as error:
        return "", str(error)


def _missing(problem: str) -> dict[str, Any]:
    author: Author | None = None
    named = {"text": "", "version": "", "author": author, "file": "", "shared": 0, "captioned": False}
    return {**named, "problem": problem}


def _by_folder(images: Iterable[Path]) -> dict[str, list[str]]:
    folders: dict[str, list[str]] = {}
    for image in images:
        folders.setdefault(str(image.parent), []).append(image.name)
    return folders


def _table(body: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = body.get(name)
    if not isinstance(value, Mapping):
        raise ValueError(f"{name}: is missing from the request")
    return value


def _number(body: Mapping[str, Any], name: str) -> int:
    value = body.get(name)
    if type(value) is not int:
        raise ValueError(f"{name}: must be a number")
    return value
