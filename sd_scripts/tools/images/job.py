"""Edit copies of the images of a folder: the job behind the command, which can be stopped and resumed."""

import hashlib
import json
import os
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from sd_scripts.data.sources.images import Pixels, UnreadableImage, read_mask
from sd_scripts.dataset_view.faces import Faces
from sd_scripts.dataset_view.looking import as_jpeg, shrunk
from sd_scripts.formats.atomic_files import write_whole
from sd_scripts.formats.editing.image_group import FolderFiles
from sd_scripts.formats.images.chosen_images import listed_images
from sd_scripts.formats.images.folder_names import MASKS
from sd_scripts.formats.images.image_folders import each_image
from sd_scripts.formats.words import counted, some
from sd_scripts.options.images.tools import (
    CopyOptions,
    CropOptions,
    ImageModelOptions,
    ImageToolOptions,
    MaskOptions,
    SizeOptions,
)
from sd_scripts.runs.reporter import Reporter
from sd_scripts.runs.tool import start_phase
from sd_scripts.settings.tools.image_tools import MODEL_OF, SOURCES, default_output, root_of
from sd_scripts.tools.images import masks as mask_makers
from sd_scripts.tools.images.copies import Copies, CopyNames, Row, size_text
from sd_scripts.tools.images.cropping import crop_tool, without_bars
from sd_scripts.tools.images.decoding import Decoded, decoded
from sd_scripts.tools.images.detectors import Foreground, Texts, model_file
from sd_scripts.tools.images.pieces import Edited, ImageTool, NoCopy, Piece, colours, whole
from sd_scripts.tools.images.sizes import Upscaler, resize_tool, upscale_tool
from sd_scripts.tools.lora.command import Given

RESULT = "images.json"
"""What a job writes into its run folder for the page."""
TRIED = "tried-{}-{}.jpg"
"""Small images of each that was tried: its number, `before` or `after`."""
SHOWN_SIDE = 400
LISTED = 200
"""A result lists this many images."""
CACHES = (".npz", ".safetensors")
SIGHT = 0.4
"""How much is seen of what a mask leaves out, where it is shown."""
TINT = (220, 40, 60)


@dataclass(kw_only=True)
class Result:
    """What a job did."""

    output: str
    """Folder of the copies; empty if there are none."""
    masks: str = ""
    """Folder of their masks; empty if there are none."""
    folder: str = ""
    """Folder of the originals."""
    images: list[dict[str, Any]] = field(default_factory=list)
    """A `Row` for each of the first images."""
    made: int = 0
    """Images that were changed."""
    unchanged: int = 0
    left_out: int = 0
    """Images without a copy, whose note says why."""
    resumed: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    """Image -> why it has no copy."""
    tried: bool = False
    are_masks: bool = False
    """Whether its results are masks, without copies."""

    def sentence(self) -> str:
        what = f"{counted(len(self.images), 'image')} tried; nothing written"
        if not self.tried:
            what = f"{counted(self.made, 'mask')} made" if self.are_masks else f"{counted(self.made, 'image')} changed"
        parts = [
            (0 if self.tried else self.unchanged, f"{self.unchanged} copied as they are"),
            (0 if self.tried else self.left_out, f"{self.left_out} left out"),
            (self.resumed, f"{self.resumed} finished before"),
            (len(self.failed), f"{len(self.failed)} without a copy because of an error"),
        ]
        return "; ".join([what, *(text for count, text in parts if count)])


def edit_images(given: Given, reporter: Reporter) -> None:
    """Edit copies of images as the options say. Raises ValueError, one sentence that names the option."""
    options: ImageToolOptions = given[ImageToolOptions]
    images = _images(options)
    root = root_of(options.train_data_dir, images)
    result = Result(output="", folder=str(root), tried=options.try_images > 0)
    output = None if result.tried else _output(given, root)
    if output and output.is_dir() and any(output.iterdir()):
        raise ValueError(f"output_dir: '{output}' exists; choose a folder that does not exist yet")
    reporter.phase("loading the model")
    tool = make_tool(given, reporter.print_warning)
    copies = Copies(output, key_of(given, images), given[CopyOptions]) if output else None
    job = _Job(given, reporter, tool, root, images, copies, result)
    if copies is None:
        job.attempt(images[: options.try_images])
    else:
        job.run(copies)
        copies.finish()
    if result.failed:
        reporter.warn(_failures(result.failed))
    _report(result, reporter)


