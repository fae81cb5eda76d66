"""Makes the README's pictures with the bundled pocket checkpoint: `python docs/images/make.py`."""

from pathlib import Path

import numpy as np

from petzval.engine.build import load
from petzval.media.images import encode_image, to_uint8, write_image
from petzval.media.sheet import contact_sheet
from petzval.media.videos import write_video
from petzval.scenes.sample import judge_prompts
from petzval.tasks.generate import generate
from petzval.types import InputImage, Request

HERE = Path(__file__).parent


def enlarged(frames: np.ndarray) -> np.ndarray:
    return to_uint8(frames).repeat(2, axis=1).repeat(2, axis=2)


def main() -> None:
    model = load("pocket")
    captions = [caption.text for _, caption in judge_prompts(32, seed=7, video=False)]
    requests = [Request(task="text-to-image", prompt=text, seed=index) for index, text in enumerate(captions)]
    pictures = [
        result.pixels_THWC[0] for start in range(0, 32, 8) for result in generate(model, requests[start : start + 8])
    ]
    write_image(contact_sheet(pictures, columns=8, captions=captions), HERE / "scenes.png", record=None)
    rocket = Request(task="text-to-video", prompt="a large rocket flies up, the night sky", seed=7)
    write_video(enlarged(generate(model, rocket).pixels_THWC), HERE / "rocket.webp", fps=8, record=None)
    fox = generate(model, Request(task="text-to-image", prompt="a large fox on the left, a beach", seed=7)).pixels_THWC
    start = InputImage.of(encode_image(fox[0], format="png"))
    moves = Request(task="image-to-video", prompt="the fox moves right", seed=7, images=(start,))
    write_video(enlarged(generate(model, moves).pixels_THWC), HERE / "fox.webp", fps=8, record=None)
    frames = [*generate(model, rocket).pixels_THWC[::2], *generate(model, moves).pixels_THWC[::2]]
    write_image(contact_sheet(frames, columns=5), HERE / "clips.png", record=None)


if __name__ == "__main__":
    main()
