"""Caption the images of a folder: the job behind the command, which can be stopped and resumed after every batch."""

import hashlib
import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sd_scripts.data.sources.images import Pixels, UnreadableImage, read_image
from sd_scripts.formats.atomic_files import write_whole
from sd_scripts.formats.images.chosen_images import common_folder, listed_images
from sd_scripts.formats.images.image_folders import IMAGE_SUFFIXES
from sd_scripts.formats.images.metadata_file import require_images
from sd_scripts.formats.words import counted, some
from sd_scripts.options.captioning.images import CaptionImagesOptions, CaptionModelOptions
from sd_scripts.options.captioning.known_models import default_model
from sd_scripts.options.captioning.text import CaptionTextOptions, TaggerOptions
from sd_scripts.runs.reporter import Reporter
from sd_scripts.runs.tool import start_phase
from sd_scripts.tools.captioning.caption_store import CaptionStore
from sd_scripts.tools.captioning.caption_text import framed, joined, tags_in, with_trigger
from sd_scripts.tools.captioning.done_list import DoneList
from sd_scripts.tools.captioning.endpoint import jpeg
from sd_scripts.tools.captioning.writers import Task, Writer, make_writer, reads_tags
from sd_scripts.tools.lora.command import Given

RESULT = "captions.json"
"""What a job writes into its run folder for the page."""
TRIED = "tried-{}.jpg"
"""A small image of each that was tried, for the page."""
THUMBNAIL_SIDE = 256
READ_AHEAD = 4
TRIED_FIRST = 200
"""A result lists the captions of this many images."""


@dataclass(kw_only=True)
class Result:
    """What a job did."""

    captions: list[dict[str, str]] = field(default_factory=list)
    """Image, before and after, and why a tried one would be `kept`; of the first images."""
    written: int = 0
    unchanged: int = 0
    captioned: int = 0
    """Images that were skipped because they have a caption."""
    spared: int = 0
    """Images whose caption a person wrote."""
    resumed: int = 0
    """Images that the stopped job finished."""
    failed: dict[str, str] = field(default_factory=dict)
    """Image -> why it has no caption."""
    tried: bool = False
    """Whether nothing was written on purpose."""

    def sentence(self) -> str:
        what = (
            f"{counted(len(self.captions), 'image')} tried; nothing written"
            if self.tried
            else (f"{counted(self.written, 'caption')} written")
        )
        parts = [
            (self.unchanged, f"{self.unchanged} unchanged"),
            (self.captioned, f"{self.captioned} skipped, which have a caption"),
            (self.spared, f"{self.spared} spared, written by hand or by a different program"),
            (self.resumed, f"{self.resumed} finished before"),
            (len(self.failed), f"{len(self.failed)} without a caption because of an error"),
        ]
        return "; ".join([what, *(text for count, text in parts if count)])


def caption_images(given: Given, reporter: Reporter) -> None:
    """Caption images as the options say. Raises ValueError, one sentence that names the option, and NotWritten."""
    options = given[CaptionImagesOptions]
    result = Result(tried=options.try_images > 0)
    _remark(given, reporter)
    images = _images(options)
    store = _store(given, images)
    done = DoneList(_key_of(given), keep=not result.tried)
    todo = _to_caption(images, store, options, done, result)
    if options.try_images:
        todo = todo[: options.try_images]
    if todo:
        reporter.phase("loading the model")
        writer = make_writer(given, reporter.print_warning, lambda seconds: _pause(reporter, seconds))
        _Job(given, reporter, writer, store, done, result).run(todo)
    done.finish()
    if result.failed:
        reporter.warn(_failures(result.failed))
    _report(result, reporter)


