"""Values that are hard to read: too deep, too many, digits of other scripts, 0 instead of unset."""

import contextlib
import json
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kohya_gui.kohya.legacy_config import from_kohya
from sd_scripts import sdxl_train_network
from sd_scripts.data.plan.counted_warnings import MOST_ALIKE, counted_warnings
from sd_scripts.data.plan.dataset import plan_data
from sd_scripts.families.cards.registry import card_of
from sd_scripts.formats.documents import DEEPEST, parse_json, parse_toml
from sd_scripts.formats.images.metadata_file import read_metadata
from sd_scripts.formats.toml_files import toml_text
from sd_scripts.formats.words import MOST_LISTED
from sd_scripts.library.text.weighted_prompt import parse_weights
from sd_scripts.options.generating.prompt_lines import dropped_words, line_keys
from sd_scripts.options.networks.network_args import NetworkArguments
from sd_scripts.options.optimization.optimizer import OptimizerOptions
from sd_scripts.settings import dataset_schema, preflight
from sd_scripts.settings.dataset_schema import read_config
from sd_scripts.settings.generate_settings import settings_of
from sd_scripts.settings.reading import from_values
from tests.settings.test_command_line import mistakes
from tests.support.data import make_folder
from tests.support.scripts import FLUX_LORA, SDXL_LORA

DEEP = {
    "dotted key": ".".join(["low"] * 20_000) + " = 1",
    "spaced and quoted": " . ".join(['"a b"', "c"] * 9_000) + " = 1",
    "heading": f"[{'.'.join(['x'] * 9_000)}]\na = 1",
    "inline table": f"a = {{{'.'.join(['x'] * 9_000)} = 1}}",
    "lists": f"a = {'[' * (DEEPEST + 1)}{']' * (DEEPEST + 1)}",
    "tables": f"a = {'{b = ' * 90}1{'}' * 90}",
}


