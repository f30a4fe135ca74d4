"""What an artifact is called and of what type it is, when nobody says."""

from __future__ import annotations

import mimetypes
import re
from pathlib import PurePosixPath
from typing import Final

MAX_NAME_CHARS: Final = 255
_TYPE: Final = re.compile(r"[A-Za-z0-9!#$&^_.+-]{1,127}/[A-Za-z0-9!#$&^_.+-]{1,127}(\s*;[\x20-\x7e]{0,200})?")
# The same on every machine: the lists that a system keeps differ.
_TYPES: Final = mimetypes.MimeTypes(())
for _ending, _type in {
    ".md": "text/markdown",
    ".webp": "image/webp",
    ".yaml": "application/yaml",
    ".yml": "application/yaml",
    ".toml": "application/toml",
    ".jsonl": "application/jsonl",
    ".log": "text/plain",
}.items():
    _TYPES.add_type(_type, _ending)
BYTES_TYPE: Final = "application/octet-stream"
TEXT_TYPE: Final = "text/plain; charset=utf-8"


def name_of(path: str) -> str:
    """The last part of a path, cut to what a name may have."""
    return clean_name(PurePosixPath(path).name) or "artifact"


def clean_name(name: str) -> str:
    """The name without control characters and halves of surrogate pairs, at most MAX_NAME_CHARS long."""
    kept = "".join(c for c in name if c.isprintable() and not "\ud800" <= c <= "\udfff")
    return kept.strip()[:MAX_NAME_CHARS]


def type_of(name: str, fallback: str = BYTES_TYPE) -> str:
    """The media type that a name's ending stands for."""
    return _TYPES.guess_type(name)[0] or fallback


def is_media_type(text: str) -> bool:
    """Whether the text is `type/subtype` with nothing but printable parameters."""
    return _TYPE.fullmatch(text) is not None
