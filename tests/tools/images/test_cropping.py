"""Rectangles without text and bars, as functions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sd_scripts.tools.images.cropping import largest_free, without_bars

pytestmark = pytest.mark.fast
SIDE = 9
BOXES = st.lists(st.tuples(*[st.integers(-2, SIDE)] * 2, *[st.integers(0, 5)] * 2), max_size=5)


def largest_by_trial(taken: np.ndarray) -> int:
    """Return the largest area without a taken cell, of all rectangles that there are."""
    sums = np.pad(taken.astype(int), ((1, 0), (1, 0))).cumsum(0).cumsum(1)
    best = 0
    for top in range(SIDE):
        for bottom in range(top + 1, SIDE + 1):
            for left in range(SIDE):
                for right in range(left + 1, SIDE + 1):
                    inside = sums[bottom, right] - sums[top, right] - sums[bottom, left] + sums[top, left]
                    if not inside:
                        best = max(best, (bottom - top) * (right - left))
    return best


@given(BOXES)
def test_the_largest_free_rectangle_touches_no_box_and_none_is_larger(boxes: list[tuple[int, int, int, int]]) -> None:
    taken = np.zeros((SIDE, SIDE), bool)
    for left, top, width, height in boxes:
        taken[max(top, 0) : max(top + height, 0), max(left, 0) : max(left + width, 0)] = True
    left, top, width, height = largest_free(boxes, (SIDE, SIDE))
    assert not taken[top : top + height, left : left + width].any()
    assert width * height == largest_by_trial(taken)


def test_a_subject_on_one_colour_and_an_image_of_one_colour_have_no_bars() -> None:
    plain = np.full((80, 80, 3), 255, np.uint8)
    product = plain.copy()
    product[20:60, 30:50] = 90
    fading = np.repeat(np.linspace(0, 255, 80).astype(np.uint8)[:, None, None], 3, 2) * np.ones((80, 80, 1), np.uint8)
    for pixels in (plain, product, fading):
        assert not without_bars(pixels).is_changed
