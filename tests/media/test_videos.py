"""Clips in and out: frames, rate and colours survive, and the files are what players expect."""

from fractions import Fraction
from io import BytesIO

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from petzval.errors import BadMediaError, BadRequestError
from petzval.media import untrusted, videos
from petzval.media.videos import read_video, write_video
from tests.media.craft import boxes, clip, picture, psnr

FLOORS = {".mp4": 28.0, ".webp": 27.0, ".gif": 28.0}


@pytest.mark.parametrize("num_frames", [1, 9])
@pytest.mark.parametrize("suffix", FLOORS)
def test_what_is_written_reads_back(tmp_path, suffix, num_frames):
    pixels = clip(num_frames, 64, 96)
    path = tmp_path / f"a{suffix}"
    write_video(pixels.astype(np.float32) / 255, path, fps=16)
    back = read_video(path)
    assert back.frames.shape == pixels.shape and back.frames.dtype == np.uint8
    assert psnr(back.frames, pixels) >= FLOORS[suffix]
    if num_frames > 1:  # one frame has no rate
        assert back.fps == pytest.approx(16, rel=0.01)
    assert list(tmp_path.iterdir()) == [path]


@settings(max_examples=25, deadline=None)
@given(
    num_frames=st.integers(1, 5),
    height=st.integers(1, 40),
    width=st.integers(1, 40),
    suffix=st.sampled_from(sorted(FLOORS)),
    fps=st.sampled_from([1, 7, 16, 24, 29.97, 50]),
)
def test_any_size_reads_back(tmp_path_factory, num_frames, height, width, suffix, fps):
    if suffix == ".mp4":
        height, width = 2 * height, 2 * width
    greys = np.linspace(20, 230, num_frames).astype(np.uint8)
    pixels = np.broadcast_to(greys[:, None, None, None], (num_frames, height, width, 3))
    path = tmp_path_factory.mktemp("clip") / f"a{suffix}"
    write_video(pixels, path, fps=fps)
    back = read_video(path)
    assert back.frames.shape == pixels.shape
    assert np.abs(back.frames.astype(int) - pixels).max() <= 6
    if num_frames > 1:  # one frame has no rate
        tick_s = {".gif": 0.005, ".webp": 0.0005, ".mp4": 1e-6}[suffix]
        assert num_frames / back.fps == pytest.approx(num_frames / fps, abs=tick_s + 1e-9)


@pytest.mark.parametrize("suffix", FLOORS)
@pytest.mark.parametrize("colour", [(255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255), (0, 0, 0), (180, 90, 40)])
def test_colours_read_back(tmp_path, suffix, colour):
    pixels = np.broadcast_to(np.array(colour, np.uint8), (3, 32, 48, 3))
    path = tmp_path / f"a{suffix}"
    write_video(pixels, path, fps=8)
    assert np.abs(read_video(path).frames.astype(int) - colour).max() <= 4


def test_mp4_is_what_players_expect(tmp_path):
    path = tmp_path / "a.mp4"
    write_video(clip(20, 64, 96), path, fps=24, record={"seed": 1})
    data = path.read_bytes()
    order = list(boxes(data))
    assert order[0] == "ftyp" and order.index("moov") < order.index("mdat")
    with av.open(BytesIO(data), format="mp4") as container:
        stream = container.streams.video[0]
        codec = stream.codec_context
        assert (codec.name, codec.pix_fmt, stream.average_rate) == ("h264", "yuv420p", Fraction(24))
        assert stream.frames == 20
        assert (codec.colorspace, codec.color_primaries, codec.color_trc, codec.color_range) == (1, 1, 1, 1)


