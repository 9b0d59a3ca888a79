"""The captions of a job's images: who wrote them, and writing them whole, a group at a time, so that each group can be
undone in the tab Dataset."""

import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from sd_scripts.formats.editing.editor import ChangedOutside, TextEdit
from sd_scripts.formats.editing.journal import Author
from sd_scripts.formats.editing.places import Place, caption_places, read_places, text_of, version_of
from sd_scripts.machine.dataset_journal import dataset_editor

GROUP = 100
"""Images of a group, unless it takes longer than GROUP_SECONDS."""
GROUP_SECONDS = 5.0
HAND = ("hand", "outside")
"""Authors whose captions are spared."""


class CaptionStore:
    """The captions next to some images.

    `scope`: the folder that is captioned; `label`: what the list of edits shows; `author`: of the new captions.
    """

    def __init__(self, images: Iterable[Path], extension: str, *, scope: Path, label: str, author: Author) -> None:
        self._editor = dataset_editor()
        self._scope = str(scope.absolute())
        self._label = label
        self._author: Author = author
        self._places = caption_places([*images], extension)
        self._problems: dict[Path, str] = {}
        self._contents: dict[Path, bytes | None] = {}
        for image, place in self._places.items():
            self._read(image, place)
        known = {self._places[image]: content for image, content in self._contents.items()}
        self._authors = self._editor.journal.authors(known)
        self._waiting: dict[Path, str] = {}
        self._since = time.monotonic()

    def _read(self, image: Path, place: Place) -> None:
        try:
            content = read_places([place])[place]
            text_of(place, content)
            self._contents[image] = content
        except ValueError as error:
            self._problems[image] = str(error)

    def text(self, image: Path) -> str:
        """Return the caption that an image had when the job started; empty if it had none. Raises ValueError, one
        sentence, if it is not text."""
        if problem := self._problems.get(image):
            raise ValueError(problem)
        return text_of(self._places[image], self._contents[image]).strip()

    def is_hand_written(self, image: Path) -> bool:
        """Return whether an image has a caption of a person or of a different program."""
        return bool(self.text(image)) and self._authors.get(self._places[image]) in HAND

    def add(self, image: Path, text: str) -> Mapping[Path, str]:
        """Write a caption, together with others; return those that were changed by somebody else and are kept: image
        -> why. Raises NotWritten, one sentence, if writing fails; the files of the group are then as before."""
        self._waiting[image] = text
        is_due = len(self._waiting) >= GROUP or time.monotonic() > self._since + GROUP_SECONDS
        return self.flush() if is_due else {}

    @property
    def has_waiting(self) -> bool:
        """Whether captions are not written yet."""
        return bool(self._waiting)

    def flush(self) -> Mapping[Path, str]:
        """Write the captions that wait, as `add`."""
        waiting, self._waiting = self._waiting, {}
        self._since = time.monotonic()
        kept: dict[Path, str] = {}
        while waiting:
            edits = [
                TextEdit(place=self._places[image], text=text, seen=version_of(self._contents[image]))
                for image, text in waiting.items()
            ]
            try:
                self._editor.write(self._scope, self._label, edits, self._author)
                return kept
            except ChangedOutside as error:
                changed = {conflict.place for conflict in error.conflicts}
                gone = [image for image in waiting if self._places[image] in changed]
                kept |= dict.fromkeys(gone, "its caption was changed in the meantime")
                waiting = {image: text for image, text in waiting.items() if image not in kept}
        return kept
