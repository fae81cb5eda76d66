"""A saved trajectory goes on as if it had never stopped, and anything else than what was written is refused."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save as tensors_to_bytes

from petzval import __version__
from petzval.errors import TrajectoryFileError
from petzval.sampling.samplers import SAMPLERS
from petzval.sampling.trajectory import Trajectory
from petzval.sampling.trajectory_file import BLANK, METADATA_KEY, from_bytes, load, save, to_bytes
from petzval.types import CheckpointId, InputImage
from tests.sampling.tiny_denoiser import CHECKPOINT, CPU, TinyDenoiser, digest, run, start

ROOT = Path(__file__).parents[2]
NUM_STEPS = 6
REFUSED = r"not a saved trajectory|truncated|altered|newer|has format"


@pytest.fixture(scope="module")
def model() -> TinyDenoiser:
    return TinyDenoiser()


@pytest.fixture(scope="module")
def midway(model: TinyDenoiser) -> Trajectory:
    return run(start(sampler="unipc-3", size=(2, 2)), model, num_steps=3)


def in_new_process(paths: list[Path]) -> dict[str, str]:
    """The digests of the latents that a process of its own ends at."""
    command = [sys.executable, "-m", "tests.sampling.tiny_denoiser", *map(str, paths)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    finished: dict[str, str] = json.loads(result.stdout)
    return finished


# -- stop and go on ---------------------------------------------------------------------------------------------------


def test_saved_at_any_step_it_ends_bit_identical_in_a_new_process(model: TinyDenoiser, tmp_path: Path) -> None:
    """Every sampler, with and without guidance and an input image, stopped before each of its steps and at its end."""
    expected: dict[str, str] = {}
    for number, sampler in enumerate(SAMPLERS):
        options: dict[str, Any] = {
            "sampler": sampler,
            "guidance_scale": 1.0 if number % 3 == 0 else 3.0,
            "strength": 0.7 if number % 4 == 1 else None,
            "seed": number,
            "size": ((3, 5), (2, 2))[number % 2],
        }
        end = digest(run(start(**options), model))
        stopped = start(**options)
        while True:
            path = tmp_path / f"{sampler}-{stopped.step}.trajectory"
            save(stopped, path)
            expected[str(path)] = end
            if stopped.done:
                break
            run(stopped, model, num_steps=1)
    assert len(expected) > NUM_STEPS * len(SAMPLERS) // 2
    assert in_new_process([Path(path) for path in expected]) == expected


@settings(max_examples=20)
@given(
    st.text(),
    st.dictionaries(st.text(min_size=1), st.sampled_from(["bf16", "f16", "i64", "bool", "empty", "scalar", "strided"])),
)
def test_everything_comes_back(model: TinyDenoiser, prompt: str, kinds: dict[str, str]) -> None:
    tensors = {
        "bf16": torch.randn(2, 3).bfloat16(),
        "f16": torch.randn(2).half(),
        "i64": torch.arange(4),
        "bool": torch.tensor([True, False]),
        "empty": torch.empty(0, 3),
        "scalar": torch.tensor(2.5, dtype=torch.float64),
        "strided": torch.randn(4, 6)[::2].T.expand(2, 6, 2),
    }
    before = run(start(prompt=prompt), model, num_steps=2)
    before.conditioning |= {name: tensors[kind] for name, kind in kinds.items()}
    after = from_bytes(to_bytes(before), CHECKPOINT, CPU)
    assert after.plan == before.plan
    assert (after.step, after.invariants) == (before.step, None)
    assert torch.equal(after.latents, before.latents)
    assert torch.equal(after.noise.state(), before.noise.state())
    assert after.conditioning.keys() == before.conditioning.keys()
    for name, tensor in before.conditioning.items():
        assert after.conditioning[name].dtype == tensor.dtype
        assert torch.equal(after.conditioning[name], tensor)
    assert after.history.series.keys() == before.history.series.keys()
    for name, entries in before.history.series.items():
        pairs = zip(after.history.series[name], entries, strict=True)
        assert all(a == b and torch.equal(x, y) for (a, x), (b, y) in pairs)


def test_an_input_image_is_saved_by_its_digest_alone(midway: Trajectory) -> None:
    secret = b"the bytes of a picture, which are nobody's business"
    request = dataclasses.replace(midway.plan.request, images=(InputImage.of(secret),))
    with_image = dataclasses.replace(midway, plan=dataclasses.replace(midway.plan, request=request))
    blob = to_bytes(with_image)
    assert secret not in blob
    (image,) = from_bytes(blob, CHECKPOINT, CPU).plan.request.images
    assert (image.sha256, image.data) == (hashlib.sha256(secret).hexdigest(), None)


def test_the_same_trajectory_gives_the_same_bytes(midway: Trajectory, tmp_path: Path) -> None:
    save(midway, tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == to_bytes(midway) == to_bytes(from_bytes(to_bytes(midway), CHECKPOINT, CPU))


def test_no_prompt_can_pass_itself_off_as_the_digest(midway: Trajectory) -> None:
    for prompt in (f'"contents_digest":"{BLANK}', f'{{"contents_digest":"{BLANK}"', r"{\"contents_digest\":\"" + BLANK):
        request = dataclasses.replace(midway.plan.request, prompt=prompt)
        posing = dataclasses.replace(midway, plan=dataclasses.replace(midway.plan, request=request))
        assert from_bytes(to_bytes(posing), CHECKPOINT, CPU).plan.request.prompt == prompt


def test_other_readers_can_look_inside(midway: Trajectory, tmp_path: Path) -> None:
    from safetensors import safe_open

    save(midway, tmp_path / "a.safetensors")
    with safe_open(tmp_path / "a.safetensors", framework="pt") as file:
        header = json.loads(file.metadata()[METADATA_KEY])
        assert torch.equal(file.get_tensor("latents"), midway.latents)
    assert (header["format"], header["petzval"], header["step"]) == (1, __version__, 3)
    assert header["history"] == {"denoised": [0, 1, 2], "latents": [2]}


# -- refused ----------------------------------------------------------------------------------------------------------


def signed_again(blob: bytes, old: str, new: str) -> bytes:
    """What another program would write: the header changed, and a digest that fits it."""
    size = int.from_bytes(blob[:8], "little")
    outer = json.loads(blob[8 : 8 + size])
    text = outer["__metadata__"][METADATA_KEY]
    digest_before = json.loads(text)["contents_digest"]
    assert text.count(old) == 1
    outer["__metadata__"][METADATA_KEY] = text.replace(old, new).replace(digest_before, BLANK)
    header = json.dumps(outer, separators=(",", ":"), ensure_ascii=False).encode()
    header += b" " * (-len(header) % 8)
    changed = len(header).to_bytes(8, "little") + header + blob[8 + size :]
    return changed.replace(BLANK.encode(), hashlib.sha256(changed).hexdigest().encode(), 1)


def check_refused(blob: bytes, message: str, checkpoint: CheckpointId = CHECKPOINT) -> None:
    with pytest.raises(TrajectoryFileError, match=message) as caught:
        from_bytes(blob, checkpoint, CPU, source="night.trajectory")
    assert str(caught.value).startswith("night.trajectory ")
    assert caught.value.code == "bad_trajectory"


def test_signing_again_gives_a_good_file(midway: Trajectory) -> None:
    """So that the tests below are refused for what they change and not for how they change it."""
    blob = to_bytes(midway)
    assert signed_again(blob, '"step":3', '"step":3') == blob
    assert from_bytes(signed_again(blob, '"step":3', '"step":2'), CHECKPOINT, CPU).step == 2


def test_truncated_anywhere_it_is_refused(midway: Trajectory) -> None:
    blob = to_bytes(midway)
    header_end = 8 + int.from_bytes(blob[:8], "little")
    lengths = {*range(80), *range(80, header_end, 37), *range(header_end - 5, header_end + 200), len(blob) - 1}
    for length in sorted(lengths | set(range(header_end, len(blob), 61))):
        check_refused(blob[:length], "is truncated")


def test_a_flipped_bit_anywhere_is_refused(midway: Trajectory) -> None:
    blob = bytearray(to_bytes(midway))
    header_end = 8 + int.from_bytes(blob[:8], "little")
    places = {*range(80), *range(80, header_end, 5), *range(header_end, len(blob), 41), len(blob) - 1}
    for number, place in enumerate(sorted(places)):
        blob[place] ^= 1 << number % 8
        check_refused(bytes(blob), REFUSED)
        blob[place] ^= 1 << number % 8
    from_bytes(bytes(blob), CHECKPOINT, CPU)


def test_changed_contents_are_called_altered(midway: Trajectory) -> None:
    blob = to_bytes(midway)
    check_refused(blob.replace(b"a fox", b"a cat"), "was altered: its contents do not match their digest")
    check_refused(blob + b"\0", "was altered")
    check_refused(blob[:-1] + bytes([blob[-1] ^ 1]), "was altered")
    check_refused(blob.replace(b"contents_digest", b"contents_Digest"), "was altered")
    check_refused(blob.replace(b"data_offsets", b"date_offsets", 1), "was altered: its header cannot be read")
    check_refused(blob[:7] + b"\x7f" + blob[8:], "was altered: it says that its header is")


@pytest.mark.parametrize(
    "blob",
    [
        b"\x89PNG\r\n\x1a\n" + bytes(64),
        b"a long text that is about something else",
        tensors_to_bytes({"latents": torch.zeros(3)}),
        tensors_to_bytes({"latents": torch.zeros(3)}, metadata={"format": "pt"}),
    ],
    ids=["picture", "text", "weights", "weights with metadata"],
)
def test_another_kind_of_file_is_not_a_trajectory(blob: bytes) -> None:
    check_refused(blob, "is not a saved trajectory")


def test_a_newer_format_is_refused_by_its_number(midway: Trajectory) -> None:
    newer = signed_again(to_bytes(midway), '"format":1', '"format":2')
    check_refused(newer, rf"has format 2, written by Petzval {__version__}; this version reads formats up to 1")
    check_refused(signed_again(to_bytes(midway), '"format":1', '"format":0'), "format 0 never existed")


def test_another_checkpoint_is_refused_by_name(midway: Trajectory) -> None:
    blob = to_bytes(midway)
    renamed = dataclasses.replace(CHECKPOINT, name="/models/a copy of it")
    assert from_bytes(blob, renamed, CPU).step == 3
    for other in (dataclasses.replace(CHECKPOINT, fingerprint="f" * 16), dataclasses.replace(CHECKPOINT, family="wan")):
        check_refused(blob, rf"was made by another checkpoint: tiny/denoiser \(tiny, .*{other.fingerprint[:12]}", other)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"sampler":"unipc-3","sigmas"', '"sampler":"unipc-9","sigmas"', "uses sampler 'unipc-9', which this version"),
        ('"step":3', '"step":7', "step 7 is outside the schedule"),
        ('"step":3', '"step":-1', "step -1 is outside the schedule"),
        ('"latents":[2]', '"latents":[1,2]', "does not hold a complete trajectory"),
        ('"timesteps"', '"timestamps"', "does not hold a complete trajectory"),
        ('"history"', '"memories"', "does not hold a complete trajectory"),
    ],
)
def test_what_this_version_cannot_run_is_refused(midway: Trajectory, old: str, new: str, message: str) -> None:
    check_refused(signed_again(to_bytes(midway), old, new), message)


def test_an_unreadable_path_is_named(tmp_path: Path) -> None:
    with pytest.raises(TrajectoryFileError, match=r"nowhere cannot be read: No such file"):
        load(tmp_path / "nowhere", CHECKPOINT, CPU)
    with pytest.raises(TrajectoryFileError, match="cannot be read: Is a directory"):
        load(tmp_path, CHECKPOINT, CPU)


# -- written whole or not at all --------------------------------------------------------------------------------------

FULL_DISK = """
import resource, sys
from tests.sampling.tiny_denoiser import start
from petzval.sampling.trajectory_file import save
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    save(start(seed=2), sys.argv[1])
except OSError as error:
    sys.exit(f"refused: {error.strerror}")
"""


def test_a_full_disk_leaves_the_old_file_whole(midway: Trajectory, tmp_path: Path) -> None:
    path = tmp_path / "night.trajectory"
    save(midway, path)
    before = path.read_bytes()
    assert len(before) > 4096
    result = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(path)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stderr.strip()) == (1, "refused: File too large")
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == [path.name], "nothing half-written is left"


def test_an_interrupt_leaves_the_old_file_whole(
    midway: Trajectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "night.trajectory"
    save(midway, path)
    before = path.read_bytes()

    def interrupted(handle: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save(start(seed=2), path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == [path.name]


def test_a_target_that_cannot_be_replaced_leaves_nothing_behind(midway: Trajectory, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        save(midway, tmp_path / "folder")
    with pytest.raises(FileNotFoundError):
        save(midway, tmp_path / "no such folder" / "night.trajectory")
    assert os.listdir(tmp_path) == ["folder"]


def test_a_new_save_replaces_the_old_one(midway: Trajectory, model: TinyDenoiser, tmp_path: Path) -> None:
    path = tmp_path / "night.trajectory"
    save(start(size=(2, 2)), path)
    save(midway, str(path))
    assert digest(load(path, CHECKPOINT, CPU)) == digest(midway)
