"""Every error Petzval raises on purpose: a class per cause, each with a stable code."""


class PetzvalError(Exception):
    """Base of every error we raise on purpose. `code` is stable; the message is for people."""

    code = "internal"


class BadRequestError(PetzvalError):
    """The caller asked for something that cannot be done as asked; the message names what is allowed."""

    code = "bad_request"


class BadMediaError(BadRequestError):
    """A picture or clip that was handed in is damaged, too large, or not what it says it is."""

    code = "bad_media"


class CheckpointError(PetzvalError):
    """A checkpoint is missing, incomplete, or does not fit the family that should load it."""

    code = "bad_checkpoint"


class TrajectoryFileError(PetzvalError):
    """A saved trajectory is truncated, altered, of another checkpoint, or of a newer format."""

    code = "bad_trajectory"


class UnavailableError(PetzvalError):
    """A named device, op row or optional package cannot be used here; the message says why."""

    code = "unavailable"


class NotFiniteError(PetzvalError):
    """Numbers that should make a picture, a clip or a step are infinite or not numbers: nothing is made of them."""

    code = "not_finite"


class OutOfMemoryError(PetzvalError):
    """This request does not fit on this device."""

    code = "out_of_memory"
