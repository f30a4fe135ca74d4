"""Definitions shared between runs: manifests checked and hashed once, schemas compiled once."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from gateway.engine.agent.definition import AgentDefinition, build_definition
from gateway.engine.contract import EngineRefused
from protocol.canonical import manifest_hash
from protocol.jsjson import dumps_bytes
from protocol.manifest import ManifestInvalid, validate_agent_manifest
from protocol.workflow import validate_workflow

T = TypeVar("T")

DEFINITION_CACHE_BYTES: Final = 64 * 1024 * 1024
"""What the cache may hold, by estimate: enough for a thousand agents of 10 KB, small beside one process."""

_OBJECTS_PER_TEXT: Final = 6
"""Parsed JSON takes about so many bytes for one of its text."""


@dataclass(frozen=True, slots=True)
class AgentManifest:
    """A valid manifest, the object that all runs of it share, and its hash."""

    document: Mapping[str, Any]
    hash: str
    key: bytes
    size: int


@dataclass(frozen=True, slots=True)
class WorkflowManifest:
    """A valid workflow, the object that all runs of it share, its hash and its schema version."""

    document: Mapping[str, Any]
    hash: str
    version: int


class DefinitionCache:
    """Keeps the least recently used definitions out once they exceed `max_bytes` (an estimate)."""

    def __init__(self, max_bytes: int = DEFINITION_CACHE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._held: OrderedDict[bytes, tuple[Any, int]] = OrderedDict()
        self.bytes_held = 0

    def manifest(self, document: Mapping[str, Any]) -> AgentManifest:
        """The manifest, checked. Raises EngineRefused without a code (agent-engine 4.2, check 1)."""
        text = dumps_bytes(document, plain=True)
        key = b"m" + hashlib.sha256(text).digest()
        size = _OBJECTS_PER_TEXT * len(text)

        def make() -> tuple[AgentManifest, int]:
            try:
                validate_agent_manifest(document)
            except ManifestInvalid as error:
                raise EngineRefused(None, f"Invalid manifest: {error}") from None
            return AgentManifest(document, manifest_hash(document), key, size), size

        return self._kept(key, make)

    def workflow(self, document: Mapping[str, Any]) -> WorkflowManifest:
        """The workflow, checked. Raises EngineRefused without a code (flow-engine 1, step 1)."""
        text = dumps_bytes(document, plain=True)

        def make() -> tuple[WorkflowManifest, int]:
            try:
                version = validate_workflow(document)
            except ManifestInvalid as error:
                raise EngineRefused(None, f"Invalid workflow manifest: {error}") from None
            workflow = WorkflowManifest(document, manifest_hash(document), version)
            return workflow, _OBJECTS_PER_TEXT * len(text)

        return self._kept(b"w" + hashlib.sha256(text).digest(), make)

    def agent(self, manifest: AgentManifest, session_tools: Sequence[Any]) -> AgentDefinition:
        """The agent with its session tools. Raises EngineRefused (agent-engine 4.2, check 4)."""
        key = b"a" + manifest.key
        if session_tools:
            key += hashlib.sha256(dumps_bytes(session_tools, plain=True)).digest()

        def make() -> tuple[AgentDefinition, int]:
            definition = build_definition(manifest.document, session_tools, manifest.document["id"])
            return definition, definition.size()

        return self._kept(key, make)

    def child(
        self, manifest: Mapping[str, Any], session_tools: Sequence[Any], root_agent_id: str
    ) -> AgentDefinition:
        """An agent used as a tool, with the session tools that are its own; its manifest is a part of a
        valid one. Raises EngineRefused (agent-engine 17)."""
        parts = [dumps_bytes(part, plain=True) for part in (manifest, list(session_tools), root_agent_id)]

        def make() -> tuple[AgentDefinition, int]:
            definition = build_definition(manifest, session_tools, root_agent_id)
            return definition, definition.size() + _OBJECTS_PER_TEXT * len(parts[0])

        return self._kept(b"c" + b"".join(hashlib.sha256(part).digest() for part in parts), make)

    def _kept(self, key: bytes, make: Callable[[], tuple[T, int]]) -> T:
        """What is held under the key; `make` gives it, and its size, when nothing is."""
        held = self._held.get(key)
        if held is not None:
            self._held.move_to_end(key)
            kept: T = held[0]
            return kept
        made, size = make()
        self._put(key, made, size)
        return made

    def _put(self, key: bytes, value: Any, size: int) -> None:
        if size > self._max_bytes:
            return
        self._held[key] = (value, size)
        self.bytes_held += size
        while self.bytes_held > self._max_bytes:
            _, (_, freed) = self._held.popitem(last=False)
            self.bytes_held -= freed
