"""A folder of captioned images, and an editor whose journal is elsewhere."""

from pathlib import Path

import pytest
from PIL import Image

from sd_scripts.formats.editing.editor import Editor
from sd_scripts.formats.editing.journal import Journal
from sd_scripts.formats.editing.places import Place


class Dataset:
    """Images with captions, and the editor that changes them."""

    def __init__(self, folder: Path, editor: Editor):
        self.folder = folder
        self.editor = editor
        self.scope = str(folder)

    def add(self, name: str, caption: str | bytes | None = None) -> Path:
        image = self.folder / name
        image.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (len(name), 0, 0)).save(image)
        if caption is not None:
            content = caption if isinstance(caption, bytes) else caption.encode()
            image.with_suffix(".txt").write_bytes(content)
        return image

    def place(self, stem: str) -> Place:
        return Place(self.folder / f"{stem}.txt")

    def captions(self) -> dict[str, str]:
        return {path.stem: path.read_text(encoding="utf-8") for path in sorted(self.folder.glob("*.txt"))}

    def names(self) -> list[str]:
        """Return the paths of all files, hidden ones too."""
        return sorted(path.relative_to(self.folder).as_posix() for path in self.folder.rglob("*") if path.is_file())


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    made = Dataset(tmp_path / "10_cat", Editor(Journal(tmp_path / "studio")))
    made.add("a.png", "cat, sofa")
    made.add("b.png", "cat, garden\n")
    made.add("c.png", "cat")
    return made
