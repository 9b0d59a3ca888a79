"""What the prompt editor shows of a prompt: the last sample made from it, and the images and the clip that it names."""

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path
from urllib.parse import quote

from kohya_gui.access.allowed_paths import EVERYWHERE, AllowedPaths
from kohya_gui.server.media_files import media_html, poster_of
from sd_scripts.families.cards.family_card import FamilyCard
from sd_scripts.formats.clips.clip_files import is_clip
from sd_scripts.formats.clips.media_types import CLIP_SUFFIXES, PLAYED
from sd_scripts.formats.clips.mp4 import MP4
from sd_scripts.formats.images.image_folders import MEDIA_TYPES
from sd_scripts.options.generating.prompt_lines import IMAGE_OPTIONS, SamplePrompt, file_problem, with_effect
from sd_scripts.runs.queue import RunQueue

NEWEST = 4
"""Newest runs of a family in which the samples of a prompt are looked for."""
LISTED = 100
"""Newest runs in which these are looked for."""
LABELS = {option.key: option for option in IMAGE_OPTIONS}


class PromptMedia:
    """The samples of a family's newest runs, and images in the allowed folders."""

    def __init__(self, card: FamilyCard, queue: RunQueue | None, allowed_paths: AllowedPaths = EVERYWHERE) -> None:
        self._card, self._allowed_paths = card, allowed_paths
        self._samples = dict(_samples(queue, card.name)) if queue else {}

    def html(self, prompt: SamplePrompt) -> str:
        """Return the images and clips of a prompt, each of which opens in a browser tab of its own; empty if there are
        none."""
        shown = [*self._sample(prompt), *self._images(prompt)]
        return f'<p class="prompt-media">{"".join(shown)}</p>' if shown else ""

    def problems(self, prompt: SamplePrompt) -> Iterator[str]:
        """Yield why images that the prompt names cannot be used."""
        for key, name in self._named(prompt):
            if why := self._problem(key, name):
                yield f"--{LABELS[key].letters}: {why}"

    def _sample(self, prompt: SamplePrompt) -> Iterator[str]:
        made = self._samples.get((prompt.prompt, prompt.seed))
        if made and made.path.is_file():
            yield _link(made.address, made.title, is_clip=made.path.suffix.lower() == MP4)

    def _images(self, prompt: SamplePrompt) -> Iterator[str]:
        for key, name in self._named(prompt):
            path = Path(name).expanduser()
            suffix = path.suffix.lower()
            shown = suffix in MEDIA_TYPES or is_clip(path) or path.is_dir()
            if shown and not self._problem(key, name):
                address = f"studio/generate/control?path={quote(name, safe='')}"
                address = poster_of(address) if suffix in CLIP_SUFFIXES - PLAYED else address
                yield _link(address, f"{LABELS[key].label.capitalize()}: {path.name}", is_clip=suffix in PLAYED)

    def _named(self, prompt: SamplePrompt) -> list[tuple[str, str]]:
        return with_effect(prompt, self._card.capabilities).image_files

    def _problem(self, key: str, name: str) -> str:
        """Return why an image cannot be used, without revealing whether one outside the allowed folders exists."""
        outside = self._allowed_paths.problem(key, name)
        return outside.removeprefix(f"{key}: ") if outside else file_problem(key, name) or ""


@dataclass(frozen=True, kw_only=True)
class _MadeSample:
    path: Path
    address: str
    title: str


def _samples(queue: RunQueue, family: str) -> Iterator[tuple[tuple[str, int | None], _MadeSample]]:
    """Yield each sample of the newest runs by its prompt and seed, the newest last."""
    rows = [row for row in queue.store.rows(LISTED) if row.family == family and row.state != "queued"][:NEWEST]
    for row in reversed(rows):
        for number, made in enumerate(queue.watch(row.id).refresh().samples):
            seed = made.seed if isinstance(made.seed, int) else None  # others may write into a run folder
            title = f"Sample at step {made.step} of {row.name}"
            address = f"studio/run/{row.id}/sample/{number}"
            yield (str(made.note), seed), _MadeSample(path=made.path, address=address, title=title)


def _link(address: str, title: str, *, is_clip: bool = False) -> str:
    shown = media_html(address, escape(title), is_clip=is_clip)
    return f'<a href="{escape(address)}" target="_blank" title="{escape(title)}">{shown}</a>'
