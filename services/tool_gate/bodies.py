"""Reads the bodies of requests (mcp-pool 9.1). Pure; raises GateProblem `invalid_request`."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from protocol.canonical import canonical_request
from protocol.jsjson import JsonError, Parsed, parse
from services.tool_gate.pool import ServerKey
from services.tool_gate.problems import forbidden, invalid

MAX_BODY_BYTES: Final = 8 * 1024 * 1024
MAX_ID: Final = 512
"""Characters of an id or a name; tool names and cursors may be longer."""
MAX_DEPTH: Final = 200
"""Levels of nesting of a call's arguments: what the SDK's transports can write."""
_SERVER_MEMBERS: Final = frozenset({"sessionId", "agentId", "capabilityId", "serverName"})


@dataclass(frozen=True, slots=True)
class ServerRequest:
    """connect, list or close: the server, and a page's cursor."""

    server: ServerKey
    cursor: str | None = None


@dataclass(frozen=True, slots=True)
class CallRequest:
    """A tool call. `digest` is the same for every way to write the same call of the same session."""

    server: ServerKey
    effect_id: str
    name: str
    arguments: Mapping[str, Any]
    digest: bytes


def read_json(body: bytes) -> Parsed:
    """The parsed body."""
    if len(body) > MAX_BODY_BYTES:
        raise invalid(f"A body has at most {MAX_BODY_BYTES} bytes.")
    try:
        return parse(body.decode())
    except (JsonError, UnicodeDecodeError):
        raise invalid("The body is not JSON.") from None


def server_request(parsed: Parsed, session_id: str, *, pages: bool, strict: bool) -> ServerRequest:
    """connect and close; with `pages` list. `strict` refuses members that the contract does not have."""
    body = _object(parsed.value, "The body")
    if strict:
        _only(body, {"server", "cursor"} if pages else {"server"})
    cursor = body.get("cursor") if pages else None
    if pages and "cursor" in body and not (isinstance(cursor, str) and cursor):
        raise invalid("cursor must be a text that is not empty.")
    return ServerRequest(_server(body, session_id, strict), cursor)


def call_request(parsed: Parsed, session_id: str, *, strict: bool) -> CallRequest:
    """tool-calls."""
    body = _object(parsed.value, "The body")
    if strict:
        _only(body, {"server", "effectId", "name", "arguments"})
    server = _server(body, session_id, strict)
    arguments = body.get("arguments")
    if not isinstance(arguments, dict):
        raise invalid("arguments must be an object.")
    if not _shallow(arguments, MAX_DEPTH):
        raise invalid(f"arguments nest deeper than {MAX_DEPTH} levels.")
    name = body.get("name")
    if not isinstance(name, str) or not name:
        raise invalid("name must be a text that is not empty.")
    named = {**body, "server": {**body["server"], "sessionId": session_id}}
    digest = hashlib.sha256(canonical_request(named, plain=parsed.plain)).digest()
    return CallRequest(server, _id(body, "effectId"), name, arguments, digest)


def _server(body: Mapping[str, Any], session_id: str, strict: bool) -> ServerKey:
    server = _object(body.get("server"), "server")
    if strict:
        _only(server, _SERVER_MEMBERS - {"sessionId"})
    if "sessionId" in server and _id(server, "sessionId") != session_id:
        raise forbidden("The body names another session than the run token.")
    agent_id = _id(server, "agentId") if "agentId" in server else None
    return ServerKey(session_id, agent_id, _id(server, "capabilityId"), _id(server, "serverName"))


def _id(body: Mapping[str, Any], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= MAX_ID:
        raise invalid(f"{name} must be a text of 1 to {MAX_ID} characters.")
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise invalid(f"{name} holds half of a surrogate pair.")
    return value


def _object(value: object, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise invalid(f"{what} must be an object.")
    return value


def _only(body: Mapping[str, Any], known: set[str] | frozenset[str]) -> None:
    unknown = sorted(set(body) - known)
    if unknown:
        raise invalid(f"The member {unknown[0]} is not in the contract.")


def _shallow(value: object, levels: int) -> bool:
    """The value nests at most so deep; found level by level, so that depth costs no stack."""
    level: list[Any] = [value]
    for _ in range(levels):
        level = [
            inner
            for item in level
            if isinstance(item, dict | list)
            for inner in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            return True
    return not any(isinstance(item, dict | list) for item in level)
