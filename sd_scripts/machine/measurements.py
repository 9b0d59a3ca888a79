"""What training on this machine took, remembered from run to run: the plan of the next run reads it."""

import contextlib
import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from sd_scripts.formats.atomic_files import write_whole
from sd_scripts.formats.private import private_file, private_folder
from sd_scripts.runs.store import state_folder

RESULT = "measured.json"
"""Files that a measurement started by the page writes into its folder."""
MOST_BYTES = 2_000_000
"""When the file is larger, its older half is dropped."""


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """The speed of one run."""

    device: str
    """Name of the GPU, or "cpu"."""
    driver: str = ""
    torch: str
    family: str
    method: str
    model_size: int
    """Values in the base model's file, so that a small model is not taken for a large one; 0 if unknown."""
    settings: Mapping[str, Any]
    """The options that decide the speed, where they differ from the defaults."""
    seconds: Mapping[str, float]
    """Batch shape, such as 1024x1024x1 -> median seconds of a step whose batches all have it."""
    first_seconds: float
    """The first step, compiling included."""
    graphs: int = 0
    """Compiled graphs; 0 without torch.compile."""
    compile_seconds: float = 0.0
    gpu_bytes: int = 0
    """Peak memory of all tensors on the GPU."""
    when: float = field(default_factory=time.time)


def measurements_file() -> Path:
    return state_folder() / "measurements.jsonl"


def remember(measurement: Measurement) -> None:
    """Append a measurement. A folder that cannot be written to ends no run: nothing is remembered then."""
    path = measurements_file()
    with contextlib.suppress(OSError, TypeError, ValueError):
        private_folder(path.parent)
        with private_file(path).open("ab") as file:  # one write: two runs may end at the same time
            file.write((json.dumps(asdict(measurement)) + "\n").encode())
        if path.stat().st_size > MOST_BYTES:
            lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
            write_whole(path, "".join(lines[len(lines) // 2 :]))


def remembered() -> list[Measurement]:
    """Return every measurement that can be read, newest first."""
    try:
        lines = measurements_file().read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    return [measurement for line in reversed(lines) if (measurement := _read(line))]


def _read(line: str) -> Measurement | None:
    """Return the measurement of a line; None for a line that is cut or from another version."""
    names = {each.name for each in fields(Measurement)}
    try:
        entry = json.loads(line)
        measurement = Measurement(**{name: entry[name] for name in names if name in entry})
        seconds = {str(shape): float(value) for shape, value in measurement.seconds.items()}
        valid = min([measurement.first_seconds, *seconds.values()]) >= 0 and isinstance(measurement.settings, dict)
        return measurement if valid and isinstance(measurement.when, float) else None
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None
