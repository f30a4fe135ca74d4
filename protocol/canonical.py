"""The two canonical forms and the hashes over them (agent-engine 1.1 to 1.3, harness-api 7)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from protocol.collation import collated
from protocol.jsjson import STRICT, RawJson, to_utf8, write
from protocol.jsonread import is_plain
from protocol.utf16 import utf16_sort_key


def canonical_request(value: Any, *, plain: bool = False) -> bytes:
    """The form that effect requests are hashed over: keys by UTF-16 code unit, no spaces, UTF-8.

    `plain` as for `jsjson.dumps`. A RawJson inside must hold canonical text.
    """
    if plain or is_plain(value):
        try:
            return orjson.dumps(value, _fragment, STRICT | orjson.OPT_SORT_KEYS)
        except orjson.JSONEncodeError:
            pass
    return to_utf8("".join(write(value, _code_unit_members)))


def _fragment(value: object) -> orjson.Fragment:
    if isinstance(value, RawJson):
        return orjson.Fragment(value.text)
    raise TypeError(f"{type(value).__name__} is not a JSON value")


def _code_unit_members(members: dict[str, Any]) -> Iterable[tuple[str, Any]]:
    if all(map(str.isascii, members)):
        return [(key, members[key]) for key in sorted(members)]
    return [(key, members[key]) for key in sorted(members, key=utf16_sort_key)]


def canonical_manifest(value: Any) -> bytes:
    """The form that manifests are hashed over: keys in locale order (see `collation`)."""
    return to_utf8("".join(write(value, _locale_members)))


def _locale_members(members: dict[str, Any]) -> Iterable[tuple[str, Any]]:
    return [(key, members[key]) for key in collated(members)]


def request_hash(effect: Mapping[str, Any]) -> str:
    """The request hash of a whole effect, with a model call's `input`; a delegation's context is left out."""
    identity = dict(effect)
    if identity.get("kind") == "delegation":
        identity.pop("context", None)
    return hash_pieces([canonical_request(identity)])


def hash_pieces(pieces: Iterable[bytes]) -> str:
    """Lower-case hex SHA-256 of the pieces in a row."""
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


def manifest_hash(manifest: Mapping[str, Any]) -> str:
    """The hash of a manifest as it was received."""
    return hashlib.sha256(canonical_manifest(dict(manifest))).hexdigest()