class _Job:
    def __init__(
        self, given: Given, reporter: Reporter, writer: Writer, store: CaptionStore, done: DoneList, result: Result
    ) -> None:
        self._options: CaptionImagesOptions = given[CaptionImagesOptions]
        self._text: CaptionTextOptions = given[CaptionTextOptions]
        self._counts_tags: bool = given[TaggerOptions].frequency_tags
        self._reporter, self._writer, self._store, self._done, self._result = reporter, writer, store, done, result
        self._tags: Counter[str] = Counter()
        self._waiting: list[Path] = []
        """Images whose caption is in the store's next group."""

    def run(self, images: Sequence[Path]) -> None:
        """Caption these images, a batch at a time."""
        progress = start_phase(self._reporter, "captioning")
        finished = 0
        progress(0, len(images))
        try:
            for batch in _batches(images, self._writer.batch_size):
                tasks = [self._task(path, pixels) for path, pixels in batch if not self._is_unreadable(path, pixels)]
                for task, text in zip(tasks, self._captions(tasks), strict=True):
                    if text is not None:
                        self._take(task, text)
                finished += len(batch)
                progress(finished, len(images))
        finally:  # after a stop, too
            self._note_written(self._store.flush())
        if self._counts_tags:
            frequent_first = sorted(self._tags.items(), key=lambda pair: (-pair[1], pair[0]))
            print(*(f"{count:6} {tag}" for tag, count in frequent_first), sep="\n", flush=True)

    def _is_unreadable(self, path: Path, pixels: Pixels | ValueError) -> bool:
        if isinstance(pixels, ValueError):
            self._result.failed[str(path)] = str(pixels)
        return isinstance(pixels, ValueError)

    def _task(self, path: Path, pixels: Any) -> Task:
        return Task(path=path, pixels=pixels, before=self._store.text(path))

    def _captions(self, tasks: list[Task]) -> list[str | None]:
        """Return the new text of each image; None where the model gave none. A writer that has given no text yet ends
        the job with its error: a wrong key fails for all images."""
        if not tasks:
            return []
        try:
            return [*self._writer(tasks)]
        except ValueError as error:
            if not self._result.captions:
                raise
            self._result.failed |= {str(task.path): str(error) for task in tasks}
            return [None] * len(tasks)

    def _kept(self, task: Task) -> dict[str, str]:
        """Return why the job would leave the caption of an image that is only tried."""
        if not self._result.tried or not task.before:
            return {}
        if self._options.existing == "skip":
            return {"kept": "The job skips this image, which has a caption"}
        if not self._options.overwrite_hand and self._store.is_hand_written(task.path):
            return {"kept": "The job spares this caption, which was written by hand or by a different program"}
        return {}

    def _show(self, task: Task) -> None:
        """Write a small image for the page."""
        if self._reporter.folder:
            file = self._reporter.folder.path / TRIED.format(len(self._result.captions) - 1)
            file.write_bytes(jpeg(task.pixels, THUMBNAIL_SIDE))

    def _note_written(self, kept: Mapping[Path, str]) -> None:
        """Count the captions that wait as written, except those that were kept."""
        self._result.failed |= {str(image): why for image, why in kept.items()}
        for image in self._waiting:
            if image not in kept:
                self._result.written += 1
                self._done.add(image)
        self._waiting = []

    def _take(self, task: Task, text: str) -> None:
        if not text:
            self._result.failed[str(task.path)] = "the model gave no text"
            return
        separator = self._writer.separator
        new = framed(text, self._text.prefix or "", self._text.postfix or "")
        after = joined(task.before, new, self._options.existing, separator=separator)
        after = with_trigger(after, (self._options.trigger or "").strip(), separator=separator)
        if separator:
            self._tags.update(tags_in(text, separator))
        if len(self._result.captions) < TRIED_FIRST:
            row = {"image": str(task.path), "before": task.before, "after": after}
            self._result.captions.append(row | self._kept(task))
        if self._result.tried:
            self._show(task)
            remark = "".join(f"\n  {why}" for why in self._kept(task).values())
            print(f"{task.path.name}\n  before: {task.before or '-'}\n  after:  {after}{remark}", flush=True)
            return
        if after == task.before:
            self._result.unchanged += 1
            self._done.add(task.path)
            return
        self._waiting.append(task.path)
        kept = self._store.add(task.path, after)
        if not self._store.has_waiting:
            self._note_written(kept)


