"""Headers of model files: believed only where all of them can be true; nothing that a file holds is run."""

import collections
import json
import os
import pickle
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from sd_scripts.families.cards.model_file import describe
from sd_scripts.formats.models.safetensors_header import read_header
from sd_scripts.library.files.model_reader import read_empty, read_weights

GOOD: dict[str, Any] = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def write(path: Path, header: Any, data: int = 8) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(data))
    return path


LIES: dict[str, Any] = {
    "nested": b'{"x":' * 50_000,
    "list": [GOOD],
    "number": b"7",
    "no text": b"\xff\xfe{}",
    "entry is text": {"x": "F32"},
    "no dtype": {"x": {"shape": [2], "data_offsets": [0, 8]}},
    "unknown dtype": {"x": GOOD | {"dtype": "F33"}},
    "dtype is a list": {"x": GOOD | {"dtype": ["F32"]}},
    "no shape": {"x": {"dtype": "F32", "data_offsets": [0, 8]}},
    "shape is text": {"x": GOOD | {"shape": "2"}},
    "shape of 10^24": {"x": GOOD | {"shape": [10**24]}},
    "shape beyond 64 bits": {"x": GOOD | {"shape": [0, 2**62, 2**62], "data_offsets": [0, 0]}},
    "shape is negative": {"x": GOOD | {"shape": [-2]}},
    "shape of truth": {"x": GOOD | {"shape": [True, 2]}},
    "shape of another size": {"x": GOOD | {"shape": [3]}},
    "too many dimensions": {"x": GOOD | {"shape": [1] * 100_000 + [2]}},
    "no offsets": {"x": {"dtype": "F32", "shape": [2]}},
    "offsets are text": {"x": GOOD | {"data_offsets": ["0", "8"]}},
    "offsets are negative": {"x": GOOD | {"data_offsets": [-8, 0]}},
    "offsets are turned round": {"x": GOOD | {"data_offsets": [8, 0]}},
    "one offset": {"x": GOOD | {"data_offsets": [8]}},
    "beyond the file": {"x": GOOD | {"data_offsets": [0, 2**62], "shape": [2**60]}},
    "overlap": {"x": GOOD, "y": GOOD | {"data_offsets": [4, 12]}},
    "hole": {"x": GOOD, "y": GOOD | {"data_offsets": [12, 20]}},
    "metadata are a list": {"x": GOOD, "__metadata__": ["a"]},
    "metadata hold numbers": {"x": GOOD, "__metadata__": {"a": 1}},
    "more data": {},
}


@pytest.mark.parametrize("lie", LIES)
def test_an_inconsistent_header_is_reported_in_one_sentence(lie: str, tmp_path: Path) -> None:
    path = write(tmp_path / "x.safetensors", LIES[lie])
    for read in (read_weights, read_empty):
        with pytest.raises(ValueError, match="download or copy it again") as error:
            read(path, "vae")
        assert str(error.value).startswith(f"vae: '{path}' is ")
        assert len(str(error.value)) < 400
    assert describe(path).problem == str(error.value).removeprefix("vae: ")


def test_a_valid_header_is_read_with_empty_tensors_and_metadata(tmp_path: Path) -> None:
    entries = {"b": GOOD, "a": GOOD | {"shape": [0, 5], "data_offsets": [0, 0]}, "__metadata__": {"k": "v"}}
    header = read_header(write(tmp_path / "x.safetensors", entries))
    assert header.shapes == {"b": (2,), "a": (0, 5)}
    assert header.metadata == {"k": "v"}
    assert sorted(read_weights(tmp_path / "x.safetensors", "vae")) == ["a", "b"]


class Harm:
    def __init__(self, file: str):
        self.file = file

    def __reduce__(self) -> Any:
        return (open, (self.file, "w"))


WEIGHTS = {"conditioner.embedders.1.model.ln_final.weight": torch.zeros(2)}


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "old"])
@pytest.mark.parametrize("ending", [".ckpt", ".pt", ""])
def test_a_pickle_is_recognised_by_the_names_of_its_tensors(zipped: bool, ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"model{ending}"
    torch.save({"state_dict": WEIGHTS}, path, _use_new_zipfile_serialization=zipped)
    assert (describe(path).family, describe(path).variant, describe(path).problem) == ("sdxl", "SDXL checkpoint", None)


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "old"])
def test_a_pickle_that_could_run_code_is_reported_and_not_run(zipped: bool, tmp_path: Path) -> None:
    path, harm = tmp_path / "model.ckpt", tmp_path / "harm"
    torch.save({**WEIGHTS, "x": Harm(str(harm))}, path, _use_new_zipfile_serialization=zipped)
    for problem in (describe(path).problem, told(path)):
        assert problem is not None
        assert "contains more than weights" in problem
        assert "convert it to .safetensors" in problem
        assert "weights_only" not in problem
    assert not harm.exists()


def told(path: Path) -> str:
    with pytest.raises(ValueError, match=r"^network_weights: '.*' ") as error:
        read_weights(path, "network_weights")
    return str(error.value)


def pickled(path: Path) -> None:
    path.write_bytes(pickle.dumps(collections.OrderedDict(x="no tensor"), protocol=2)[:-5])


@pytest.mark.parametrize(
    "make",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_text("<!DOCTYPE html>"),
        lambda path: path.write_bytes(b"PK\x03\x04" + os.urandom(3000)),
        lambda path: path.write_bytes(b"\x80\x02" + os.urandom(3000)),
        lambda path: path.write_bytes(b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M"),
        pickled,
        lambda path: path.mkdir(),
        pytest.param(
            lambda path: os.mkfifo(path), marks=pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="has no pipes")
        ),
    ],
    ids=["empty", "page", "zip", "pickle", "old and cut", "cut", "folder", "pipe"],
)
@pytest.mark.parametrize("ending", [".ckpt", ".safetensors"])
def test_a_file_without_weights_is_reported_and_never_waited_for(make: Any, ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"x{ending}"
    make(path)
    problem = describe(path).problem
    assert problem is not None
    assert problem.startswith(f"'{path}'")
    assert "\n" not in problem


@pytest.mark.parametrize("mmap", [True, False])
def test_tensors_of_one_file_can_be_changed_one_by_one(mmap: bool, tmp_path: Path) -> None:
    """Updates within backward need that: tensors that share a mapping share no version."""
    save_file({"a": torch.ones(2), "b": torch.ones(2)}, tmp_path / "m.safetensors")
    state = read_weights(tmp_path / "m.safetensors", "vae", mmap=mmap)
    state["a"].add_(1)
    assert (state["a"]._version, state["b"]._version) == (1, 0)
    assert state["b"].tolist() == [1, 1]
