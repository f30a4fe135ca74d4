"""The HTTP API's description, served at /openapi.json."""

from __future__ import annotations

from typing import Any, Final, get_args

from services.common.version import version
from services.dev_core.problems import STATUS_OF
from services.dev_core.store.effects import Runner
from services.dev_core.store.sessions import Status

Schema = dict[str, Any]


def _object(required: dict[str, Schema], optional: dict[str, Schema] | None = None, **more: Any) -> Schema:
    schema: Schema = {"type": "object", "properties": {**required, **(optional or {})}, **more}
    if required:
        schema["required"] = list(required)
    return schema


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


_STRING: Final[Schema] = {"type": "string"}
_INTEGER: Final[Schema] = {"type": "integer"}
_TIME: Final[Schema] = {"type": "string", "format": "date-time"}
_ANY_OBJECT: Final[Schema] = {"type": "object"}
_ANY: Final[Schema] = {}
_STATUSES: Final = list(get_args(Status))
_KIND: Final[Schema] = {"type": "string", "enum": ["agent", "workflow"]}

_SCHEMAS: Final[dict[str, Schema]] = {
    "Error": _object(
        {
            "error": _object(
                {"code": {"type": "string", "enum": sorted(STATUS_OF)}, "message": _STRING},
            )
        },
        description="What went wrong and the way out.",
    ),
    "AgentPut": _object(
        {
            "manifest": {
                **_ANY_OBJECT,
                "description": "An agent manifest, schema version 4, or a workflow manifest, schema version 1 or 2.",
            }
        },
        {
            "actions": _object(
                {"url": {"type": "string", "format": "uri"}},
                description="Where tools that are neither MCP nor sandbox tools are posted, and the tools and "
                "functions of workflows.",
            )
        },
        additionalProperties=False,
    ),
    "Agent": _object(
        {
            "id": _STRING,
            "kind": _KIND,
            "manifestHash": _STRING,
            "createdAt": _TIME,
            "updatedAt": _TIME,
        },
        {"actions": _object({"url": _STRING}), "manifest": _ANY_OBJECT},
    ),
    "SessionCreate": _object(
        {"agentId": _STRING},
        {"info": {**_ANY_OBJECT, "description": "Given to every tool call of the session."}},
        additionalProperties=False,
    ),
    "Session": _object(
        {
            "id": _STRING,
            "agentId": _STRING,
            "manifestHash": _STRING,
            "kind": _KIND,
            "status": {"type": "string", "enum": _STATUSES},
            "activeTurnId": {"type": ["string", "null"]},
            "epoch": _INTEGER,
            "createdAt": _TIME,
            "updatedAt": _TIME,
        },
        {
            "parentId": {**_STRING, "description": "The workflow session that a linked session belongs to."},
            "lastSeq": _INTEGER,
            "info": _ANY_OBJECT,
            "lastTurn": _object(
                {"id": _STRING, "status": _STRING, "startedAt": _TIME},
                {"endedAt": _TIME, "result": _ANY_OBJECT},
            ),
            "waits": _object({"effectIds": _list(_STRING)}),
            "interactions": _list(_ANY_OBJECT),
            "linked": _list(
                _object({"sessionId": _STRING, "effectId": _STRING, "agentId": _STRING, "status": _STRING})
            ),
            "mcp": _object({"servers": _list(_ANY_OBJECT)}),
            "hint": _STRING,
        },
    ),
    "Message": {
        "description": "Exactly one of text, content and data.",
        "oneOf": [
            _object({"text": _STRING}, {"metadata": _ANY_OBJECT}, additionalProperties=False),
            _object(
                {
                    "content": {
                        "oneOf": [
                            _STRING,
                            _list(
                                {
                                    "oneOf": [
                                        _object({"type": {"const": "text"}, "text": _STRING}),
                                        _object(
                                            {
                                                "type": {"const": "media"},
                                                "mediaType": _STRING,
                                                "reference": _ANY,
                                            }
                                        ),
                                    ]
                                }
                            ),
                        ]
                    }
                },
                {"metadata": _ANY_OBJECT},
                additionalProperties=False,
            ),
            _object({"data": _ANY}, additionalProperties=False),
        ],
    },
    "Started": _object({"sessionId": _STRING, "turnId": _STRING, "seq": _INTEGER}),
    "Answered": _object({"sessionId": _STRING, "seq": _INTEGER}),
    "Approval": _object(
        {"interactionId": _STRING, "approved": {"type": "boolean"}}, additionalProperties=False
    ),
    "Response": _object({"interactionId": _STRING, "value": _ANY}, additionalProperties=False),
    "Outcome": _object({"value": _ANY}, {"statePatch": _ANY_OBJECT}, additionalProperties=False),
    "Settled": _object({"effectId": _STRING, "result": {"enum": ["completed", "repeated"]}}),
    "Item": _object({"seq": _INTEGER, "turnId": _STRING, "type": _STRING}),
    "Items": _object({"items": _list(_ref("Item"))}, {"after": _INTEGER}),
    "Effect": _object(
        {
            "effectId": _STRING,
            "turnId": _STRING,
            "segment": _INTEGER,
            "kind": _STRING,
            "runner": {"enum": list(get_args(Runner))},
            "status": {"enum": ["invoking", "pending", "completed", "uncertain"]},
            "attempts": _INTEGER,
            "startedAt": _TIME,
        },
        {
            "endedAt": _TIME,
            "durationMs": _INTEGER,
            "request": _ANY_OBJECT,
            "outcome": _ref("Outcome"),
            "error": _STRING,
            "label": {**_ANY_OBJECT, "description": "Instead of the documents, with `documents=0`."},
            "failed": {"const": True, "description": "With `documents=0`: the outcome is a failure."},
        },
    ),
    "Effects": _object({"effects": _list(_ref("Effect"))}, {"after": _INTEGER}),
    "Agents": _object({"agents": _list(_ref("Agent"))}),
    "Sessions": _object({"sessions": _list(_ref("Session"))}, {"before": _INTEGER}),
    "Event": _object(
        {
            "seq": _INTEGER,
            "type": _STRING,
            "sessionId": _STRING,
            "turnId": {"type": ["string", "null"]},
            "time": _TIME,
            "payload": _ANY,
        },
        description="One event of a session's log; an event of a finished effect shows its outcome.",
    ),
    "Manifest": {**_ANY_OBJECT, "description": "An agent's manifest."},
    "Keys": _object({"keys": _list(_ANY_OBJECT)}, description="A JSON Web Key Set."),
    "Artifact": _object(
        {
            "artifactId": _STRING,
            "version": _INTEGER,
            "name": _STRING,
            "contentType": _STRING,
            "size": _INTEGER,
            "sha256": _STRING,
            "createdAt": _TIME,
            "reference": {
                **_object({"artifactId": _STRING, "version": _INTEGER, "name": _STRING}),
                "description": "What a media part of a message names.",
            },
        },
        {"path": {"type": "string", "description": "Below /workspace/outputs, where a turn's end found it."}},
    ),
    "Artifacts": _object({"artifacts": _list(_ref("Artifact"))}, {"after": _INTEGER}),
    "Command": _object(
        {"command": _STRING},
        {"timeout": {"type": "integer", "minimum": 1, "maximum": 600, "description": "Seconds."}},
        additionalProperties=False,
    ),
    "FileRead": _object(
        {"path": _STRING}, {"offset": _INTEGER, "limit": _INTEGER}, additionalProperties=False
    ),
    "FileWrite": _object({"path": _STRING, "content": _STRING}, additionalProperties=False),
    "ToolOutcome": {
        **_ANY_OBJECT,
        "description": "`{kind: completed, output}` or `{kind: failed, code, message}`.",
    },
    "Listing": {
        **_ANY_OBJECT,
        "description": "`{kind: listed, path, listing: {entries: [{path, size}], truncated}}`, or `{kind: "
        "missing, path}`.",
    },
    "Log": _object({"events": _list(_ref("Event"))}, {"after": _INTEGER}),
    "Fleet": _object(
        {
            "gateways": _list(
                _object(
                    {"url": _STRING, "reachable": {"type": "boolean"}},
                    {"fleet": _ANY_OBJECT, "reason": _STRING},
                )
            )
        }
    ),
    "Health": _object({"status": {"const": "ok"}, "service": _STRING}, {"harness": _ANY_OBJECT}),
}


