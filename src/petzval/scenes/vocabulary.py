"""The words of the scenes: which subjects, backgrounds, sizes, positions and motions exist, and how they look."""

from typing import Final

SUBJECT_GLYPHS: Final[dict[str, str]] = {
    "fox": "\U0001f98a",
    "lion": "\U0001f981",
    "pig": "\U0001f437",
    "panda": "\U0001f43c",
    "frog": "\U0001f438",
    "whale": "\U0001f433",
    "octopus": "\U0001f419",
    "crab": "\U0001f980",
    "turtle": "\U0001f422",
    "butterfly": "\U0001f98b",
    "ladybug": "\U0001f41e",
    "owl": "\U0001f989",
    "penguin": "\U0001f427",
    "chick": "\U0001f424",
    "elephant": "\U0001f418",
    "snail": "\U0001f40c",
    "fish": "\U0001f420",
    "unicorn": "\U0001f984",
    "parrot": "\U0001f99c",
    "flamingo": "\U0001f9a9",
    "rose": "\U0001f339",
    "sunflower": "\U0001f33b",
    "cactus": "\U0001f335",
    "palm tree": "\U0001f334",
    "mushroom": "\U0001f344",
    "strawberry": "\U0001f353",
    "apple": "\U0001f34e",
    "pineapple": "\U0001f34d",
    "watermelon": "\U0001f349",
    "grapes": "\U0001f347",
    "carrot": "\U0001f955",
    "pizza": "\U0001f355",
    "burger": "\U0001f354",
    "donut": "\U0001f369",
    "cake": "\U0001f382",
    "rocket": "\U0001f680",
    "car": "\U0001f697",
    "bus": "\U0001f68c",
    "sailboat": "\u26f5",
    "helicopter": "\U0001f681",
    "castle": "\U0001f3f0",
    "tent": "\u26fa",
    "star": "\u2b50",
    "moon": "\U0001f319",
    "guitar": "\U0001f3b8",
    "robot": "\U0001f916",
    "pumpkin": "\U0001f383",
    "soccer ball": "\u26bd",
}
"""Each subject's name and its character in the emoji font."""

PLURAL_SUBJECTS: Final = frozenset({"grapes"})
"""Subjects that take no "a" in a caption."""

DRAWN_BACKGROUNDS: Final = ("grass", "beach", "night sky", "mountains", "city street", "snow")

PLAIN_COLOURS: Final[dict[str, tuple[int, int, int]]] = {
    "red": (200, 48, 52),
    "orange": (238, 138, 44),
    "yellow": (244, 218, 96),
    "green": (74, 160, 84),
    "blue": (62, 112, 204),
    "purple": (128, 78, 172),
    "pink": (244, 168, 196),
    "gray": (132, 134, 138),
    "white": (246, 246, 244),
}
"""The plain backgrounds' sRGB colours."""

SUBJECTS: Final = tuple(SUBJECT_GLYPHS)
BACKGROUNDS: Final = DRAWN_BACKGROUNDS + tuple(f"plain {colour}" for colour in PLAIN_COLOURS)
SIZES: Final = ("small", "large")
POSITIONS: Final = ("left", "middle", "right")
MOTIONS: Final = ("left", "right", "up", "down", "grows", "shrinks", "bounces", "still")
NUM_VARIANTS: Final = 3
"""Drawings of each background that differ in small ways (where the clouds are, the shade of a plain colour)."""

ATTRIBUTES: Final = ("subject", "background", "size", "position", "motion")
"""What a caption can state and the judge can read."""
