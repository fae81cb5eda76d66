"""Contact sheets: many pictures as one, for galleries, sample grids and reports.

Shapes: H height, W width, C channels (RGB).
"""

from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from petzval.errors import BadRequestError
from petzval.media.images import Bytes8, Pixels, to_uint8

_GAP = 4
_FONT_SIZE = 12
_LINE_HEIGHT = 15
_MAX_LINES = 3

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


def contact_sheet(pictures: Sequence[Pixels], *, columns: int, captions: Sequence[str] | None = None) -> Bytes8:
    """Pictures side by side on white, row by row, each with its caption below: uint8 HWC.

    Each picture is HWC, uint8 or floats in [0, 1]; smaller ones are centred in cells of the largest. A caption is
    broken into at most three lines of its cell's width, and then cut. Raises BadRequestError for no pictures, fewer
    than one column, or captions that do not match.
    """
    if not pictures:
        raise BadRequestError("pictures must have at least one picture, got none")
    if columns < 1:
        raise BadRequestError(f"columns must be at least 1, got {columns}")
    if captions is not None and len(captions) != len(pictures):
        raise BadRequestError(f"captions must be one for each of {len(pictures)} pictures, got {len(captions)}")
    tiles = [Image.fromarray(to_uint8(picture)) for picture in pictures]
    columns = min(columns, len(tiles))
    width, height = max(tile.width for tile in tiles), max(tile.height for tile in tiles)
    font = ImageFont.load_default(size=_FONT_SIZE)
    texts = [_broken(caption, width=width, font=font) for caption in captions or ()]
    text_height = max((len(lines) for lines in texts), default=0) * _LINE_HEIGHT
    rows = -(-len(tiles) // columns)
    pitch_x, pitch_y = width + _GAP, height + text_height + _GAP
    sheet = Image.new("RGB", (columns * pitch_x + _GAP, rows * pitch_y + _GAP), "white")
    draw = ImageDraw.Draw(sheet)
    for index, tile in enumerate(tiles):
        left, top = _GAP + index % columns * pitch_x, _GAP + index // columns * pitch_y
        sheet.paste(tile, (left + (width - tile.width) // 2, top + (height - tile.height) // 2))
        for line, text in enumerate(texts[index] if texts else ()):
            draw.text((left, top + height + 1 + line * _LINE_HEIGHT), text, fill="black", font=font)
    return np.array(sheet)


def _broken(caption: str, *, width: int, font: Font) -> list[str]:
    """A caption in lines that fit a width; what does not fit in the last one is cut."""
    lines: list[str] = []
    for word in caption.split():
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and (len(lines) == _MAX_LINES or font.getlength(longer) <= width):
            lines[-1] = longer
        else:
            lines.append(word)
    return [_cut(line, width=width, font=font) for line in lines]


def _cut(text: str, *, width: int, font: Font) -> str:
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(f"{text}...") > width:
        text = text[:-1]
    return f"{text}..." if text else ""