def _content(schema: Schema) -> Schema:
    return {"application/json": {"schema": schema}}


def _operation(
    summary: str,
    *,
    body: str | None = None,
    answers: dict[int, str],
    problems: tuple[int, ...] = (),
    query: tuple[str, ...] = (),
    path: tuple[str, ...] = (),
) -> Schema:
    responses: Schema = {
        str(status): {"description": name, "content": _content(_ref(name))}
        for status, name in answers.items()
    }
    for status in sorted({*problems, 400, 401, 421, 503}):
        responses[str(status)] = {"description": "Refused", "content": _content(_ref("Error"))}
    operation: Schema = {"summary": summary, "responses": responses}
    parameters = [{"name": name, "in": "path", "required": True, "schema": _STRING} for name in path]
    parameters += [{"name": name, "in": "query", "required": False, "schema": _STRING} for name in query]
    if parameters:
        operation["parameters"] = parameters
    if body is not None:
        operation["requestBody"] = {"required": True, "content": _content(_ref(body))}
    return operation


def _without_answer(operation: Schema) -> Schema:
    operation["responses"]["204"] = {"description": "Done"}
    return operation


def _bytes(summary: str, path: tuple[str, ...]) -> Schema:
    operation = _operation(summary, answers={}, path=path, problems=(404,))
    operation["responses"]["200"] = {"description": "The bytes", "content": {"*/*": {}}}
    return operation


