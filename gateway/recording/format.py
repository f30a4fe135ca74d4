"""The format of recordings, version 1.

A recording is one run in one file: JSON lines in UTF-8, one object a line, in the order in which things
happened to the engine. `type` says what a line is. Members that a reader doesn't know are left alone; a
change that an older reader would get wrong raises `format`.

    {"type":"recording","format":1,"made":"whippletree 0.1.0","at":"2026-07-29T10:11:12.131Z",
     "runId":…,"sessionId":…,"turnId":…,"epoch":1,"tenantId":…,"preference":"auto"}

The first line; `tenantId` and `preference` (of a sandbox backend) are what the gateway was told in the answer
to `hello`. `at` is the wall clock; every other time is `now`: milliseconds of the process's own clock,
as the engine was told, of which only differences mean something.

    {"type":"start","input":{…},"transcript":[…],"leftOut":["/manifest/capabilities/0/mcpServers/db/env/KEY"],
     "manifestHash":"…"}

The second line. `input` is the TurnStart of harness-api 3 as the engine used it: `sessionTools` after the
MCP servers were prepared, `routing.mcpSnapshot` likewise; `routing.rootManifest` is absent when it equals
`manifest`. `transcript` has the entries the segment started from. The grant, and with it the run token, is
never written. Of a declared MCP server only `name`, `type` and `command` are written, and of
`routing.sandbox.environment` only the names: other texts there read "[left out]", and `leftOut` lists them
as JSON pointers into `input`. Then `manifestHash` is the hash of the manifest as it really was, because it
can't be computed again.

    {"type":"begin","now":…}
    {"type":"effect","n":1,"effectId":…,"kind":"model","requestHash":…,"known":false,"document":{…}}
    {"type":"answer","effectId":…,"now":…,"answer":{…}}
    {"type":"abort","kind":"cancel","message":…}

What the engine was told (`begin`, `answer`, `abort`) and what it asked for (`effect`), in order: the effects
between two of the others are asked for in that step. `document` is the whole effect, a model's `input` too.
`known` says that an outcome in `input.outcomes` resolved it. An `answer` is one of

    {"status":"completed","outcome":{"value":…,"statePatch":…}}     {"status":"pending"}
    {"status":"failed","code":…,"message":…}                        {"status":"uncertain"}
    {"status":"aborted","kind":…,"message":…}

where `code` may be absent. A prompt mostly repeats the one before, so an effect line may have, beside a
`document` without `input`, `"more":{"like":EFFECT,"prompt":[…]}`: its input is that of the earlier effect
EFFECT with these items behind its prompt.

    {"type":"end","method":"turn.completed","params":{…},"released":"shutdown"}

The last line: the output of harness-api 3 as it was due, without `runId`. With `released` the run was given
back for that reason and nothing was sent. Instead of it the last line may be

    {"type":"cut","reason":…}

when the recording stopped before its run: a limit was reached. A file that ends with neither was being
written when its process died.
"""

from __future__ import annotations

from typing import Any, Final

from gateway.engine.contract import (
    Abort,
    AbortedEffect,
    AbortKind,
    Answer,
    Completed,
    HostError,
    Pending,
    Uncertain,
)
from protocol.jsjson import JsonValue

FORMAT: Final = 1
"""The version that is written, and the newest that is read."""

SUFFIX: Final = ".jsonl"
PARTIAL_SUFFIX: Final = ".jsonl.part"
"""While a recording is written; it gets its name without `.part` when it is whole."""

LEFT_OUT: Final = "[left out]"
"""Stands for a text that is not written."""


class FormatError(ValueError):
    """Something in a recording is not as the format says; the text names it."""


def answer_document(answer: Answer) -> dict[str, JsonValue]:
    """An answer as it is written."""
    match answer:
        case Completed(outcome=outcome):
            return {"status": "completed", "outcome": dict(outcome)}
        case HostError(code=code, message=message):
            named: dict[str, JsonValue] = {} if code is None else {"code": code}
            return {"status": "failed", **named, "message": message}
        case AbortedEffect(abort=abort):
            return {"status": "aborted", **abort_members(abort)}
        case Pending():
            return {"status": "pending"}
        case Uncertain():
            return {"status": "uncertain"}


def abort_members(abort: Abort) -> dict[str, JsonValue]:
    """An abort as it is written."""
    return {"kind": str(abort.kind), "message": abort.message}


def read_answer(document: Any) -> Answer:
    """The answer of a written one. Raises FormatError."""
    status = document.get("status") if isinstance(document, dict) else None
    if status == "completed":
        outcome = document.get("outcome")
        if not isinstance(outcome, dict) or "value" not in outcome:
            raise FormatError("a completed answer needs an outcome with a value")
        return Completed(outcome)
    if status == "pending":
        return Pending()
    if status == "uncertain":
        return Uncertain()
    if status == "aborted":
        return AbortedEffect(read_abort(document))
    if status == "failed":
        code, message = document.get("code"), document.get("message")
        if isinstance(message, str) and (code is None or isinstance(code, str)):
            return HostError(code, message)
        raise FormatError("a failed answer needs a message")
    raise FormatError("an answer's status is completed, pending, uncertain, failed or aborted")


def read_abort(document: Any) -> Abort:
    """The abort of a written one. Raises FormatError."""
    kind, message = document.get("kind"), document.get("message")
    if not isinstance(message, str) or kind not in list(AbortKind):
        raise FormatError(f"an abort needs a message and one of the kinds {', '.join(AbortKind)}")
    return Abort(AbortKind(kind), message)
