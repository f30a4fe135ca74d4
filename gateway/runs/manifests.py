"""Manifests shared between runs: one object for all runs of an agent, however often core sends it."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Final
from weakref import WeakValueDictionary

from protocol.canonical import manifest_hash
from protocol.jsjson import dumps_bytes
from protocol.mcp_servers import servers_of

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
        return bool(servers_of(self.document))


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
