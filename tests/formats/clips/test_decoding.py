"""Clips of every kind: what is known of them before they are decoded, and the frames that come out."""

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from sd_scripts.data.sources.clips import frames_of
from sd_scripts.formats.clips.frames import decode
from sd_scripts.formats.clips.probe import Probe, UnreadableClip, as_json, from_json, probe
from sd_scripts.testing.clips import write_clip
from tests.support.clips import counting_frames, number_of, write_frames

FRAMES = 40
LOSSLESS = {"qp": "0", "preset": "ultrafast"}
KINDS: dict[str, dict[str, Any]] = {
    "plain.mp4": {"options": {**LOSSLESS, "bf": "2"}},
    "plain.mkv": {"options": LOSSLESS},
    "plain.mov": {"options": LOSSLESS},
    "vp9.webm": {"codec": "libvpx-vp9", "options": {"deadline": "realtime", "cpu-used": "8", "crf": "10"}},
    "reordered.avi": {"options": {**LOSSLESS, "bf": "2"}},
    "open.mkv": {"options": {**LOSSLESS, "bf": "3", "x264-params": "open-gop=1"}},
    "fragments.mp4": {"options": LOSSLESS, "file_options": {"movflags": "frag_keyframe+empty_moov"}},
    "plain.avi": {"codec": "mpeg4", "options": {"qscale": "1"}, "bit_rate": 4_000_000},
    "ten.mkv": {"options": {**LOSSLESS, "crf": "1"}, "pixel_format": "yuv420p10le"},
}


