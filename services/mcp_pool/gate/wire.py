"""What is asked of a Tool Gate and what its answers mean (mcp-pool 9). Pure.

Every failure is an McpFailure whose text is made for people. Codes of a gate that codes its failures become
the effect's outcome; without a code the effect has none and stays uncertain.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from protocol.jsjson import JsonError, JsonValue, Parsed, RawJson, dumps_bytes, parse
from services.mcp_pool.declarations import ServerName
from services.mcp_pool.failures import AnswerInvalid, ConnectionLost, McpFailure

CONNECT: Final = "/nylorun/v1/mcp/connect"
LIST: Final = "/nylorun/v1/mcp/list"
CLOSE: Final = "/nylorun/v1/mcp/close"
CALLS: Final = "/nylorun/v1/tool-calls"

_LOST_CODE: Final = "mcp.lost"
_UNAUTHORIZED: Final = 401


class CodedFailure(McpFailure):
    """The gate says that a call failed, and how: `outcome` is the effect's outcome document."""

    def __init__(self, message: str, outcome: dict[str, JsonValue], *, code: int | None) -> None:
        super().__init__(message, code=code)
        self.outcome = outcome


def server_body(name: ServerName, session_id: str | None, **members: JsonValue) -> bytes:
    """The body of connect, list and close. `session_id` is given where no token names the session."""
    return _body({"server": _server(name, session_id), **members})


def call_body(
    name: ServerName, session_id: str | None, effect_id: str, tool: str, arguments: RawJson
) -> bytes:
    """The body of a call. The same call gives the same bytes: a gate compares what is sent again."""
    return _body(
        {
            "server": _server(name, session_id),
            "effectId": effect_id,
            "name": tool,
            "arguments": arguments,
        }
    )


def _server(name: ServerName, session_id: str | None) -> dict[str, Any]:
    session = {} if session_id is None else {"sessionId": session_id}
    return {**session, **name.members()}


def _body(document: Mapping[str, Any]) -> bytes:
    return dumps_bytes(document, plain=True)


def headers(token: str | None, key: str | None = None) -> dict[str, str]:
    """The headers of a request. Without a token there is no Authorization, without a key none of its own."""
    given = {"Content-Type": "application/json"}
    if token is not None:
        given["Authorization"] = f"Bearer {token}"
    if key is not None:
        given["Idempotency-Key"] = key
    return given


def read_result(status: int, body: bytes) -> Parsed:
    """The result of a complete answer. Raises McpFailure for everything but `200 {ok: true}`."""
    try:
        parsed = parse(body.decode("utf-8", "replace"))
    except JsonError:
        parsed = None
    answer = parsed.value if parsed is not None else None
    if status != 200:
        raise _refusal(status, answer)
    if parsed is None or not isinstance(answer, dict) or "ok" not in answer:
        raise AnswerInvalid("The gates service's answer is not what a Tool Gate answers.")
    if answer["ok"] is True:
        return Parsed(answer.get("result"), parsed.plain)
    raise _failure(answer.get("error"))


def _refusal(status: int, answer: JsonValue) -> McpFailure:
    error = answer.get("error") if isinstance(answer, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    after = f": {message}" if isinstance(message, str) and message else "."
    # Not by its number: a 401 in the text would read as the MCP server's own.
    said = "refused the run token" if status == _UNAUTHORIZED else f"answered {status}"
    return McpFailure(f"The gates service {said}{after}")


def _failure(error: JsonValue) -> McpFailure:
    if not isinstance(error, dict):
        return AnswerInvalid("The gates service says that a call failed, and not why.")
    message, code, ids = error.get("message"), error.get("code"), error.get("credentialIds")
    text = message if isinstance(message, str) and message else "The MCP server failed."
    number = code if isinstance(code, int) and not isinstance(code, bool) else None
    if error.get("uncertain") is True:
        return ConnectionLost(f"{text} The call may have run and is not sent again.", code=number)
    coded = error.get("failure")
    if isinstance(coded, dict) and isinstance(coded.get("code"), str) and coded["code"] != _LOST_CODE:
        return _coded(coded, text, number)
    credentials = [item for item in ids if isinstance(item, str)] if isinstance(ids, list) else []
    return McpFailure(text, code=number, credential_ids=credentials)


def _coded(failure: Mapping[str, JsonValue], text: str, number: int | None) -> CodedFailure:
    message = failure.get("message")
    outcome: dict[str, JsonValue] = {
        "kind": "failed",
        "code": failure["code"],
        "message": message if isinstance(message, str) else text,
    }
    for name, fits in (("retryable", bool), ("server", str), ("vault", str), ("redacted", int)):
        if isinstance(failure.get(name), fits):
            outcome[name] = failure[name]
    rejected = failure["code"] == "credential_rejected"
    return CodedFailure(text, outcome, code=_UNAUTHORIZED if rejected else number)