def make_tool(given: Given, say: Callable[[str], None]) -> ImageTool:
    """Return the tool of the task, with its model loaded. Raises ValueError, one sentence that names the option."""
    options: ImageToolOptions = given[ImageToolOptions]
    crop: CropOptions = given[CropOptions]
    sizes: SizeOptions = given[SizeOptions]
    masks: MaskOptions = given[MaskOptions]
    models: ImageModelOptions = given[ImageModelOptions]
    if options.task == "mask" and masks.save_as == "alpha" and given[CopyOptions].image_format == "jpeg":
        raise ValueError("image_format: jpeg has no transparency, which save_as = alpha needs; choose png or webp")
    finds = MODEL_OF.get((options.task, crop.crop_to if options.task == "crop" else masks.mask_from))
    file = model_file(finds, models, say) if finds else Path()
    match options.task:
        case "convert":
            return whole
        case "bars":
            return without_bars
        case "crop":
            find = Texts(file, models.confidence) if finds == "text" else Faces(file, models.confidence)
            return crop_tool(crop, find)
        case "resize":
            return resize_tool(sizes)
        case "upscale":
            if not sizes.upscale_model:
                raise ValueError("upscale_model: not set; choose the file of an upscaling model")
            return upscale_tool(sizes, Upscaler(Path(sizes.upscale_model), sizes.tile, models.device))
    makers: dict[str, Callable[[], mask_makers.MakeMask]] = {
        "background": lambda: mask_makers.of_foreground(Foreground(file, models.device)),
        "faces": lambda: mask_makers.of_faces(Faces(file, models.confidence), crop.margin, crop.min_face),
        "colour": lambda: mask_makers.of_colour(masks.colour, masks.tolerance),
        "alpha": lambda: mask_makers.of_alpha,
    }
    return mask_makers.MaskTool(masks, makers[masks.mask_from]())