@pytest.mark.parametrize("width, height, nearest", [(33, 32, "34x32"), (32, 17, "32x18"), (1, 1, "2x2")])
def test_mp4_of_an_odd_size_is_refused(tmp_path, width, height, nearest):
    with pytest.raises(BadRequestError, match=f"must be even, got {width}x{height}; nearest: {nearest}"):
        write_video(np.zeros((2, height, width, 3), np.uint8), tmp_path / "a.mp4", fps=8)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "suffix, fps", [(".gif", 51), (".mp4", 0), (".mp4", 241), (".webp", -1), (".mp4", float("nan"))]
)
def test_rates_that_no_player_keeps_are_refused(tmp_path, suffix, fps):
    with pytest.raises(BadRequestError, match="fps must be above 0 and at most"):
        write_video(clip(2, 16, 16), tmp_path / f"a{suffix}", fps=fps)


def test_what_is_no_clip_is_not_written(tmp_path):
    with pytest.raises(BadRequestError, match=r"'\.png'; a clip ends in \.mp4, \.webp or \.gif"):
        write_video(clip(2, 16, 16), tmp_path / "a.png", fps=8)
    with pytest.raises(BadMediaError, match="frames, height, width, 3"):
        write_video(picture(16, 16), tmp_path / "a.mp4", fps=8)
    with pytest.raises(BadMediaError, match="frames, height, width, 3"):
        write_video(np.zeros((0, 16, 16, 3), np.uint8), tmp_path / "a.mp4", fps=8)
    with pytest.raises(BadMediaError, match="not finite"):
        write_video(np.full((2, 16, 16, 3), np.nan, np.float32), tmp_path / "a.mp4", fps=8)
    with pytest.raises(BadMediaError, match="do not fit in webp"):
        write_video(np.zeros((2, 1, 20000, 3), np.uint8), tmp_path / "a.webp", fps=8)
    assert not list(tmp_path.iterdir())


def test_equal_frames_in_the_middle_are_kept(tmp_path):
    frames = clip(4, 32, 32)[[0, 1, 1, 1, 2, 3]]
    for suffix in (".gif", ".webp"):
        write_video(frames, tmp_path / f"a{suffix}", fps=10)
        back = read_video(tmp_path / f"a{suffix}")
        assert back.fps == pytest.approx(10)
        assert psnr(back.frames, frames) > 22


def test_still_things_do_not_shimmer_in_a_gif(tmp_path):
    """The left half of every frame is equal; so it must be in what is read."""
    frames = clip(6, 48, 64)
    frames[:, :, :24] = frames[0, :, :24]
    write_video(frames, tmp_path / "a.gif", fps=10)
    back = read_video(tmp_path / "a.gif").frames
    assert (back[:, :, :24] == back[0, :, :24]).all()


# -- files that others made -------------------------------------------------------------------------------------------


def film(frames: np.ndarray, *, format: str = "mp4", codec: str = "libx264", pix_fmt: str = "yuv420p") -> bytes:
    """A plain file of FFmpeg's, without colour tags."""
    buffer = BytesIO()
    with av.open(buffer, "w", format=format) as container:
        stream = container.add_stream(codec, rate=10)
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = pix_fmt
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode(None))
    return buffer.getvalue()


@pytest.mark.parametrize(
    "format, codec", [("mp4", "libx264"), ("mov", "libx264"), ("webm", "libvpx-vp9"), ("matroska", "libx264")]
)
def test_containers(format, codec):
    frames = clip(6, 64, 64)
    back = read_video(film(frames, format=format, codec=codec))
    assert back.fps == 10 and psnr(back.frames, frames) > 24


def test_untagged_clips_follow_the_players_convention():
    """Small ones are BT.601, as swscale encodes when nothing is said."""
    red = np.zeros((2, 64, 64, 3), np.uint8)
    red[..., 0] = 255
    assert np.abs(read_video(film(red)).frames.astype(int) - (255, 0, 0)).max() <= 4


def test_large_untagged_clips_are_bt709():
    # Y, Cb and Cr of pure red in limited-range BT.709 (ITU-R BT.709-6, items 3.2 to 3.4).
    planes = np.concatenate([np.full(720 * 1280, 63), np.full(360 * 640, 102), np.full(360 * 640, 240)]).astype(
        np.uint8
    )
    buffer = BytesIO()
    with av.open(buffer, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=10, options={"preset": "ultrafast"})
        stream.width, stream.height, stream.pix_fmt = 1280, 720, "yuv420p"
        frame = av.VideoFrame.from_ndarray(planes.reshape(1080, 1280), format="yuv420p")
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    assert np.abs(read_video(buffer.getvalue()).frames.astype(int) - (255, 0, 0)).max() <= 4