def _batches(images: Sequence[Path], size: int) -> Iterator[list[tuple[Path, Pixels | ValueError]]]:
    """Yield images with their pixels, or why they cannot be read, reading ahead of the model."""
    parts = [images[start : start + size] for start in range(0, len(images), size)]
    with ThreadPoolExecutor(max_workers=READ_AHEAD) as pool:
        ahead = [[(path, pool.submit(_pixels, path)) for path in part] for part in parts[:2]]
        for number in range(len(parts)):
            batch = ahead.pop(0)
            if number + 2 < len(parts):
                ahead.append([(path, pool.submit(_pixels, path)) for path in parts[number + 2]])
            yield [(path, waiting.result()) for path, waiting in batch]


def _pixels(path: Path) -> Pixels | ValueError:
    try:
        return read_image(path)[0]
    except UnreadableImage as error:
        return error


def _store(given: Given, images: Sequence[Path]) -> CaptionStore:
    options: CaptionImagesOptions = given[CaptionImagesOptions]
    model: CaptionModelOptions = given[CaptionModelOptions]
    name = Path(model.model or default_model(model.method)).name
    is_tagger = model.method == "tagger"
    return CaptionStore(
        images,
        options.caption_extension,
        scope=Path(options.train_data_dir) if options.train_data_dir else common_folder(images),
        label=f"{'Tags' if is_tagger else 'Captions'} by {name}",
        author="tagger" if is_tagger else "model",
    )


def _images(options: CaptionImagesOptions) -> list[Path]:
    """Return the images to caption. Raises ValueError, one sentence."""
    if options.image_list:
        return listed_images(Path(options.image_list), IMAGE_SUFFIXES)
    return require_images(Path(options.train_data_dir or ""), recursive=options.recursive)


def _to_caption(
    images: Sequence[Path], store: CaptionStore, options: CaptionImagesOptions, done: DoneList, result: Result
) -> list[Path]:
    """Return the images whose caption the options let the job write."""
    todo = []
    for image in images:
        try:
            if options.existing == "skip" and store.text(image) and not options.try_images:
                result.captioned += 1
            elif image in done:
                result.resumed += 1
            elif not options.overwrite_hand and not options.try_images and store.is_hand_written(image):
                result.spared += 1
            else:
                todo.append(image)
        except ValueError as error:
            result.failed[str(image)] = str(error)
    return todo


def _key_of(given: Given) -> str:
    """Return the key by which a job continues another: a hash of all options, except those that change no text."""
    free = {"batch_size", "device", "download", "model_dir", "timeout", "retries", "try_images", "ask_api_key"}
    values = {name: value for name, value in given.values.items() if name not in free}
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()[:20]


def _remark(given: Given, reporter: Reporter) -> None:
    """Warn about tags for a family that is trained with prose."""
    model = given[CaptionModelOptions]
    is_tags = model.method == "tagger" or given[CaptionTextOptions].form == "tags"
    if not reads_tags(model.family) and model.family and is_tags:
        reporter.warn(
            f"method: {model.family} is trained with prose, which a captioner or an endpoint writes, not tags"
        )


def _pause(reporter: Reporter, seconds: float) -> None:
    """Wait, unless a stop is requested."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        if reporter.stop_requested():
            raise KeyboardInterrupt
        time.sleep(min(left, 0.5))


def _failures(failed: dict[str, str]) -> str:
    first = next(iter(failed.values()))
    names = [Path(path).name for path in failed]
    if len(failed) == 1:
        return f"{names[0]} has no new caption: {first}"
    return f"{len(failed)} images have no new caption: {some(names)}. The first: {first}"


def _report(result: Result, reporter: Reporter) -> None:
    sentence = result.sentence()
    print(sentence, flush=True)
    if reporter.folder:
        content = {**asdict(result), "sentence": sentence}
        write_whole(reporter.folder.path / RESULT, json.dumps(content, ensure_ascii=False))
