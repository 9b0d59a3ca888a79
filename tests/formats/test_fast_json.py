"""JSON that two programs exchange: whatever a file name or a number may be."""

from typing import Any

import pytest

from sd_scripts.formats.fast_json import dumps, loads


@pytest.mark.parametrize(
    "value",
    [{"a": [1, 2.5, None, True, "é"]}, {"name": "a\udcff.png"}, [2**70], {}],
    ids=["plain", "bytes", "long", "empty"],
)
def test_what_is_written_is_read_again_from_one_line(value: Any) -> None:
    line = dumps(value)
    assert b"\n" not in line
    assert loads(line + b"\n") == value


def test_numbers_that_are_not_finite_become_null() -> None:
    assert loads(dumps({"a": float("nan"), "b": float("inf")})) == {"a": None, "b": None}


def test_broken_json_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="char"):
        loads(b"{")
