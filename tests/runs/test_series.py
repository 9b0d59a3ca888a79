"""Curves: every point is kept, and a chart gets the number of bins it can show."""

import math
import threading

import pytest

from sd_scripts.runs.series import Bins, Series


def series(values: list[float], first: int = 1) -> Series:
    made = Series()
    for step, value in enumerate(values, first):
        made.add(step, value)
    return made


def test_level_0_is_the_points_themselves():
    assert series([3.0, 1.0]).bins(0) == Bins(0, 0, [(1, 3, 3, 3), (2, 1, 1, 1)])


def test_a_bin_has_the_minimum_maximum_and_mean_of_its_points():
    assert series([4.0, 0.0, 1.0, 3.0, 9.0]).bins(2).bins == [(2.5, 0, 4, 2), (5, 9, 9, 9)]


@pytest.mark.parametrize("level", [0, 1, 2, 5, 10])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 31, 32, 33, 1000])
def test_bins_of_every_level_match_the_points(count: int, level: int):
    values = [math.sin(i) for i in range(count)]
    size = 2**level
    expected = []
    for start in range(0, count, size):
        part, steps = values[start : start + size], range(start + 1, min(start + size, count) + 1)
        expected += [sum(steps) / len(part), min(part), max(part), sum(part) / len(part)]
    assert [x for bin in series(values).bins(level).bins for x in bin] == pytest.approx(expected)


def test_a_reader_that_requests_only_new_bins_has_the_whole_curve():
    curve, kept = Series(), []
    for step in range(1, 500):
        curve.add(step, step % 17)
        if step % 23 == 0 or step == 499:
            told = curve.bins(3, after=max(len(kept) - 1, 0))
            del kept[told.start :]
            kept += told.bins
    assert kept == curve.bins(3).bins


def test_the_level_is_the_finest_with_few_enough_bins():
    curve = series([0.0] * 100_000)
    level = curve.level(1000)
    assert len(curve.bins(level).bins) <= 1000 < len(curve.bins(level - 1).bins)
    assert curve.level(1000, first=500, last=1200) == 0


def test_a_part_of_the_curve_includes_the_bins_that_touch_it():
    curve = series([float(i) for i in range(1, 101)])
    told = curve.bins(2, first=10, last=15)
    assert told.start == 2
    assert [(low, high) for _, low, high, _ in told.bins] == [(9, 12), (13, 16)]
    assert curve.bins(0, first=200, last=300).bins == []
    assert curve.bins(2, first=2, last=1).bins == []


def test_an_up_to_date_reader_gets_nothing_new():
    assert series([1.0] * 10).bins(1, after=5) == Bins(1, 5, [])
    assert Series().bins(3, after=7) == Bins(3, 0, [])


def test_steps_trained_again_replace_the_earlier_ones():
    curve = series([1.0] * 100)
    for step in range(51, 101):
        curve.add(step, 2.0)
    assert len(curve) == 100
    assert curve.bins(4) == series([1.0] * 50 + [2.0] * 50).bins(4)


def test_several_readers_of_a_growing_curve_do_not_spoil_it():
    curve, count = Series(), 20_000
    told: list[Bins] = []

    def read() -> None:
        while len(curve) < count:
            told.append(curve.bins(3))

    readers = [threading.Thread(target=read) for _ in range(4)]
    for reader in readers:
        reader.start()
    for step in range(1, count + 1):
        curve.add(step, step % 7)
    for reader in readers:
        reader.join()
    assert told
    assert curve.bins(3) == series([step % 7 for step in range(1, count + 1)]).bins(3)