@pytest.fixture(scope="session")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Clips of 40 frames at 30 per second, and a folder of the same frames."""
    folder = tmp_path_factory.mktemp("clips")
    frames = counting_frames(FRAMES)
    for name, how in KINDS.items():
        write_clip(folder / name, frames, 30, **how)
    write_frames(folder / "folder", frames)
    return folder


def numbers(path: Path, found: Probe, places: list[int]) -> list[int]:
    return [number_of(frame) for frame in frames_of(path, [found.times[place] for place in places])]


@pytest.mark.parametrize("name", [*KINDS, "folder"])
def test_a_clip_is_probed_and_any_part_of_it_decoded(clips: Path, name: str) -> None:
    found = probe(clips / name)
    assert (found.size, found.frames) == ((64, 48), FRAMES)
    assert found.fps is None if name == "folder" else found.fps == pytest.approx(30, rel=1e-3)
    assert from_json(as_json(found)) == found
    for places in ([0], [39], [13, 14, 15], [11, 20, 39], [5, 5, 5]):
        assert numbers(clips / name, found, places) == places


def test_a_rotated_clip_is_upright(tmp_path: Path) -> None:
    """A display matrix of 90 degrees turns counterclockwise: the right edge becomes the top."""
    frames = np.full((3, 48, 64, 3), 60, dtype=np.uint8)
    frames[:, :, 48:] = 220
    upright = {}
    for angle in (0, 90, 180, 270):
        path = write_clip(tmp_path / f"{angle}.mp4", frames, 16, options=LOSSLESS, rotation=angle)
        pixels = decode(path, probe(path).times)
        assert probe(path).size == pixels.shape[2:0:-1]
        upright[angle] = [int(edge.mean()) > 140 for edge in (pixels[0, :8], pixels[0, -8:], pixels[0, :, -8:])]
    assert upright == {
        0: [False, False, True],
        90: [True, False, False],
        180: [False, False, False],
        270: [False, True, False],
    }


def test_frames_of_variable_rate_have_their_own_times(tmp_path: Path) -> None:
    times = [0, 40, 80, 480, 960, 1000, 1040]
    path = write_clip(
        tmp_path / "a.mp4", counting_frames(7), 25, times=times, time_base=Fraction(1, 1000), options=LOSSLESS
    )
    found = probe(path)
    assert [round(float(time * found.time_base * 1000)) for time in found.times] == times
    assert found.is_variable
    assert numbers(path, found, [1, 3, 6]) == [1, 3, 6]


def test_colours_follow_the_matrix_and_hdr_becomes_sdr(tmp_path: Path) -> None:
    frames = np.full((2, 48, 64, 3), (200, 40, 30), dtype=np.uint8)
    plain = decode(write_clip(tmp_path / "sd.mp4", frames, 16, options=LOSSLESS), [0])
    assert np.abs(plain[0, 20, 20].astype(int) - (200, 40, 30)).max() <= 4
    grey = np.full((2, 48, 64, 3), 110, dtype=np.uint8)
    hdr: dict[str, Any] = {
        "pixel_format": "yuv420p10le",
        "options": {"crf": "1"},
        "color_primaries": 9,
        "colorspace": 9,
    }
    # a code of 110 is 45 nits by PQ and 36 by HLG (ITU-R BT.2100), of 203 for white
    for curve, level in {16: 130, 18: 116}.items():
        path = write_clip(tmp_path / f"{curve}.mp4", grey, 16, color_trc=curve, **hdr)
        assert probe(path).is_hdr
        assert decode(path, [0]).mean() == pytest.approx(level, abs=2)


def test_pixels_that_are_not_square_count_as_they_are_shown(tmp_path: Path) -> None:
    path = write_clip(tmp_path / "a.mp4", counting_frames(2), 16, options=LOSSLESS, sample_aspect_ratio=Fraction(3, 2))
    assert probe(path).size == (96, 48)


def cut(source: Path, share: float) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(source.read_bytes()[: int(source.stat().st_size * share)])


def write_sound(path: Path) -> None:
    with av.open(str(path), "w") as container:
        stream = container.add_stream("aac", rate=8000, layout="mono")
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), dtype=np.float32), format="fltp", layout="mono")
        frame.sample_rate = 8000
        container.mux([*stream.encode(frame), *stream.encode()])


def test_unusable_clips_are_explained_in_one_sentence(clips: Path, tmp_path: Path) -> None:
    early = write_clip(tmp_path / "early.mp4", counting_frames(FRAMES), 30, file_options={"movflags": "faststart"})
    made: dict[str, Callable[[Path], object]] = {
        "empty.mp4": lambda path: path.write_bytes(b""),
        "text.mp4": lambda path: path.write_text("no video"),
        "cut.mp4": cut(clips / "plain.mp4", 0.7),
        "cut_early.mp4": cut(early, 0.8),
        "cut.mkv": cut(clips / "plain.mkv", 0.6),
        "cut.avi": cut(clips / "plain.avi", 0.6),
        "sound.m4v": write_sound,
        "playlist.mp4": lambda path: path.write_text(f"ffconcat version 1.0\nfile '{clips / 'plain.mp4'}'\n"),
        "stream.mp4": lambda path: path.write_text(f"#EXTM3U\n#EXTINF:1,\n{clips / 'plain.mp4'}\n#EXT-X-ENDLIST\n"),
        "folder": Path.mkdir,
    }
    told = {}
    for name, make in made.items():
        make(tmp_path / name)
        with pytest.raises(UnreadableClip) as error:
            probe(tmp_path / name)
        told[name] = str(error.value)
    damaged = "cannot be read: it is damaged, cut off, or not a video (Invalid data found when processing input)"
    assert {name: text for name, text in told.items() if "cut" not in name} == {
        "empty.mp4": "is empty",
        "text.mp4": damaged,
        "stream.mp4": damaged,
        "playlist.mp4": damaged.replace("data found when processing input", "argument"),
        "sound.m4v": "has no images, only sound",
        "folder": "has no images",
    }
    assert told["cut.mp4"] == damaged
    assert all(told[name].startswith("is cut off: ") for name in told if "cut" in name and name != "cut.mp4")


def test_a_frame_that_is_missing_ends_decoding_with_a_sentence(clips: Path) -> None:
    with pytest.raises(UnreadableClip, match="cannot be decoded whole: 1 of 2 frames are missing"):
        decode(clips / "plain.mp4", [0, 10**9])


def test_damage_within_a_clip_is_reported_where_it_is_decoded(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (12, 96, 128, 3), dtype=np.uint8)
    path = write_clip(tmp_path / "a.mp4", noise, 16, options={"preset": "ultrafast"})
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 200] = bytes(200)
    path.write_bytes(content)
    found = probe(path)
    assert len(decode(path, found.times[:2])) == 2
    with pytest.raises(UnreadableClip, match=r"cannot be decoded: it is damaged at 0\.\d seconds"):
        decode(path, found.times)


def bytes_read() -> int:
    entries = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(entries["rchar"])


def test_a_part_of_a_long_clip_is_decoded_without_reading_the_rest(tmp_path: Path) -> None:
    """Noise makes a file of several MB; key frames are 12 frames apart."""
    noise = np.random.default_rng(0).integers(0, 255, (240, 96, 128, 3), dtype=np.uint8)
    path = write_clip(tmp_path / "long.mp4", noise, 16, options={"preset": "ultrafast", "crf": "10"})
    size = path.stat().st_size
    before = bytes_read()
    found = probe(path)
    assert bytes_read() - before < size / 4
    before = bytes_read()
    decode(path, found.times[200:205])
    assert bytes_read() - before < size / 4
    assert size > 2_000_000
