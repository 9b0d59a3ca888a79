"""The job that captions a folder: what it writes, spares, survives and resumes."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from sd_scripts.finetune import (
    caption_images_by_florence2,
    make_captions,
    make_captions_by_git,
    tag_images_by_wd14_tagger,
)
from sd_scripts.machine.dataset_journal import dataset_editor
from sd_scripts.runs.folder import RunFolder, read_json
from sd_scripts.settings.compat.captioning import OPTIONS
from sd_scripts.tools.captioning.__main__ import COMMAND
from sd_scripts.tools.captioning.tagger import Tagger
from sd_scripts.tools.lora.command import Command
from tests.support.captioning_models.tagging import COLOURS, caption, captions, write_colours, write_tagger

pytestmark = pytest.mark.run
TAGGED = {"blue": "blue sky", "green": "green hair", "red": "red fox (forest)"}


@pytest.fixture(scope="module")
def tagger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tagger(tmp_path_factory.mktemp("tagger"))


@pytest.fixture
def images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "state"))
    return write_colours(tmp_path / "10_cat")


def result(run: Path) -> Any:
    return read_json(run / "captions.json")


def test_images_are_tagged_and_the_run_folder_has_the_result(tagger: Path, images: Path, tmp_path: Path) -> None:
    (images / "broken.png").write_bytes(b"no image")
    assert caption(images, "--model", tagger, "--trigger", "sks", "--run_dir", tmp_path / "run") == 0
    assert captions(images) == {name: f"sks, {tags}" for name, tags in TAGGED.items()}
    told = result(tmp_path / "run")
    assert told["written"] == 3
    assert {Path(path).name for path in told["failed"]} == {"broken.png"}
    events = list(RunFolder(tmp_path / "run").events())
    assert [event["text"] for event in events if event["kind"] == "warning"] == [
        f"broken.png has no new caption: {images / 'broken.png'} cannot be read: not an image in a known format"
    ]
    assert {event["done"] for event in events if event.get("total") == 4} == {0, 4}
    assert events[-1]["kind"] == "finished"


def test_captions_of_a_person_are_spared_unless_asked(tagger: Path, images: Path) -> None:
    (images / "red.txt").write_text("my words\n")
    caption(images, "--model", tagger)
    assert captions(images) == {**TAGGED, "red": "my words"}
    (images / "blue.txt").write_text("blue sky, corrected\n")
    flags = (images, "--model", tagger, "--existing", "append", "--trigger", "sks")
    caption(*flags)
    assert captions(images) == {
        "blue": "blue sky, corrected",
        "green": "sks, green hair",
        "red": "my words",
    }
    caption(*flags, "--overwrite_hand")
    assert captions(images)["blue"] == "sks, blue sky, corrected"
    assert captions(images)["red"] == "sks, my words, red fox (forest)"


def test_trying_writes_nothing(tagger: Path, images: Path, tmp_path: Path) -> None:
    (images / "blue.txt").write_text("before\n")
    run = tmp_path / "run"
    flags = ("--model", tagger, "--try_images", 2, "--existing", "append", "--run_dir", run)
    assert caption(images, *flags) == 0
    assert captions(images) == {"blue": "before"}
    tried = [(Path(each["image"]).stem, each["before"], each["after"]) for each in result(run)["captions"]]
    assert tried == [("blue", "before", "before, blue sky"), ("green", "", "green hair")]
    assert result(run)["sentence"] == "2 images tried; nothing written"
    assert "spares this caption" in result(run)["captions"][0]["kept"]
    assert (run / "tried-1.jpg").is_file()


def stopping(monkeypatch: pytest.MonkeyPatch, after: int, error: type[BaseException]) -> list[int]:
    """Let the tagger raise an error after some images; return the number that each call saw."""
    seen: list[int] = []
    original = Tagger.__call__

    def call(self: Tagger, images: Any) -> Any:
        if sum(seen) >= after:
            raise error
        seen.append(len(images))
        return original(self, images)

    monkeypatch.setattr(Tagger, "__call__", call)
    return seen


@pytest.mark.parametrize("existing", ["skip", "append", "replace"])
def test_a_stopped_job_continues_where_it_was(
    tagger: Path, images: Path, monkeypatch: pytest.MonkeyPatch, existing: str
) -> None:
    flags = (images, "--model", tagger, "--batch_size", 1, "--existing", existing)
    with monkeypatch.context() as patch:
        stopping(patch, 2, KeyboardInterrupt)
        assert caption(*flags) == 130
    assert captions(images) == {name: TAGGED[name] for name in ("blue", "green")}
    with monkeypatch.context() as patch:
        seen = stopping(patch, 9, KeyboardInterrupt)
        assert caption(*flags) == 0
        assert sum(seen) == 1
        assert captions(images) == TAGGED
    with monkeypatch.context() as patch:
        seen = stopping(patch, 9, KeyboardInterrupt)
        assert caption(*flags) == 0  # a finished job starts from scratch
        assert sum(seen) == (0 if existing == "skip" else 3)


def test_a_full_disk_ends_the_job_in_one_sentence_and_loses_no_caption(
    tagger: Path, images: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (images / "green.txt").write_text("before\n")
    original = os.replace

    def full(source: Any, target: Any) -> None:
        if Path(target).name == "green.txt":
            raise OSError(errno.ENOSPC, "No space left on device")
        original(source, target)

    flags = (images, "--model", tagger, "--existing", "append", "--overwrite_hand")
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        assert caption(*flags) == 1
    assert capsys.readouterr().err == f"'{images}' could not be written: the disk is full; free some space\n"
    assert {path.name for path in images.iterdir()} == {*(f"{name}.png" for name in COLOURS), "green.txt"}
    assert captions(images) == {"green": "before"}
    assert caption(*flags) == 0
    assert captions(images) == {**TAGGED, "green": "before, green hair"}


def test_a_caption_that_changes_during_the_job_is_kept(
    tagger: Path, images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Tagger.__call__

    def call(self: Tagger, pixels: Any) -> Any:
        (images / "green.txt").write_text("written meanwhile\n")
        return original(self, pixels)

    monkeypatch.setattr(Tagger, "__call__", call)
    assert caption(images, "--model", tagger) == 0
    assert captions(images) == {**TAGGED, "green": "written meanwhile"}


def test_mistakes_are_one_sentence_and_exit_code_2(
    tagger: Path, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    listed = tmp_path / "list.txt"
    listed.write_text(f"{images / 'red.png'}\n{images / 'gone.png'}\n")
    wrong = {
        (): "train_data_dir: not set; choose the folder of the images",
        (tmp_path / "no",): f"train_data_dir: folder not found: '{tmp_path / 'no'}'",
        (tmp_path / "empty",): f"train_data_dir: no image (png, jpg, webp, bmp) in '{tmp_path / 'empty'}'",
        (images, "--thresh", 1.5): "thresh: 1.5 is outside 0.0..1.0",
        (images, "--character_threshold=-1"): "character_threshold: -1.0 is outside 0.0..1.0",
        (images, "--model", "no/such-model"): "model: 'no/such-model' is not on this machine; its size and licence are",
        (images,): "model: 'SmilingWolf/wd-eva02-large-tagger-v3' is not on this machine; it is a download of 1.26 GB "
        "under the licence Apache-2.0; turn on download to get it",
        (images, "--model", tmp_path / "empty"): f"model: '{tmp_path / 'empty'}' contains no model.onnx",
        (images, "--model", "/no/such/folder"): "model: folder not found: '/no/such/folder'",
        (images, "--method", "endpoint"): "endpoint: not set; enter the address of the server",
        (images, "--image_list", listed): f"image_list: 1 line of '{listed}' are not images: gone.png",
        (images, "--family", "sd9"): "family: 'sd9' is not a model family; use ",
        (images, "--prompt", "{x}"): "prompt: {x} is not known; use {trigger}, {folder}, {tags}",
        (images, "--caption_extension", "/"): "caption_extension: '/' is not a file extension; use .txt",
    }
    problems = {}
    for flags, sentence in wrong.items():
        try:
            code = caption(*flags)
        except SystemExit as error:  # from the parser
            code = int(str(error.code))
        told = capsys.readouterr().err
        if code != 2 or not told.startswith(sentence) or told.count("\n") != 1:
            problems[flags] = (code, told)
    assert problems == {}


def test_a_list_chooses_images(tagger: Path, images: Path, tmp_path: Path) -> None:
    listed = tmp_path / "list.txt"
    listed.write_text(f"{images / 'red.png'}\n\n{images / 'red.png'}\n")
    caption("--image_list", listed, "--model", tagger)
    assert captions(images) == {"red": "red fox (forest)"}


def test_settings_come_from_a_file_and_flags_override_it(
    tagger: Path, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "tags.toml"
    file.write_text(f"model = {str(tagger)!r}\ntrigger = 'a'\nremove_underscore = false\n")
    caption(images, "--config_file", file, "--trigger", "b")
    assert captions(images)["blue"] == "b, blue_sky"
    file.write_text("treshold = 0.5\n")
    assert caption(images, "--config_file", file) == 2
    assert capsys.readouterr().err == "config_file: treshold: unknown option of captioning; correct or remove it\n"


def test_the_taggers_section_of_kohya_ss_opens(tagger: Path, images: Path, tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(
        f"[model]\nmodels_dir = './models'\n[wd14_caption]\nrepo_id = {str(tagger)!r}\nthresh = 0.9\nonnx = true\n"
        "force_download = false\nappend_tags = true\nalways_first_tags = 'sks'\ncaption_postfix = ', end'\n"
        "use_rating_tags_as_last_tag = false\nmax_data_loader_n_workers = 2\ndebug = false\n"
    )
    (images / "blue.txt").write_text("before\n")
    caption(images, "--config_file", file, "--overwrite_hand", "--general_threshold", "0.5")
    assert captions(images) == {
        "blue": "before, sks blue_sky, end",
        "green": "sks green_hair, end",
        "red": "sks red_fox_(forest), end",
    }


def test_sd_scripts_tagger_keeps_its_command_line(tagger: Path, images: Path) -> None:
    flags = ["--onnx", "--repo_id", str(tagger), "--caption_extention", ".tags", "--batch_size", "2", "--thresh", "0.3"]
    more = [
        "--remove_underscore",
        "--undesired_tags",
        "green hair",
        "--max_data_loader_n_workers",
        "2",
        "--append_tags",
    ]
    assert tag_images_by_wd14_tagger.main([str(images), *flags, *more]) == 0
    assert captions(images, ".tags") == {"blue": "blue sky", "red": "red fox (forest)"}


def test_a_job_is_undone_in_the_tab_dataset(tagger: Path, images: Path) -> None:
    (images / "red.txt").write_bytes(b"my words\r\n")
    caption(images, "--model", tagger, "--existing", "append", "--overwrite_hand")
    assert captions(images)["red"] == "my words, red fox (forest)"
    editor = dataset_editor()
    assert [action.label for action in editor.journal.actions(str(images), "done")] == [f"Tags by {tagger.name}"]
    editor.undo(str(images))
    assert [file.name for file in images.glob("*.txt")] == ["red.txt"]
    assert (images / "red.txt").read_bytes() == b"my words\r\n"


def test_captions_that_are_not_text_are_named_and_kept(tagger: Path, images: Path, tmp_path: Path) -> None:
    (images / "red.txt").write_bytes(b"\xff\xfe\0")
    (images / "green.txt").mkdir()
    assert caption(images, "--model", tagger, "--existing", "replace", "--run_dir", tmp_path / "run") == 0
    assert {Path(path).name for path in result(tmp_path / "run")["failed"]} == {"red.png", "green.png"}
    assert (images / "red.txt").read_bytes() == b"\xff\xfe\0"
    assert (images / "blue.txt").read_text() == "blue sky"


def test_every_option_is_documented() -> None:
    page = (Path(__file__).parents[3] / "docs" / "captioning.md").read_text(encoding="utf-8")
    assert [name for name in OPTIONS if f"`{name}`" not in page and f"`--{name}`" not in page] == []


@pytest.mark.parametrize(
    ("script", "model", "extension", "flags"),
    [
        (make_captions, "Salesforce/blip-image-captioning-large", ".caption", ["--beam_search", "--num_beams", "3"]),
        (make_captions_by_git, "microsoft/git-large-textcaps", ".caption", ["--remove_words"]),
        (caption_images_by_florence2, "florence-community/Florence-2-large", ".txt", ["--max_new_tokens", "9"]),
    ],
)
def test_caption_scripts_of_sd_scripts_become_the_command(
    script: Any, model: str, extension: str, flags: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[list[str]] = []
    monkeypatch.setattr(Command, "main", lambda self, name, argv: given.append(argv) or 0)
    assert script.main(["images", *flags, "--batch_size", "2"]) == 0
    values = COMMAND._parser("").parse_args(given[0])
    assert (values.method, values.model, values.caption_extension) == ("captioner", model, extension)
    assert (values.train_data_dir, values.batch_size, values.existing) == ("images", 2, "replace")
    if script is make_captions:
        assert (values.num_beams, values.temperature, values.max_length) == (3, 0.0, 75)
    if script is caption_images_by_florence2:
        assert values.max_length == 9
