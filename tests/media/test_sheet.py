"""Contact sheets."""

import numpy as np
import pytest

from petzval.errors import BadMediaError, BadRequestError
from petzval.media.sheet import contact_sheet
from tests.media.craft import picture


def test_pictures_lie_row_by_row():
    pictures = [picture(20, 30, seed=seed) for seed in range(5)]
    sheet = contact_sheet(pictures, columns=3)
    assert sheet.dtype == np.uint8 and sheet.shape == (2 * 24 + 4, 3 * 34 + 4, 3)
    for index, tile in enumerate(pictures):
        top, left = 4 + index // 3 * 24, 4 + index % 3 * 34
        np.testing.assert_array_equal(sheet[top : top + 20, left : left + 30], tile)
    assert (sheet[28:, 72:] == 255).all()


def test_floats_and_other_sizes():
    sheet = contact_sheet([np.zeros((10, 10, 3), np.float32), np.zeros((20, 30, 3), np.uint8)], columns=9)
    assert sheet.shape == (28, 72, 3)
    assert (sheet[9:19, 14:24] == 0).all() and (sheet[4:9, 4:34] == 255).all()


def test_captions_are_drawn_below_and_inside():
    blank = [np.full((40, 100, 3), 255, np.uint8)] * 2
    plain = contact_sheet(blank, columns=2)
    sheet = contact_sheet(blank, columns=2, captions=["a fox", ""])
    assert sheet.shape[0] == plain.shape[0] + 15
    inked = (sheet < 128).any(axis=2)
    assert inked[44:, 4:104].any() and not inked[:44].any() and not inked[:, 104:].any()


def test_long_captions_are_broken_and_then_cut():
    blank = [np.full((40, 100, 3), 255, np.uint8)]
    sheet = contact_sheet(blank, columns=1, captions=["a large red fox on the left of a wide green meadow " * 3])
    assert sheet.shape[0] == 48 + 3 * 15
    assert not (sheet < 128).any(axis=2)[:, 104:].any()
    endless = contact_sheet(blank, columns=1, captions=["x" * 500])
    assert endless.shape[0] == 48 + 15 and not (endless < 128).any(axis=2)[:, 104:].any()
    assert contact_sheet([np.zeros((2, 2, 3), np.uint8)], columns=1, captions=["xyz"]).shape == (10 + 15, 10, 3)


def test_the_same_sheet_twice():
    pictures = [picture(20, 30)] * 2
    first = contact_sheet(pictures, columns=2, captions=["one", "\u732b \U0001f98a"])
    np.testing.assert_array_equal(first, contact_sheet(pictures, columns=2, captions=["one", "\u732b \U0001f98a"]))


def test_what_makes_no_sheet():
    with pytest.raises(BadRequestError, match="at least one picture"):
        contact_sheet([], columns=2)
    with pytest.raises(BadRequestError, match="columns must be at least 1, got 0"):
        contact_sheet([picture(4, 4)], columns=0)
    with pytest.raises(BadRequestError, match="one for each of 1 pictures, got 2"):
        contact_sheet([picture(4, 4)], columns=1, captions=["a", "b"])
    with pytest.raises(BadMediaError, match="pixels"):
        contact_sheet([np.full((4, 4, 3), np.inf, np.float32)], columns=1)
