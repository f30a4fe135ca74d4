"""From a declared server to a connection that is to be opened."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable, Mapping
from typing import Final

from protocol.jsjson import JsonValue
from services.tool_gate.credentials import Access, may_be_set
from services.tool_gate.upstream.connection import REQUEST_S, Endpoint, UpstreamConnection
from services.tool_gate.upstream.http import ServerHttp
from services.tool_gate.upstream.network import CheckedNetwork, Resolve, check_endpoint, resolve_by_system

SSE: Final = "sse"


class Opener:
    """Makes connections. `resolve` is replaced in tests; `tls` None: the system's certificates."""

    def __init__(
        self,
        *,
        request_s: float = REQUEST_S,
        resolve: Resolve = resolve_by_system,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._request_s = request_s
        self._resolve = resolve
        self._tls = tls or ssl.create_default_context()
        # They log what servers send, as text.
        for name in ("mcp", "httpx2", "httpcore2"):
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)

    def connection(
        self,
        declaration: Mapping[str, JsonValue],
        access: Access,
        on_end: Callable[[UpstreamConnection], None],
    ) -> UpstreamConnection:
        """A connection, to be opened. Raises Unreachable for a URL that the gate does not go to."""
        url = declaration.get("url")
        text = url if isinstance(url, str) else ""
        check_endpoint(text, allow_private=access.allow_private)
        network = CheckedNetwork(allow_private=access.allow_private, resolve=self._resolve)
        credentials = dict(access.headers)

        def http(resident: bool, on_gone: Callable[[], None]) -> ServerHttp:
            return ServerHttp(text, network, credentials, self._tls, resident=resident, on_gone=on_gone)

        headers = declaration.get("headers")
        given = headers if isinstance(headers, dict) else {}
        endpoint = Endpoint(
            url=text,
            is_sse=declaration.get("type") == SSE,
            headers={name: value for name, value in given.items() if may_be_set(name, value)},
            http=http,
            secrets=access.secrets(),
        )
        return UpstreamConnection(endpoint, on_end, request_s=self._request_s)
