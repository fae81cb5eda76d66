"""The record of a generation survives in every format, and its absence or damage is said."""

import json
from io import BytesIO
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from petzval.errors import BadMediaError
from petzval.media.images import encode_image, read_image, write_image
from petzval.media.record import read_record
from petzval.media.videos import read_video, write_video
from tests.media.craft import chunk, clip, picture, png

SUFFIXES = [".png", ".jpg", ".webp", ".mp4", ".gif", ".film.webp"]
RECORDS = {
    "plain": {"model": "pocket", "seed": 7, "guidance": [1.0, 5.0], "none": None, "true": True},
    "unicode": {"prompt": '\u732b \U0001f98a caf\u00e9 \u202e\u0000\x1f\ufffe "quotes" <&\'> \\ \n -- -->'},
    "half a surrogate": {"prompt": "a\ud83eb"},
    "8 kB prompt": {"prompt": "the large fox on the left " * 320},
    "8k characters of emoji": {"prompt": "\U0001f98a" * 8000},
    "empty": {},
}


def write(path: Path, record: dict | None) -> None:
    if ".film" in path.name or path.suffix in (".mp4", ".gif"):
        write_video(clip(2, 16, 16), path, fps=8, record=record)
    else:
        write_image(picture(16, 16), path, record=record)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("kind", RECORDS)
def test_records_survive(tmp_path, suffix, kind):
    path = tmp_path / f"a{suffix}"
    write(path, RECORDS[kind])
    assert read_record(path) == RECORDS[kind]
    assert read_record(path.read_bytes()) == RECORDS[kind]


@settings(max_examples=40, deadline=None)
@given(
    record=st.dictionaries(st.text(), st.text() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)),
    suffix=st.sampled_from(SUFFIXES),
)
def test_any_record_survives(tmp_path_factory, record, suffix):
    path = tmp_path_factory.mktemp("record") / f"a{suffix}"
    write(path, record)
    assert read_record(path) == record


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_record_does_not_change_the_pixels(tmp_path, suffix):
    with_record, without = tmp_path / f"a{suffix}", tmp_path / f"b{suffix}"
    write(with_record, RECORDS["unicode"])
    write(without, None)
    if ".film" in suffix or suffix in (".mp4", ".gif"):
        assert (read_video(with_record).frames == read_video(without).frames).all()
    else:
        assert (read_image(with_record) == read_image(without)).all()


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_no_record(tmp_path, suffix):
    path = tmp_path / f"a{suffix}"
    write(path, None)
    with pytest.raises(BadMediaError, match="has no Petzval record") as caught:
        read_record(path)
    assert str(path) in str(caught.value)


def test_comments_of_others_are_no_record():
    for format, options in (
        ("jpeg", {"comment": b"made by hand"}),
        ("gif", {"comment": b"x"}),
        ("webp", {"xmp": b"<x/>"}),
    ):
        buffer = BytesIO()
        Image.new("L", (8, 8)).save(buffer, format, **options)
        with pytest.raises(BadMediaError, match="has no Petzval record"):
            read_record(buffer.getvalue())


def test_a_text_file_has_no_record():
    with pytest.raises(BadMediaError, match="settings is a text file"):
        read_record(b"{}", name="settings")


@pytest.mark.parametrize("text", ["", "{", "[1, 2]", "7", "[" * 100_000, "9" * 5000, '{"a": }'])
def test_a_damaged_record(text):
    body = b"petzval\0\0\0\0\0" + text.encode()
    data = png([b"\0\0\0"], width=1, colour=2, depth=8, before=(chunk(b"iTXt", body),))
    with pytest.raises(BadMediaError, match="the Petzval record of fox is damaged"):
        read_record(data, name="fox")


def test_png_text_after_the_pixels_is_found():
    data = encode_image(picture(8, 8), format="png")
    end = data.index(b"IEND") - 4
    late = data[:end] + chunk(b"iTXt", b"petzval\0\0\0\0\0" + json.dumps({"seed": 3}).encode()) + data[end:]
    assert read_record(late) == {"seed": 3}


def test_a_record_too_long_for_a_jpeg_is_refused(tmp_path):
    record = {"prompt": "x" * 70_000}
    with pytest.raises(BadMediaError, match="a JPEG holds at most 65533"):
        write(tmp_path / "a.jpg", record)
    for suffix in (".png", ".webp", ".mp4", ".gif"):
        write(tmp_path / f"a{suffix}", record)
        assert read_record(tmp_path / f"a{suffix}") == record


@pytest.mark.parametrize("record", [{"a": float("nan")}, {"a": object()}])
def test_what_is_not_json_is_refused(tmp_path, record):
    for suffix in SUFFIXES:
        with pytest.raises((TypeError, ValueError)):
            write(tmp_path / f"a{suffix}", record)
    assert not list(tmp_path.iterdir())
