"""Canonical texts and the hashes over them."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

from protocol import jsjson
from protocol.canonical import canonical_manifest, canonical_request, manifest_hash, request_hash
from protocol.manifest import ManifestInvalid, validate_agent_manifest
from protocol.workflow import validate_workflow_v2
from tests.vectors.case import Case, judge
from tests.vectors.files import records

KINDS = ("canonical", "request_hash", "manifest_hash")


def run(kind: str, path: Path) -> Iterator[Case]:
    """The cases of one file."""
    check = {"canonical": _canonical, "request_hash": _request_hash, "manifest_hash": _manifest_hash}[kind]
    for line, record in records(path):
        yield judge(f"{line} {record.get('name', '')}".strip(), check(record))


def _canonical(record: dict[str, Any]) -> str | None:
    parsed = jsjson.parse(record["json"])
    text = canonical_request(parsed.value)
    if text.decode() != record["text"]:
        return f"request form {text.decode()}, not {record['text']}"
    if canonical_request(parsed.value, plain=parsed.plain) != text:
        return "the two writers disagree"
    if sha256(text).hexdigest() != record["sha256"]:
        return "another hash over the same text"
    manifest_text = canonical_manifest(parsed.value).decode()
    if manifest_text != record["manifestText"]:
        return f"manifest form {manifest_text}, not {record['manifestText']}"
    if sha256(manifest_text.encode()).hexdigest() != record["manifestSha256"]:
        return "another hash over the same manifest text"
    return None


def _request_hash(record: dict[str, Any]) -> str | None:
    got = request_hash(record["effect"])
    return None if got == record["requestHash"] else f"hash {got}, not {record['requestHash']}"


def _manifest_hash(record: dict[str, Any]) -> str | None:
    manifest = record["manifest"]
    is_workflow = isinstance(manifest, dict) and manifest.get("kind") == "workflow"
    try:
        (validate_workflow_v2 if is_workflow else validate_agent_manifest)(manifest)
    except ManifestInvalid as error:
        return f"refused: {error}" if record["valid"] else None
    if not record["valid"]:
        return "accepted, and should be refused"
    got = manifest_hash(manifest)
    return None if got == record["hash"] else f"hash {got}, not {record['hash']}"
