"""The journal of this user's edits of datasets: page and captioning jobs share it."""

from sd_scripts.formats.editing.editor import Editor
from sd_scripts.formats.editing.journal import Journal
from sd_scripts.runs.store import state_folder, store_path

FOLDER = "datasets"
"""In the state folder: what was changed, and who wrote a caption."""


def dataset_editor() -> Editor:
    """Return the editor with this user's journal; machines that share a home folder each have their own, as they have
    their own list of runs."""
    return Editor(Journal(state_folder() / FOLDER / store_path().stem))