class _Job:
    def __init__(
        self,
        given: Given,
        reporter: Reporter,
        tool: ImageTool,
        root: Path,
        images: Sequence[Path],
        copies: Copies | None,
        result: Result,
    ) -> None:
        self._options: ImageToolOptions = given[ImageToolOptions]
        self._frames: int = given[CopyOptions].frames
        self._is_mask_file = self._options.task == "mask" and given[MaskOptions].save_as == "folder"
        result.are_masks = self._is_mask_file
        self._is_alpha = self._options.task == "mask" and given[MaskOptions].save_as == "alpha"
        self._reporter, self._tool, self._root, self._images, self._result = reporter, tool, root, images, result
        self._copies = copies
        self._names = CopyNames.of(images, root)
        self._mask_root = mask_root(self._options, root)
        self._files: dict[Path, FolderFiles] = {}

    def run(self, copies: Copies) -> None:
        """Write the copies of all images that the job did not do before it was stopped."""
        todo = [image for image in self._images if str(image) not in copies.rows]
        self._result.resumed = len(self._images) - len(todo)
        progress = start_phase(self._reporter, "editing")
        progress(0, len(todo))
        with closing(self._edited(todo, self._write)) as edited:
            for finished, (image, row) in enumerate(edited, 1):
                if isinstance(row, Row):
                    copies.add(row)
                else:
                    self._result.failed[str(image)] = row
                progress(finished, len(todo))
        rows = [copies.rows[str(image)] for image in self._images if str(image) in copies.rows]
        self._result.images = [asdict(row) for row in rows[:LISTED]]
        self._result.made = sum(bool(row.results) and row.is_changed for row in rows)
        self._result.unchanged = sum(bool(row.results) and not row.is_changed for row in rows)
        self._result.left_out = sum(not row.results for row in rows)
        if self._result.made or self._result.unchanged:
            self._result.output = str(copies.output)
            came_along = str(copies.output / MASKS) if copies.has_masks else ""
            self._result.masks = str(copies.output) if self._is_mask_file else came_along

    def attempt(self, images: Sequence[Path]) -> None:
        """Show what would become of some images, and write nothing but that into the run folder."""
        progress = start_phase(self._reporter, "trying")
        with closing(self._edited(images, self._try)) as edited:
            for finished, (image, row) in enumerate(edited, 1):
                if isinstance(row, Row):
                    self._result.images.append(asdict(row) | {"number": images.index(image)})
                    print(f"{image.name}: {row.before} -> {row.after or 'no copy'} {row.note}".rstrip(), flush=True)
                else:
                    self._result.failed[str(image)] = row
                progress(finished, len(images))

    def _edited(
        self, images: Sequence[Path], work: Callable[[Path], Row]
    ) -> Generator[tuple[Path, Row | str], None, None]:
        """Yield each image with what became of it, or why it has no copy; some are worked on at the same time."""

        def attempt(image: Path) -> Row | str:
            try:
                return work(image)
            except (UnreadableImage, NoCopy) as error:
                return str(error)
            except MemoryError:
                return f"{image} is too large for the memory"
            except cv2.error as error:
                return f"{image} cannot be edited: {str(error).strip().splitlines()[0]}"

        workers = 1 if self._options.task == "upscale" else os.cpu_count() or 1
        waiting: deque[tuple[Path, Future[Row | str]]] = deque()
        with ThreadPoolExecutor(workers) as pool:
            try:
                for image in images:
                    waiting.append((image, pool.submit(attempt, image)))
                    if len(waiting) > 2 * workers:
                        first, future = waiting.popleft()
                        yield first, future.result()
                while waiting:
                    first, future = waiting.popleft()
                    yield first, future.result()
            finally:  # after a stop
                pool.shutdown(cancel_futures=True)

    def _write(self, image: Path) -> Row:
        """Write all files of an image's copies: captions and masks first, so that no copy is without them."""
        assert self._copies
        source = decoded(image, self._frames)
        edited = [self._tool(frame) for frame in source.frames]
        pieces = [(frame, piece) for frame, each in zip(source.frames, edited, strict=True) for piece in each.pieces]
        is_kept = len(pieces) == 1 and not edited[0].is_changed and source.is_plain
        results: list[str] = []
        others: list[str] = []
        try:
            for number, (frame, piece) in enumerate(pieces, 1):
                stem = self._names.of_image(image, number if len(pieces) > 1 else None)
                if self._is_mask_file:
                    assert piece.mask is not None
                    results.append(self._copies.write_mask(stem, piece.mask))
                    continue
                self._write_beside(image, stem, frame, piece, others)
                if is_kept:
                    results.append(self._copies.copy_file(image, stem.with_name(stem.name + image.suffix)))
                else:
                    results.append(self._copies.write_image(stem, piece.pixels))
        except (UnreadableImage, NoCopy):
            self._copies.remove([*results, *others])
            raise
        return self._row(image, source, edited, tuple(results), is_changed=not is_kept)

    def _write_beside(self, image: Path, stem: Path, frame: Pixels, piece: Piece, written: list[str]) -> None:
        """Write captions and mask of a copy, and add their paths to those that are `written`."""
        assert self._copies
        files = self._files.setdefault(
            image.parent,
            FolderFiles(image.parent, self._options.caption_extension, (self._mask_root,) if self._mask_root else ()),
        )
        for file, _ in files.of(image, frozenset()):
            if file != image and file.suffix.lower() not in CACHES:
                written.append(self._copies.copy_file(file, stem.with_name(stem.name + file.suffix)))
        if self._is_alpha:
            return
        for file, _ in files.beside(image):
            if file.stem == image.stem:
                mask = piece.cut(read_mask(file), (frame.shape[1], frame.shape[0]))
                written.append(self._copies.write_mask(MASKS / stem, mask))

    def _try(self, image: Path) -> Row:
        source = decoded(image, self._frames)
        edited = [self._tool(source.frames[0])]
        number = self._images.index(image)
        self._show(number, "before", source.frames[0])
        if edited[0].pieces:
            piece = edited[0].pieces[0]
            shown = piece.pixels if piece.mask is None else _masked(source.frames[0], piece.mask)
            self._show(number, "after", shown)
        results = tuple("-" for _ in edited[0].pieces)
        return self._row(image, source, edited, results, is_changed=edited[0].is_changed or not source.is_plain)

    def _show(self, number: int, when: str, pixels: Pixels) -> None:
        if self._reporter.folder:
            small = shrunk(np.ascontiguousarray(colours(pixels)), SHOWN_SIDE)
            (self._reporter.folder.path / TRIED.format(number, when)).write_bytes(as_jpeg(small, 88))

    def _row(
        self, image: Path, source: Decoded, edited: Sequence[Edited], results: tuple[str, ...], *, is_changed: bool
    ) -> Row:
        sizes = dict.fromkeys(size_text(piece.pixels) for each in edited for piece in each.pieces)
        return Row(
            image=str(image),
            results=results,
            before=f"{size_text(source.frames[0])} {source.format}",
            after=", ".join([*sizes][:4]) + (f", {len(results)} images" if len(results) > 1 else ""),
            note="; ".join(dict.fromkeys(each.note for each in edited if each.note)),
            is_changed=is_changed,
        )