def turned(data: bytes, matrix: tuple[int, int, int, int]) -> bytes:
    """An MP4 with the (a, b, c, d) of its track's display matrix replaced (ISO/IEC 14496-12, section 8.3.2)."""
    start = data.index(b"tkhd") + 4 + 4 + 20 + 16
    a, b, c, d = ((value * 65536).to_bytes(4, "big", signed=True) for value in matrix)
    fields = bytearray(data)
    fields[start : start + 8] = a + b
    fields[start + 12 : start + 20] = c + d
    return bytes(fields)


@pytest.mark.parametrize("matrix, quarters", [((0, 1, -1, 0), -1), ((-1, 0, 0, -1), 2), ((0, -1, 1, 0), 1)])
def test_clips_of_a_turned_phone_are_upright(matrix, quarters):
    frames = clip(2, 48, 64)
    plain = film(frames)
    stored = read_video(plain).frames
    back = read_video(turned(plain, matrix)).frames
    # A point (x, y) is shown at (a x + c y, b x + d y): the first matrix takes the top edge to the right.
    np.testing.assert_array_equal(back, np.rot90(stored, k=quarters, axes=(1, 2)))


def test_frames_that_last_unequally_are_repeated():
    frames = [Image.fromarray(picture(16, 16, seed=seed)) for seed in range(3)]
    buffer = BytesIO()
    frames[0].save(buffer, "gif", save_all=True, append_images=frames[1:], duration=[100, 300, 50], loop=0)
    back = read_video(buffer.getvalue())
    assert back.fps == pytest.approx(20) and len(back.frames) == 9
    changes = np.abs(np.diff(back.frames.astype(int), axis=0)).max(axis=(1, 2, 3)) > 0
    assert changes.nonzero()[0].tolist() == [1, 7]


def test_transparent_animations_show_white():
    frames = [Image.new("RGBA", (8, 8), (200, 0, 0, alpha)) for alpha in (0, 255)]
    for format, options in (("gif", {"disposal": 2}), ("webp", {"lossless": True, "exact": True})):
        buffer = BytesIO()
        frames[0].save(buffer, format, save_all=True, append_images=frames[1:], duration=100, **options)
        back = read_video(buffer.getvalue()).frames
        assert back[0].min() == 255
        assert np.abs(back[1].astype(int) - (200, 0, 0)).max() <= 4


# -- files that are not what they should be ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("written")
    for suffix in FLOORS:
        write_video(clip(6, 32, 48), folder / f"a{suffix}", fps=10)
    return {suffix: (folder / f"a{suffix}").read_bytes() for suffix in FLOORS}


@pytest.mark.parametrize("suffix", FLOORS)
def test_limits(monkeypatch, written, suffix):
    assert len(read_video(written[suffix], max_frames=6).frames) == 6
    with pytest.raises(BadMediaError, match="too long: more than 5 frames"):
        read_video(written[suffix], max_frames=5)
    monkeypatch.setattr(videos, "MAX_CLIP_PIXELS", 4 * 32 * 48)
    with pytest.raises(BadMediaError, match="too large: at 48x32, at most 4 frames"):
        read_video(written[suffix])


def test_repeats_count_as_frames():
    buffer = BytesIO()
    frames = [Image.new("L", (4, 4), value) for value in (0, 255)]
    frames[0].save(buffer, "gif", save_all=True, append_images=frames[1:], duration=[10, 600_000])
    with pytest.raises(BadMediaError, match="too long"):
        read_video(buffer.getvalue())


@pytest.mark.parametrize("suffix", FLOORS)
@pytest.mark.parametrize("kept", [0.3, 0.6, 0.9, 0.999])
def test_truncated_clips_are_not_shorter_clips(written, suffix, kept):
    with pytest.raises(BadMediaError, match=r"truncated|damaged"):
        read_video(written[suffix][: int(len(written[suffix]) * kept)])


