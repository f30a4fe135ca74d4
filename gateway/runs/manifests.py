"""Manifests shared between runs: one object for all runs of an agent, however often core sends it."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, Final
from weakref import WeakValueDictionary

from protocol.canonical import manifest_hash
from protocol.jsjson import dumps_bytes

KEPT_BYTES: Final = 16 * 1024 * 1024
"""Manifest text that is kept although no run uses it, so that the next run of an agent shares it again."""


class SharedManifest:
    """A manifest as core sent it. Nobody changes `document`."""

    def __init__(self, document: Mapping[str, Any], text_bytes: int) -> None:
        self.document: Final = document
        self.text_bytes: Final = text_bytes

    @cached_property
    def hash(self) -> str:
        """The manifest's hash (agent-engine 1.2)."""
        return manifest_hash(self.document)

    @cached_property
    def declares_mcp_servers(self) -> bool:
        """Whether a run of it has MCP work (mcp-pool 2.1)."""
        return next(_declared_servers(self.document), None) is not None


class ManifestPool:
    """Finds the object for a manifest by its exact text."""

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        self._kept_bytes = kept_bytes
        self._held = 0
        self._recent: OrderedDict[bytes, SharedManifest] = OrderedDict()
        self._alive: WeakValueDictionary[bytes, SharedManifest] = WeakValueDictionary()

    def share(self, document: Mapping[str, Any], *, plain: bool) -> SharedManifest:
        """The shared object for this manifest; `plain` as for `jsjson.dumps`."""
        text = dumps_bytes(document, plain=plain)
        key = hashlib.sha256(text).digest()
        shared = self._alive.get(key)
        if shared is None:
            shared = SharedManifest(document, len(text))
            self._alive[key] = shared
        self._keep(key, shared)
        return shared

    def _keep(self, key: bytes, shared: SharedManifest) -> None:
        if key in self._recent:
            self._recent.move_to_end(key)
            return
        if shared.text_bytes > self._kept_bytes:
            return
        self._recent[key] = shared
        self._held += shared.text_bytes
        while self._held > self._kept_bytes:
            _, oldest = self._recent.popitem(last=False)
            self._held -= oldest.text_bytes


def _declared_servers(manifest: Mapping[str, Any]) -> Iterator[tuple[str | None, str]]:
    """(agent id or None, server name) of the root agent and of each agent used as a tool, one level deep.

    The manifest may be anything core holds: what is not of the expected shape declares nothing.
    """
    for capability in _list(manifest.get("capabilities")):
        yield from ((None, name) for name in _servers(capability))
    for capability in _list(manifest.get("capabilities")):
        for tool in _list(_member(capability, "tools")):
            child = _member(tool, "agent")
            if isinstance(child, dict) and "kind" not in child:
                for inner in _list(child.get("capabilities")):
                    yield from ((str(child.get("id")), name) for name in _servers(inner))


def _servers(capability: Any) -> Iterator[str]:
    servers = _member(capability, "mcpServers")
    yield from servers if isinstance(servers, dict) else ()


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _member(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None
