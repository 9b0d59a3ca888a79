"""Which runs there have been: a list of their folders, so that a GUI that starts again finds them."""

import json
import os
import sys
from pathlib import Path

from sd_scripts.runs.folder import RunFolder

KEPT = 200


def state_folder() -> Path:
    """Where this user's list of runs lives, by the custom of the system."""
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local")) / "sd-scripts-studio"
    return Path(os.environ.get("XDG_STATE_HOME", Path.home() / ".local" / "state")) / "sd-scripts-studio"


class RunStore:
    """One line a run, appended when it starts."""

    def __init__(self, path: Path | None = None):
        self._path = path or state_folder() / "runs.jsonl"

    def add(self, folder: RunFolder) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8", newline="\n") as file:
            file.write(json.dumps(str(folder.path.absolute())) + "\n")

    def folders(self) -> list[RunFolder]:
        """Newest first; a folder that was deleted is left out."""
        if not self._path.exists():
            return []
        lines = self._path.read_text(encoding="utf-8").splitlines()[-KEPT:]
        paths = dict.fromkeys(Path(json.loads(line)) for line in reversed(lines))
        return [RunFolder(path) for path in paths if path.is_dir()]
