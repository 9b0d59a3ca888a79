"""Images or clips of a run's comparison without and with what was trained, as a section of its view."""

from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

from kohya_gui.server.media_files import media_html
from sd_scripts.formats.clips.mp4 import MP4
from sd_scripts.runs.comparison import FOLDER, RESULT, read_comparison
from sd_scripts.runs.store import RunRow

MOST_PROMPTS = 8
"""Prompts that are shown; Compare checkpoints has the others."""


def changed(row: RunRow) -> int:
    """Return a number that changes when the comparison of a run does; 0 without one."""
    try:
        return (row.folder / FOLDER / RESULT).stat().st_mtime_ns
    except OSError:
        return 0


def before_after(row: RunRow) -> str:
    """Return the section; empty unless the run has a comparison with strength 0 and a different one."""
    comparison = read_comparison(row.folder / FOLDER)
    try:
        pairs = _pairs(comparison) if comparison else []
    except (KeyError, IndexError, TypeError, ValueError, AttributeError):  # others may write into a run folder
        pairs = []
    if not pairs:
        return ""
    figures = "".join(
        f"<figure>{_image(row.id, before, 'before', prompt)}{_image(row.id, after, 'after', prompt)}"
        f'<figcaption title="{escape(prompt)}">{escape(prompt)}</figcaption></figure>'
        for prompt, before, after in pairs
    )
    more = '<button type="button" class="link" data-action="checkpoints">Larger</button>'
    title = f"<h3>Before and after the training {more}</h3>"
    return f'<div class="section">{title}<div class="before-after">{figures}</div></div>'


def _pairs(comparison: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return each prompt with its images at strength 0 and at the highest, of the best checkpoint or else the last."""
    strengths = [float(strength) for strength in comparison["strengths"]]
    if 0.0 not in strengths or len(set(strengths)) == 1:
        return []
    before, after = strengths.index(0.0), strengths.index(max(strengths))
    best = comparison.get("best")
    checkpoint = best if isinstance(best, int) else len(comparison["checkpoints"]) - 1
    images = {
        (cell["prompt"], cell["strength"]): str(cell["image"])
        for cell in comparison["cells"]
        if cell["checkpoint"] == checkpoint and cell["image"]
    }
    return [
        (str(prompt["prompt"]), images[number, before], images[number, after])
        for number, prompt in enumerate(comparison["prompts"][:MOST_PROMPTS])
        if (number, before) in images and (number, after) in images
    ]


def _image(run: int, name: str, when: str, prompt: str) -> str:
    address = f"studio/run/{run}/comparison/image/{quote(name, safe='')}"
    title = f"{when}: {escape(prompt)}"
    shown = media_html(address, title, is_clip=Path(name).suffix == MP4)
    return f"<span>{shown}<i>{when}</i></span>"