@pytest.mark.parametrize("how", DEEP)
def test_a_settings_file_that_is_nested_too_deeply_is_one_sentence(
    how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "run.toml"
    file.write_text(DEEP[how])
    for more in ([], ["--plan"]):
        with pytest.raises(SystemExit) as ended:
            sdxl_train_network.main(["--config_file", str(file), *more])
        assert ended.value.code == 2
        assert capsys.readouterr().err == f"config_file: '{file}' is not TOML: it is nested too deeply\n"
    assert [*tmp_path.iterdir()] == [file]


def test_other_files_have_the_same_depth_limit(tmp_path: Path) -> None:
    deep = {"a": {"tags": json.loads("[" * 300 + "]" * 300)}}
    (tmp_path / "meta.json").write_text(json.dumps(deep))
    with pytest.raises(ValueError, match=r"^in_json: .* is nested too deeply$"):
        read_metadata(tmp_path / "meta.json", "in_json")
    with pytest.raises(ValueError, match=r"^dataset_config: .* is nested too deeply$"):
        read_config(tmp_path / "meta.json")


def test_ordinary_files_are_not_deep() -> None:
    dotted = ".".join(["part"] * (DEEPEST - 1))
    assert next(iter(parse_toml(f"{dotted} = 1"))) == "part"
    assert parse_toml(f"a = '''\n{'one. two. ' * 20}'''")["a"].count("one") == 20
    assert parse_json("[" * DEEPEST + "]" * DEEPEST)


@pytest.mark.parametrize("piece", ["a.", "a . ", '"', "'a' . ", "- ", "[", "{a=", ".", "a\n", "é. "])
def test_a_text_of_any_repetition_is_read_in_time(piece: str) -> None:
    start = time.process_time()
    for text in (piece * (100_000 // len(piece)), f"a = '{piece.replace(chr(39), '') * (100_000 // len(piece))}'"):
        try:
            parse_toml(text)
        except ValueError:
            continue
    assert time.process_time() - start < 2


@pytest.mark.parametrize(
    ("name", "value"),
    [("huber_c", 0), ("huber_scale", "0.0"), ("discrete_flow_shift", 0.0), ("t5xxl_max_token_length", "0")],
)
def test_a_0_that_becomes_the_default_is_reported(name: str, value: Any) -> None:
    settings = from_values(FLUX_LORA, {"loss_type": "huber", "huber_schedule": "constant", name: value})
    told = {remark.name: remark.text for remark in settings.remarks}
    assert told[name] == "0 makes no sense here and is read as unset, so the default applies"
    assert settings.value(name) == settings.options[name].default


def test_a_0_of_kohya_that_becomes_the_default_is_reported() -> None:
    config = from_kohya({"sdxl": True, "max_timestep": 0, "seed": 0, "network_dropout": 0, "vae_batch_size": ""})
    assert [remark.name for remark in config.remarks if "read as unset" in remark.text] == ["max_timestep"]
    settings = from_values(SDXL_LORA, from_kohya({"sdxl": True, "huber_c": 0}).values)
    assert "huber_c" in {remark.name for remark in settings.remarks}


NOT_ASCII = ["१६", "１６", "٣", "1٠"]


@pytest.mark.parametrize("digits", NOT_ASCII)
def test_digits_of_other_writing_systems_are_not_numbers(digits: str) -> None:
    values = {"network_dim": digits, "learning_rate": digits, "resolution": digits, "gpu_ids": digits}
    named = {name for problem in from_values(SDXL_LORA, values).problems() for name in problem.names}
    assert values.keys() <= named
    (problem,) = [
        str(each)
        for each in from_values(SDXL_LORA, {"network_args": [f"conv_dim={digits}"]}).problems()
        if each.names == ("network_args",)
    ]
    assert "not a number" in problem
    assert settings_of("flux", {}, {"width": digits}).wrong_values()
    line = f"a (cat:{digits}) --w {digits} --d {digits} --l {digits} --g 0.{digits}"
    assert line_keys(line) == {"prompt": line.partition(" --")[0]}
    assert [said.partition(" needs ")[0] for said in dropped_words(line)] == ["--w", "--d", "--l", "--g"]
    assert parse_weights(f"(cat:{digits})") == [(f"cat:{digits}", pytest.approx(1.1))]


@pytest.mark.parametrize("words", ["--", "--network_dim 8 --", "-- --network_dim 8"])
def test_two_hyphens_alone_are_not_an_option(words: str) -> None:
    assert mistakes(words) == ["--: is not an option; leave it out"]


@pytest.mark.parametrize("size", [[16_384, 64], [64, 8_193], [31, 1024], [512, 1]])
def test_a_train_resolution_that_cannot_be_trained_is_refused(size: list[int], tmp_path: Path) -> None:
    (tmp_path / "meta.jsonl").write_text(json.dumps({"image_path": "a.png", "train_resolution": size}) + "\n")
    with pytest.raises(ValueError, match=f"^in_json: .*'a.png', {size[0]}x{size[1]}, has a side outside 32..8192"):
        read_metadata(tmp_path / "meta.jsonl", "in_json")


WINDOWS = [r"C:\Users\mia\cats", r"E:\cats\set", r"E:\new\toys", r"C:\x\unicode", r"\\nas\photos", "E:\\cats\\"]


@pytest.mark.parametrize("path", WINDOWS)
def test_a_windows_path_in_double_quotes_is_reported_with_the_right_form(
    path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    remedy = f"write '{path}' in single quotes, or / for \\"
    data = tmp_path / "data.toml"
    data.write_text(f'[[datasets]]\nresolution = 64\n[[datasets.subsets]]\nimage_dir = "{path}"\n')
    told = [str(each) for each in preflight.problems(from_values(SDXL_LORA, {"dataset_config": str(data)}))]
    assert any(line.startswith("dataset_config: ") and remedy in line for line in told), told
    file = tmp_path / "run.toml"
    file.write_text(f'train_data_dir = "{path}"\n')
    with contextlib.suppress(SystemExit):  # where the file cannot be read
        assert sdxl_train_network.main(["--config_file", str(file)]) == 2
    assert remedy in capsys.readouterr().err


def growth(work: Callable[[int], object], small: int) -> float:
    """How much longer ten times as much takes: 10 where time is linear, 100 where it grows with the square."""
    work(10)  # imports and caches

    def quickest(size: int) -> float:  # what else the machine does, and collecting what others left, only adds time
        times = []
        for _ in range(3):
            start = time.process_time()
            work(size)
            times.append(time.process_time() - start)
        return min(times)

    return quickest(10 * small) / max(quickest(small), 1e-3)


LONG: dict[str, Callable[[int], object]] = {
    "unknown keys": lambda n: from_values(SDXL_LORA, {f"netwrok_dim{i}": i for i in range(n)}),
    "unknown keys are written": lambda n: toml_text({f"key{i}": i for i in range(n)}),
    "long lists are written": lambda n: toml_text({"network_args": [f"a{i}=1" for i in range(n)]}),
    "tables": lambda n: toml_text({f"t{i}": {"a": i} for i in range(n)}),
    "optimizer_args": lambda n: [*OptimizerOptions(optimizer_args=[f"a{i}=1" for i in range(n)]).check()],
    "network_args": lambda n: NetworkArguments({f"a{i}": "1" for i in range(n)}).unknown(),
    "unknown keys of datasets": lambda n: dataset_schema.problems(
        {"datasets": [{"subsets": [{"image_dir": "a", "wrong": i}]} for i in range(n)]}, masked_loss=False
    ),
    "warnings": lambda n: warned(f"folder {i} has no images" for i in range(n)),
}


@pytest.mark.parametrize("what", LONG)
def test_time_is_linear_in(what: str) -> None:
    assert growth(LONG[what], 300) < 40


def warned(texts: Iterable[str], told: list[str] | None = None) -> list[str]:
    told = [] if told is None else told
    with counted_warnings(told.append) as warn:
        for text in texts:
            warn(text)
    return told


def test_warnings_that_repeat_are_counted() -> None:
    texts = [*["resolution: 30 is rounded to 32"] * 3, "cat: empty", *(f"'/data/{n}' has 0 images" for n in range(500))]
    assert warned(texts)[:3] == ["resolution: 30 is rounded to 32 (3 times)", "cat: empty", "'/data/0' has 0 images"]
    assert len(warned(texts)) == 3 + MOST_ALIKE
    assert warned(texts)[-1] == f"{500 - MOST_ALIKE} more warnings like this one: '/data/0' has 0 images"


def test_warnings_before_a_mistake_are_not_lost() -> None:
    def texts() -> Iterator[str]:
        yield "one.png is skipped"
        raise ValueError("no images")

    told: list[str] = []
    with pytest.raises(ValueError, match="no images"):
        warned(texts(), told)
    assert told == ["one.png is skipped"]


def test_a_folder_that_is_listed_thousands_of_times_is_one_warning(tmp_path: Path) -> None:
    make_folder(tmp_path / "cats", [(64, 64)])
    (tmp_path / "data.toml").write_text(
        "[[datasets]]\nresolution = 64\nmin_bucket_reso = 64\n"
        + f"[[datasets.subsets]]\nimage_dir = '{tmp_path / 'cats'}'\n" * 500
    )
    told: list[str] = []
    settings = from_values(SDXL_LORA, {"dataset_config": str(tmp_path / "data.toml")})
    plan_data(settings, card_of("sdxl"), seed=1, warn=told.append)
    assert [text for text in told if "listed" in text] == [
        f"{tmp_path / 'cats'} is listed twice in one dataset; the first entry is used (499 times)"
    ]


def test_only_the_first_of_thousands_of_missing_folders_are_listed(tmp_path: Path) -> None:
    (tmp_path / "data.toml").write_text(
        "[[datasets]]\nresolution = 64\n"
        + "".join(f"[[datasets.subsets]]\nimage_dir = '{tmp_path}/{n}'\n" for n in range(800))
    )
    told = [
        str(each)
        for each in preflight.problems(from_values(SDXL_LORA, {"dataset_config": str(tmp_path / "data.toml")}))
    ]
    missing = [line for line in told if "folder not found" in line]
    assert len(missing) == MOST_LISTED
    assert any("more files and folders have problems" in line for line in told)