def _files(in_session: tuple[str, ...], paging: tuple[str, ...]) -> Schema:
    add = _operation(
        "Keep the body as an artifact, or as a new version of one",
        answers={201: "Artifact"},
        path=in_session,
        query=("name", "artifactId"),
        problems=(404, 413),
    )
    add["requestBody"] = {"required": True, "content": {"*/*": {}}}
    artifacts = "/v1/sessions/{session}/artifacts"
    workspace = "/v1/sessions/{session}/workspace"
    version = "One version; `latest` is the newest"

    def used(summary: str, body: str | None, answer: str = "ToolOutcome", **more: Any) -> Schema:
        return _operation(
            summary, body=body, answers={200: answer}, path=in_session, problems=(404, 409), **more
        )

    return {
        artifacts: {
            "post": add,
            "get": _operation(
                "The newest version of each artifact",
                answers={200: "Artifacts"},
                path=in_session,
                query=paging,
                problems=(404,),
            ),
        },
        f"{artifacts}/{{artifact}}/{{version}}": {"get": _bytes(version, ("session", "artifact", "version"))},
        "/v1/artifacts/{artifact}/{version}": {"get": _bytes(version, ("artifact", "version"))},
        f"{workspace}/exec": {"post": used("Run a command in the workspace", "Command")},
        f"{workspace}/read": {"post": used("Read a text file of the workspace", "FileRead")},
        f"{workspace}/write": {"post": used("Write a text file of the workspace", "FileWrite")},
        f"{workspace}/list": {
            "get": used("The files below a folder", None, "Listing", query=("dir", "limit"))
        },
    }