@pytest.mark.parametrize("format, codec", [("webm", "libvpx-vp9"), ("matroska", "libx264")])
def test_truncated_webm(format, codec):
    data = film(clip(6, 32, 32), format=format, codec=codec)
    with pytest.raises(BadMediaError, match=f"truncated: it has {len(data) - 1} of {len(data)} bytes"):
        read_video(data[:-1])


def test_a_gif_cut_between_two_frames(written):
    data = written[".gif"]
    assert data.endswith(b"\0;")
    with pytest.raises(BadMediaError, match="truncated: its end is missing"):
        read_video(data[:-1])


@pytest.mark.parametrize("suffix", FLOORS)
def test_bytes_after_the_end_are_ignored(written, suffix):
    back = read_video(written[suffix] + b"\xffand more" * 9)
    np.testing.assert_array_equal(back.frames, read_video(written[suffix]).frames)


@pytest.mark.parametrize(
    "content, words",
    [
        (b"", "is empty"),
        (b"#EXTM3U\n#EXTINF:1,\nfile:///etc/hostname\n", "is a text file; a clip is MP4, MOV, WebM, GIF or WebP"),
        (b"ffconcat version 1.0\nfile /etc/hostname\n", "is a text file"),
        (b"\x89PNG\r\n\x1a\n", "is a PNG file"),
        (b"\0\0\0\x18ftypheic\0\0\0\0", "a HEIC or AVIF picture"),
        (b"\0\0\0\x0cftypisom", "is damaged"),
        (b"\x1a\x45\xdf\xa3", "is damaged"),
        (b"\x1a\x45\xdf\xa3\x80\x18\x53\x80\x67\x80", "is damaged"),
    ],
)
def test_what_is_no_clip_is_refused(tmp_path, content, words):
    path = tmp_path / "a.mp4"
    path.write_bytes(content)
    with pytest.raises(BadMediaError, match=words) as caught:
        read_video(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_sound_alone_is_no_clip():
    buffer = BytesIO()
    with av.open(buffer, "w", format="mp4") as container:
        stream = container.add_stream("aac", rate=8000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
        frame.rate = 8000
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    with pytest.raises(BadMediaError, match="has no video stream"):
        read_video(buffer.getvalue())


def test_a_film_that_claims_a_huge_frame(written):
    data = bytearray(written[".mp4"])
    at = data.rindex(b"avc1") + 4 + 24
    assert data[at : at + 4] == bytes([0, 48, 0, 32])
    data[at : at + 4] = b"\xff\xff\xff\xff"
    back_or_error = None
    try:
        back_or_error = read_video(bytes(data)).frames.shape
    except BadMediaError as error:
        assert "too large" in str(error)
    # The coded size may win over the claimed one; the claimed one must never be allocated.
    assert back_or_error in (None, (6, 32, 48, 3))


def test_the_decoder_has_the_limit_too(monkeypatch, written):
    """The frames inside may be larger than the container says."""
    monkeypatch.setattr(untrusted, "MAX_PIXELS", 1000)
    monkeypatch.setattr(videos, "check_pixels", lambda *size, name: None)
    with pytest.raises(BadMediaError, match=r"is damaged|has no frames|has no video"):
        read_video(written[".mp4"])


def test_metadata_that_is_no_text_does_not_matter(tmp_path):
    write_video(clip(2, 16, 16), tmp_path / "a.mp4", fps=8, record={"key": "ABCD"})
    broken = (tmp_path / "a.mp4").read_bytes().replace(b"ABCD", b"A\xff\xfeD")
    assert len(read_video(broken).frames) == 2


def test_a_gif_that_claims_a_huge_canvas(written):
    data = bytearray(written[".gif"])
    data[6:10] = b"\xff\xff\xff\xff"
    with pytest.raises(BadMediaError, match="too large: 65535x65535"):
        read_video(bytes(data))
