"""The record of a generation inside its file: how each format carries it, and reading it back."""

import html
import json
import re
from typing import Any

from petzval.errors import BadMediaError
from petzval.media.untrusted import Source, format_of, load, name_of, open_container, open_picture, untrusted

Record = dict[str, Any]

KEY = "petzval"
SOFTWARE = "Petzval"

_COMMENT_MARK = b"petzval "
_XMP = (
    '<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">'
    '<rdf:Description rdf:about="" xmlns:xmp="http://ns.adobe.com/xap/1.0/" xmlns:petzval="urn:petzval:record:1"'
    ' xmp:CreatorTool="{software}" petzval:record="{text}"/></rdf:RDF></x:xmpmeta>'
)
_XMP_RECORD = re.compile(rb'petzval:record="([^"]*)"')


def to_text(record: Record) -> str:
    """A record as JSON. Raises TypeError or ValueError when it is not JSON-able (NaN and infinity are not)."""
    text = json.dumps(record, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # Half a surrogate pair has no UTF-8; as an escape inside the JSON string it survives.
    return text.encode("utf-8", errors="backslashreplace").decode("utf-8")


def to_comment(record: Record) -> bytes:
    """A record as the comment of a JPEG or GIF."""
    return _COMMENT_MARK + to_text(record).encode("utf-8")


def to_xmp(record: Record) -> bytes:
    """A record as the XMP packet of a WebP. ASCII alone: XML has no room for some characters that a prompt may have."""
    text = json.dumps(record, allow_nan=False, separators=(",", ":"))
    return _XMP.format(software=SOFTWARE, text=html.escape(text)).encode("ascii")


def read_record(source: Source, *, name: str = "file") -> Record:
    """The record that a PNG, JPEG, WebP, GIF or MP4 of ours carries. `name` is what messages call a source of bytes.

    Raises BadMediaError when the file is none of these or damaged, when it has no record (most editors and web sites
    remove it), or when the record is damaged.
    """
    name = name_of(source, name=name)
    data = load(source, name=name)
    with untrusted(name):
        text = _clip_text(data, name) if format_of(data) in ("mp4", "webm") else _picture_text(data, name)
    if text is None:
        raise BadMediaError(f"{name} has no Petzval record: it was not made by Petzval, or its metadata was removed")
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadMediaError(f"the Petzval record of {name} is damaged: {error}") from error
    if not isinstance(record, dict):
        raise BadMediaError(f"the Petzval record of {name} is damaged: it is not a JSON object")
    return record


def _clip_text(data: bytes, name: str) -> str | None:
    with open_container(data, name=name) as container:
        return container.metadata.get(KEY)


def _picture_text(data: bytes, name: str) -> str | bytes | None:
    picture = open_picture(data, name=name)
    if picture.format == "PNG" and KEY not in picture.info:
        picture.load()  # other programs write text after the pixels
    if picture.format == "PNG":
        text = picture.info.get(KEY)
        return str(text) if text is not None else None
    comment, xmp = picture.info.get("comment"), picture.info.get("xmp")
    if isinstance(comment, bytes) and comment.startswith(_COMMENT_MARK):
        return comment.removeprefix(_COMMENT_MARK)
    if isinstance(xmp, bytes) and (match := _XMP_RECORD.search(xmp)):
        return html.unescape(match[1].decode("ascii"))
    return None