def document() -> Schema:
    """The description, OpenAPI 3.1."""
    in_session = ("session",)
    events = _operation(
        "The log as server-sent events: id = seq, event = type, data = Event. Resumes after Last-Event-ID.",
        answers={},
        query=("after",),
        path=in_session,
        problems=(404,),
    )
    events["responses"]["200"] = {
        "description": "Events, then those that come",
        "content": {"text/event-stream": {"schema": _ref("Event")}},
    }
    paging = ("after", "limit")
    paths: Schema = {
        "/health": {"get": _operation("Whether the core serves", answers={200: "Health"})},
        "/.well-known/jwks.json": {"get": _operation("The public key of run tokens", answers={200: "Keys"})},
        "/v1/agents": {"get": _operation("Agents by id", answers={200: "Agents"}, query=paging)},
        "/v1/agents/{agent}": {
            "put": _operation(
                "Make or replace an agent; sessions keep the manifest they were made with",
                body="AgentPut",
                answers={200: "Agent", 201: "Agent"},
                path=("agent",),
                problems=(413,),
            ),
            "get": _operation(
                "One agent with its manifest", answers={200: "Agent"}, path=("agent",), problems=(404,)
            ),
        },
        "/v1/manifests/{hash}": {
            "get": _operation(
                "A manifest by its hash", answers={200: "Manifest"}, path=("hash",), problems=(404,)
            )
        },
        "/v1/sessions": {
            "post": _operation(
                "A new session", body="SessionCreate", answers={201: "Session"}, problems=(404,)
            ),
            "get": _operation(
                "The newest sessions first",
                answers={200: "Sessions"},
                query=("limit", "before", "agentId", "parentId"),
            ),
        },
        "/v1/sessions/{session}": {
            "get": _operation("One session", answers={200: "Session"}, path=in_session, problems=(404,)),
            "delete": _without_answer(
                _operation(
                    "Delete a session with its log, artifacts and workspace",
                    answers={},
                    path=in_session,
                    problems=(404, 409),
                )
            ),
        },
        "/v1/sessions/{session}/messages": {
            "post": _operation(
                "Start a turn",
                body="Message",
                answers={202: "Started"},
                path=in_session,
                problems=(404, 409, 413),
            )
        },
        "/v1/sessions/{session}/approve": {
            "post": _operation(
                "Approve or reject what a paused turn asks for",
                body="Approval",
                answers={202: "Answered"},
                path=in_session,
                problems=(404, 409),
            )
        },
        "/v1/sessions/{session}/respond": {
            "post": _operation(
                "Answer what a paused turn asks for",
                body="Response",
                answers={202: "Answered"},
                path=in_session,
                problems=(404, 409),
            )
        },
        "/v1/sessions/{session}/cancel": {
            "post": _operation(
                "End the turn that is under way, uncertain ones too",
                answers={200: "Session"},
                path=in_session,
                problems=(404, 409),
            )
        },
        "/v1/sessions/{session}/items": {
            "get": _operation(
                "The conversation", answers={200: "Items"}, path=in_session, query=paging, problems=(404,)
            )
        },
        "/v1/sessions/{session}/effects": {
            "get": _operation(
                "What the turns did outside, with times and attempts",
                answers={200: "Effects"},
                path=in_session,
                query=("turnId", "documents", *paging),
                problems=(404,),
            )
        },
        "/v1/sessions/{session}/effects/{effect}": {
            "get": _operation(
                "One effect", answers={200: "Effect"}, path=("session", "effect"), problems=(404,)
            )
        },
        "/v1/sessions/{session}/events": {"get": events},
        "/v1/sessions/{session}/log": {
            "get": _operation(
                "A page of the log; `types` names the types that are wanted, separated by commas",
                answers={200: "Log"},
                path=in_session,
                query=("types", *paging),
                problems=(404,),
            )
        },
        "/v1/fleet": {"get": _operation("The gateways and their services", answers={200: "Fleet"})},
        "/v1/sessions/{session}/effects/{effect}/outcome": {
            "post": _operation(
                "The outcome of an Action that was answered 202",
                body="Outcome",
                answers={200: "Settled"},
                path=("session", "effect"),
                problems=(404, 409, 413),
            )
        },
    }
    paths |= _files(in_session, paging)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Whippletree development core",
            "version": version(),
            "description": "Agents, sessions and turns of an embedded core for development.",
        },
        "paths": paths,
        "components": {
            "schemas": _SCHEMAS,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"bearer": []}],
    }