def _masked(pixels: Pixels, mask: Pixels) -> Pixels:
    """Return an image in which what a mask leaves out is red."""
    weight = SIGHT + (1 - SIGHT) * mask[..., None].astype(np.float32) / 255
    return np.rint(pixels[..., :3] * weight + np.array(TINT) * (1 - weight)).astype(np.uint8)


def _images(options: ImageToolOptions) -> list[Path]:
    """Return the images of all kinds. Raises ValueError, one sentence."""
    if options.image_list:
        return [path.absolute() for path in listed_images(Path(options.image_list), SOURCES)]
    folder = Path(options.train_data_dir or "").absolute()
    if not folder.is_dir():
        raise ValueError(f"train_data_dir: folder not found: {str(folder)!r}")
    masks = mask_root(options, folder)
    found = each_image(folder, recursive=options.recursive, suffixes=SOURCES)
    images = [path for path in found if masks is None or masks == folder or masks not in path.parents]
    if not images:
        more = "" if options.recursive else "; turn on recursive to include its subfolders"
        raise ValueError(f"train_data_dir: no image in {str(folder)!r}{more}")
    return sorted(images)


def mask_root(options: ImageToolOptions, root: Path) -> Path | None:
    """Return the folder of masks that come along."""
    if options.conditioning_data_dir:
        return Path(options.conditioning_data_dir).absolute()
    return root / MASKS if (root / MASKS).is_dir() else None


def _output(given: Given, root: Path) -> Path:
    options: ImageToolOptions = given[ImageToolOptions]
    if options.output_dir:
        return Path(options.output_dir).absolute()
    return default_output(root, options.task, given[MaskOptions].save_as)


def key_of(given: Given, images: Sequence[Path]) -> str:
    """Return the key by which a job continues another: a hash of its images and of all options that change copies."""
    free = {"device", "download", "model_dir", "tile", "try_images", "image_list"}
    values = {name: value for name, value in given.values.items() if name not in free}
    content = json.dumps([values, [str(image) for image in images]], sort_keys=True, default=str)
    return hashlib.sha256(content.encode(errors="surrogateescape")).hexdigest()[:20]


def _failures(failed: dict[str, str]) -> str:
    first = next(iter(failed.values()))
    names = [Path(path).name for path in failed]
    if len(failed) == 1:
        return f"{names[0]} has no copy: {first}"
    return f"{len(failed)} images have no copy: {some(names)}. The first: {first}"


def _report(result: Result, reporter: Reporter) -> None:
    sentence = result.sentence()
    print(sentence, flush=True)
    if result.output:
        print(f"Copies: {result.output}", flush=True)
    if reporter.folder:
        content = {**asdict(result), "sentence": sentence}
        write_whole(reporter.folder.path / RESULT, json.dumps(content))
