"""The HTTP API's description, served at /openapi.json."""

from __future__ import annotations

from typing import Any

from services.common.version import version
from services.dev_core.http.schemas import SCHEMAS, STRING, Schema, reference


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
        str(status): {"description": name, "content": _content(reference(name))}
        for status, name in answers.items()
    }
    for status in sorted({*problems, 400, 401, 421, 503}):
        responses[str(status)] = {"description": "Refused", "content": _content(reference("Error"))}
    operation: Schema = {"summary": summary, "responses": responses}
    parameters = [{"name": name, "in": "path", "required": True, "schema": STRING} for name in path]
    parameters += [{"name": name, "in": "query", "required": False, "schema": STRING} for name in query]
    if parameters:
        operation["parameters"] = parameters
    if body is not None:
        operation["requestBody"] = {"required": True, "content": _content(reference(body))}
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
        "content": {"text/event-stream": {"schema": reference("Event")}},
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
            "schemas": SCHEMAS,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"bearer": []}],
    }
