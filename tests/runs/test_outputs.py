"""Files of an earlier run of the same output_name: found, kept under a dated name, or replaced where that is asked."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from sd_scripts.runs.outputs import (
    Fingerprint,
    dated_name,
    existing_outputs,
    find_saved,
    fingerprint,
    free_name,
    set_aside,
)
from sd_scripts.runs.process import process_born
from sd_scripts.training.saving.outputs import OwnOutputs
from tests.support.training import equal, train

pytestmark = pytest.mark.run

ENDED = time.mktime((2026, 11, 22, 8, 41, 0, 0, 0, -1))
OF_CAT = (
    "cat-000001-ema.safetensors",
    "cat-000001.safetensors",
    "cat-state/",
    "cat-step00000400-state/",
    "cat-step00000400.ckpt",
    "cat.safetensors",
)
OF_OTHERS = (
    "cat-2.safetensors",
    "cat-20261122-084100.safetensors",
    "cat-prompts.txt",
    "cat.txt",
    "cat/",
    "cats.safetensors",
    "last.safetensors",
)


def put(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        if name.endswith("/"):
            path.mkdir(parents=True)
        else:
            path.write_text(name)
        os.utime(path, (ENDED - len(name), ENDED - len(name)))
    if (folder / names[0]).exists():
        os.utime(folder / names[0], (ENDED, ENDED))


def of(folder: Path, name: str | None = "cat") -> dict[str, Any]:
    return {"output_dir": str(folder), "output_name": name}


def names(paths: list[Path]) -> list[str]:
    return [f"{path.name}/" if path.is_dir() else path.name for path in paths]


def test_files_of_a_name_are_found_and_no_others(tmp_path: Path) -> None:
    put(tmp_path, *OF_CAT, *OF_OTHERS)
    assert names(existing_outputs(of(tmp_path))) == sorted(OF_CAT)
    assert existing_outputs(of(tmp_path / "nowhere")) == []


def test_files_without_a_name_are_found(tmp_path: Path) -> None:
    nameless = ["at-step00000002-state/", "at-step00000002.safetensors", "epoch-000001.safetensors", "last.safetensors"]
    put(tmp_path, *nameless, "at.safetensors", "epoch.safetensors", *OF_CAT)
    assert names(existing_outputs(of(tmp_path, None))) == nameless


def test_a_folder_is_an_output_if_it_is_a_diffusers_model(tmp_path: Path) -> None:
    put(tmp_path, "cat/", "cat/model_index.json")
    assert names(existing_outputs(of(tmp_path))) == ["cat/"]


def test_a_free_name_has_the_next_number(tmp_path: Path) -> None:
    assert free_name(tmp_path, "cat") == "cat"
    put(tmp_path, "cat.safetensors", "cat-2-step00000004-state/")
    assert free_name(tmp_path, "cat") == "cat-3"
    assert free_name(tmp_path, "cat-2", taken={"cat-3"}) == "cat-4"
    assert free_name(tmp_path, None, taken={"last"}) == "last-2"


def test_an_earlier_run_is_kept_under_the_time_of_its_newest_file(tmp_path: Path) -> None:
    put(tmp_path, *OF_CAT)
    moved = set_aside(existing_outputs(of(tmp_path)), "cat")
    assert names(existing_outputs(of(tmp_path))) == []
    assert names(existing_outputs(of(tmp_path, "cat-20261122-084100"))) == [
        name.replace("cat", "cat-20261122-084100") for name in sorted(OF_CAT)
    ]
    assert moved[tmp_path / "cat.safetensors"].read_text() == "cat.safetensors"
    put(tmp_path, "cat.ckpt")
    assert dated_name([tmp_path / "cat.ckpt"], "cat") == "cat-20261122-084100-2"


def test_a_file_is_found_again_under_its_dated_name_and_never_taken_for_another(tmp_path: Path) -> None:
    put(tmp_path, *OF_CAT)
    paths = existing_outputs(of(tmp_path))
    written = {path: fingerprint(path) for path in paths}
    assert all(find_saved(path, written[path]) == path for path in paths)
    moved = set_aside(paths, "cat")
    for path in paths:
        path.write_text("of a later run")
        assert find_saved(path, written[path]) == moved[path]
        assert find_saved(path, None) == path
    moved[tmp_path / "cat.safetensors"].unlink()
    assert find_saved(tmp_path / "cat.safetensors", written[tmp_path / "cat.safetensors"]) is None


def test_rounded_file_times_do_not_make_a_file_look_different() -> None:
    assert Fingerprint(5, 3_000_000_001).matches(Fingerprint(5, 2_000_000_000))
    assert not Fingerprint(5, 3_000_000_001).matches(Fingerprint(5, 3_000_000_002))
    assert not Fingerprint(5, 3_000_000_001).matches(Fingerprint(6, 3_000_000_001))


def test_files_another_run_writes_in_the_meantime_are_set_aside_too(tmp_path: Path) -> None:
    put(tmp_path, "cat.safetensors")
    own = OwnOutputs(of(tmp_path))
    assert list(own.make_room(tmp_path / "cat-000001.safetensors")) == [tmp_path / "cat.safetensors"]
    put(tmp_path, "cat-000001.safetensors")
    own.wrote(tmp_path / "cat-000001.safetensors")
    assert own.make_room(tmp_path / "cat-000001.safetensors") == {}
    (tmp_path / "cat-000001.safetensors").write_text("by another run")
    assert not own.owns(tmp_path / "cat-000001.safetensors")
    assert list(own.make_room(tmp_path / "cat-000001.safetensors")) == [tmp_path / "cat-000001.safetensors"]


def test_a_resumed_run_owns_existing_files_unless_the_state_is_from_elsewhere(tmp_path: Path) -> None:
    put(tmp_path, *OF_CAT)
    path = tmp_path / "cat.safetensors"
    assert OwnOutputs(of(tmp_path), tmp_path / "cat-state").owns(path)
    assert not OwnOutputs(of(tmp_path), tmp_path / "dog-state").owns(path)
    assert OwnOutputs({**of(tmp_path), "overwrite": True}).owns(path)


def test_two_concurrent_runs_of_one_name_are_reported(any_miniature: Any, tmp_path: Path) -> None:
    output, parent = tmp_path / "out", os.getppid()
    output.mkdir()
    mark = output / f".short.{parent}.run"
    mark.write_text(json.dumps({"born": process_born(parent), "run_dir": "runs/the-other"}))
    (output / f".short.{2**22 + 1}.run").write_text(json.dumps({"born": "long ago", "run_dir": "runs/dead"}))
    made = train(any_miniature, output, max_train_steps=1)
    (told,) = [w["text"] for w in made.events_of("warning") if "is writing files of this name" in w["text"]]
    assert "(runs/the-other)" in told
    assert made.files == [mark.name, "short.safetensors"]


@pytest.fixture(scope="module")
def finished(any_miniature: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return train(any_miniature, tmp_path_factory.mktemp("earlier") / "out", max_train_steps=2, **EACH_STEP)


EACH_STEP: dict[str, Any] = {"save_every_n_steps": 1, "save_last_n_steps": 1, "save_state": True}
ENDS = ["short-state", "short.safetensors"]
AFTER_TWO = [ENDS[0], "short-step00000001-state", "short-step00000001.safetensors", ENDS[1]]


def test_a_second_run_of_a_name_keeps_the_first_ones_files(finished: Any, any_miniature: Any, tmp_path: Path) -> None:
    output = finished.output
    before = finished.tensors()
    saved = {
        Path(event["path"]): Fingerprint(event["bytes"], event["mtime_ns"]) for event in finished.events_of("saved")
    }
    assert finished.files == AFTER_TWO
    dated = dated_name([output / name for name in finished.files], "short")
    again = train(any_miniature, output, max_train_steps=4, seed=2, run_dir=output / "run2", **EACH_STEP)
    assert again.status == 0
    at_steps = [name.replace("01", f"0{step}") for step in (2, 3) for name in AFTER_TWO if "step" in name]
    kept = [name.replace("short", dated) for name in AFTER_TWO]
    assert sorted(set(again.files) - {"run2"}) == sorted([*kept, *at_steps, *ENDS])
    assert equal(again.tensors(f"{dated}.safetensors"), before)
    assert not equal(again.tensors(), before)
    assert all(find_saved(path, written).name.startswith(dated) for path, written in saved.items())  # type: ignore[union-attr]
    warnings = [line for line in (output / "run2/events.jsonl").read_text().splitlines() if '"warning"' in line]
    assert len([line for line in warnings if "contains files of an earlier run" in line]) == 1

    replacing = train(
        any_miniature, output, max_train_steps=1, overwrite=True, run_dir=output / "run3", save_state=True
    )
    assert replacing.status == 0
    assert sorted(set(replacing.files) - {"run2", "run3"}) == sorted(
        [*kept, "short-state", "short-step00000002.safetensors", "short-step00000003.safetensors", "short.safetensors"]
    )  # states of the run that was replaced would mislead resume = latest
