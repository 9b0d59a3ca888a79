"""Clips are MP4 files that browsers play, with their parameters; broken and hostile ones are refused in a sentence."""

import struct
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from PIL import Image

from sd_scripts.formats.atomic_files import atomic_file
from sd_scripts.formats.clips import mp4
from sd_scripts.formats.clips.mp4 import read_frames, write_mp4
from sd_scripts.formats.clips.mp4_header import LARGEST_HEADER, read_mp4_header
from sd_scripts.formats.disk import NotWritten, saving
from sd_scripts.formats.images.generated_files import poster, read_generated
from tests.support.clips import COLOURS, make_clip, make_frames
from tests.support.faults import file_system

TEXTS = {"sd_scripts": '{"prompt": "猫 <b>x</b>"}', "parameters": "a cat\nSteps: 3"}


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_clip(tmp_path_factory.mktemp("clip") / "a.mp4", fps=12.5, texts=TEXTS)


def test_a_clip_has_its_frames_its_colours_and_its_texts(clip: Path) -> None:
    header = read_mp4_header(clip)
    assert (header.width, header.height, header.frames, header.fps) == (64, 48, 3, 12.5)
    assert TEXTS.items() <= header.texts.items()
    for frame, colour in zip(read_frames(clip), COLOURS, strict=True):
        shown = frame.getpixel((20, 20))
        assert isinstance(shown, tuple)
        assert max(abs(one - other) for one, other in zip(shown, colour, strict=True)) <= 3


def test_a_clip_plays_in_browsers_while_it_loads(clip: Path) -> None:
    import av

    with av.open(str(clip), "r") as container:
        stream = container.streams.video[0]
        context = stream.codec_context
        assert (context.name, context.pix_fmt, context.profile) == ("h264", "yuv420p", "High")
        assert (context.colorspace, context.color_range) == (1, 1)
        assert float(stream.duration * stream.time_base) == 3 / 12.5
    content = clip.read_bytes()
    assert content.index(b"moov") < content.index(b"mdat")


def test_an_odd_side_gets_a_copy_of_its_last_row_or_column(tmp_path: Path) -> None:
    for size, written in (((63, 48), (64, 48)), ((64, 47), (64, 48)), ((1, 1), (2, 2))):
        first = next(read_frames(make_clip(tmp_path / "odd.mp4", size)))
        assert first.size == written
        corner, last = (first.getpixel((side[0] - 1, side[1] - 1)) for side in (size, written))
        assert isinstance(corner, tuple)
        assert isinstance(last, tuple)
        assert max(abs(one - other) for one, other in zip(corner, last, strict=True)) <= 12


def test_a_poster_is_the_first_frame(clip: Path, tmp_path: Path) -> None:
    (tmp_path / "poster.jpg").write_bytes(poster(clip))
    with Image.open(tmp_path / "poster.jpg") as image:
        assert (image.format, image.size) == ("JPEG", (64, 48))
        assert image.getpixel((20, 20))[0] == pytest.approx(200, abs=4)  # type: ignore[index]
    assert read_generated(clip).frames == 3


@pytest.mark.parametrize("reads", [read_mp4_header, poster])
def test_a_broken_clip_is_refused_in_one_sentence(clip: Path, tmp_path: Path, reads: object) -> None:
    whole = clip.read_bytes()
    broken = tmp_path / "broken.mp4"
    moov = whole.index(b"moov") - 4
    huge = struct.pack(">I4s", LARGEST_HEADER + 9, b"moov") + bytes(LARGEST_HEADER + 1)
    others = (b"", b"<script>alert(1)</script>", b"\x89PNG\r\n\x1a\n", whole[:moov], whole[:moov] + huge, whole + b"x")
    cut = (whole[:end] for end in range(8, len(whole), 97))
    unseen = whole.replace(b"vide", b"soun")  # no video track
    for content in (*others, *cut, unseen):
        broken.write_bytes(content)
        with pytest.raises(ValueError, match=r"^'.*broken.mp4' .*[a-z]$"):
            reads(broken)  # type: ignore[operator]


def test_any_changed_bytes_are_read_or_refused(clip: Path, tmp_path: Path) -> None:
    whole = clip.read_bytes()
    random = Random(0)
    refused = 0
    for _ in range(200):
        content = bytearray(whole)
        for _ in range(random.randint(1, 30)):
            content[random.randrange(len(content))] = random.choice((0, 1, 255, random.randrange(256)))
        (tmp_path / "odd.mp4").write_bytes(content)
        try:
            header = read_mp4_header(tmp_path / "odd.mp4")
            assert all(isinstance(text, str) for text in header.texts.values())
        except ValueError:
            refused += 1
    assert 0 < refused < 200


def test_a_list_of_other_files_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / "list.mp4").write_text("ffconcat version 1.0\nfile /etc/passwd\n#EXTM3U\nhttp://127.0.0.1:9/x.ts\n")
    with pytest.raises(ValueError, match="is not an MP4 file"):
        next(read_frames(tmp_path / "list.mp4"))


def test_a_clip_whose_writing_fails_leaves_no_file(tmp_path: Path) -> None:
    def stops() -> Iterator[Image.Image]:
        yield from make_frames((64, 48))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), atomic_file(tmp_path / "a.mp4") as part:
        write_mp4(part, stops(), 8)
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_reported_and_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "small" / "a.mp4"
    with file_system(path.parent, "8k"):
        with pytest.raises(NotWritten, match="the disk is full"), saving(path), atomic_file(path) as part:
            write_mp4(
                part, make_frames((64, 48)), 8, {"long": "x" * 9000}
            )  # it fails once the header moves to the front
        assert not list(path.parent.iterdir())


def test_only_common_codecs_and_frames_that_can_be_shown_are_decoded(
    clip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import av

    other = tmp_path / "other.mp4"
    with av.open(str(other), "w", format="mp4") as container:
        stream = container.add_stream("mpeg4", rate=8)
        stream.width, stream.height = 64, 48
        frame = av.VideoFrame(64, 48, "yuv420p")
        container.mux([*stream.encode(frame), *stream.encode(None)])
    with pytest.raises(ValueError, match="has video in mpeg4, which is not read; convert it"):
        poster(other)
    monkeypatch.setattr(mp4, "MOST_PIXELS", 1000)
    with pytest.raises(ValueError, match="has frames of 64x48 pixels, too large to show"):
        poster(clip)
    lies = tmp_path / "lies.mp4"
    size, smaller = (struct.pack(">II", width << 16, height << 16) for width, height in ((64, 48), (16, 16)))
    lies.write_bytes(clip.read_bytes().replace(size, smaller))
    assert read_mp4_header(lies).width == 16
    with pytest.raises(ValueError, match=r"lies.mp4' cannot be read as a clip"):
        poster(lies)
