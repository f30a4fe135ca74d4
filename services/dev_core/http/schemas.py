"""The documents of the HTTP API, as JSON Schemas under the names that `openapi.py` refers to."""

from __future__ import annotations

from typing import Any, Final, get_args

from services.dev_core.problems import STATUS_OF
from services.dev_core.store.effects import Runner
from services.dev_core.store.sessions import Status

Schema = dict[str, Any]


def _object(required: dict[str, Schema], optional: dict[str, Schema] | None = None, **more: Any) -> Schema:
    schema: Schema = {"type": "object", "properties": {**required, **(optional or {})}, **more}
    if required:
        schema["required"] = list(required)
    return schema


def reference(name: str) -> Schema:
    """A reference to one of SCHEMAS."""
    return {"$ref": f"#/components/schemas/{name}"}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


STRING: Final[Schema] = {"type": "string"}
_INTEGER: Final[Schema] = {"type": "integer"}
_TIME: Final[Schema] = {"type": "string", "format": "date-time"}
_ANY_OBJECT: Final[Schema] = {"type": "object"}
_ANY: Final[Schema] = {}
_STATUSES: Final = list(get_args(Status))
_KIND: Final[Schema] = {"type": "string", "enum": ["agent", "workflow"]}

SCHEMAS: Final[dict[str, Schema]] = {
    "Error": _object(
        {
            "error": _object(
                {"code": {"type": "string", "enum": sorted(STATUS_OF)}, "message": STRING},
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
            "id": STRING,
            "kind": _KIND,
            "manifestHash": STRING,
            "createdAt": _TIME,
            "updatedAt": _TIME,
        },
        {"actions": _object({"url": STRING}), "manifest": _ANY_OBJECT},
    ),
    "SessionCreate": _object(
        {"agentId": STRING},
        {"info": {**_ANY_OBJECT, "description": "Given to every tool call of the session."}},
        additionalProperties=False,
    ),
    "Session": _object(
        {
            "id": STRING,
            "agentId": STRING,
            "manifestHash": STRING,
            "kind": _KIND,
            "status": {"type": "string", "enum": _STATUSES},
            "activeTurnId": {"type": ["string", "null"]},
            "epoch": _INTEGER,
            "createdAt": _TIME,
            "updatedAt": _TIME,
        },
        {
            "parentId": {**STRING, "description": "The workflow session that a linked session belongs to."},
            "lastSeq": _INTEGER,
            "info": _ANY_OBJECT,
            "lastTurn": _object(
                {"id": STRING, "status": STRING, "startedAt": _TIME},
                {"endedAt": _TIME, "result": _ANY_OBJECT},
            ),
            "waits": _object({"effectIds": _list(STRING)}),
            "interactions": _list(_ANY_OBJECT),
            "linked": _list(
                _object({"sessionId": STRING, "effectId": STRING, "agentId": STRING, "status": STRING})
            ),
            "mcp": _object({"servers": _list(_ANY_OBJECT)}),
            "hint": STRING,
        },
    ),
    "Message": {
        "description": "Exactly one of text, content and data.",
        "oneOf": [
            _object({"text": STRING}, {"metadata": _ANY_OBJECT}, additionalProperties=False),
            _object(
                {
                    "content": {
                        "oneOf": [
                            STRING,
                            _list(
                                {
                                    "oneOf": [
                                        _object({"type": {"const": "text"}, "text": STRING}),
                                        _object(
                                            {
                                                "type": {"const": "media"},
                                                "mediaType": STRING,
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
    "Started": _object({"sessionId": STRING, "turnId": STRING, "seq": _INTEGER}),
    "Answered": _object({"sessionId": STRING, "seq": _INTEGER}),
    "Approval": _object(
        {"interactionId": STRING, "approved": {"type": "boolean"}}, additionalProperties=False
    ),
    "Response": _object({"interactionId": STRING, "value": _ANY}, additionalProperties=False),
    "Outcome": _object({"value": _ANY}, {"statePatch": _ANY_OBJECT}, additionalProperties=False),
    "Settled": _object({"effectId": STRING, "result": {"enum": ["completed", "repeated"]}}),
    "Item": _object({"seq": _INTEGER, "turnId": STRING, "type": STRING}),
    "Items": _object({"items": _list(reference("Item"))}, {"after": _INTEGER}),
    "Effect": _object(
        {
            "effectId": STRING,
            "turnId": STRING,
            "segment": _INTEGER,
            "kind": STRING,
            "runner": {"enum": list(get_args(Runner))},
            "status": {"enum": ["invoking", "pending", "completed", "uncertain"]},
            "attempts": _INTEGER,
            "startedAt": _TIME,
        },
        {
            "endedAt": _TIME,
            "durationMs": _INTEGER,
            "request": _ANY_OBJECT,
            "outcome": reference("Outcome"),
            "error": STRING,
            "label": {**_ANY_OBJECT, "description": "Instead of the documents, with `documents=0`."},
            "failed": {"const": True, "description": "With `documents=0`: the outcome is a failure."},
        },
    ),
    "Effects": _object({"effects": _list(reference("Effect"))}, {"after": _INTEGER}),
    "Agents": _object({"agents": _list(reference("Agent"))}),
    "Sessions": _object({"sessions": _list(reference("Session"))}, {"before": _INTEGER}),
    "Event": _object(
        {
            "seq": _INTEGER,
            "type": STRING,
            "sessionId": STRING,
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
            "artifactId": STRING,
            "version": _INTEGER,
            "name": STRING,
            "contentType": STRING,
            "size": _INTEGER,
            "sha256": STRING,
            "createdAt": _TIME,
            "reference": {
                **_object({"artifactId": STRING, "version": _INTEGER, "name": STRING}),
                "description": "What a media part of a message names.",
            },
        },
        {"path": {"type": "string", "description": "Below /workspace/outputs, where a turn's end found it."}},
    ),
    "Artifacts": _object({"artifacts": _list(reference("Artifact"))}, {"after": _INTEGER}),
    "Command": _object(
        {"command": STRING},
        {"timeout": {"type": "integer", "minimum": 1, "maximum": 600, "description": "Seconds."}},
        additionalProperties=False,
    ),
    "FileRead": _object(
        {"path": STRING}, {"offset": _INTEGER, "limit": _INTEGER}, additionalProperties=False
    ),
    "FileWrite": _object({"path": STRING, "content": STRING}, additionalProperties=False),
    "ToolOutcome": {
        **_ANY_OBJECT,
        "description": "`{kind: completed, output}` or `{kind: failed, code, message}`.",
    },
    "Listing": {
        **_ANY_OBJECT,
        "description": "`{kind: listed, path, listing: {entries: [{path, size}], truncated}}`, or `{kind: "
        "missing, path}`.",
    },
    "Log": _object({"events": _list(reference("Event"))}, {"after": _INTEGER}),
    "Fleet": _object(
        {
            "gateways": _list(
                _object(
                    {"url": STRING, "reachable": {"type": "boolean"}},
                    {"fleet": _ANY_OBJECT, "reason": STRING},
                )
            )
        }
    ),
    "Health": _object({"status": {"const": "ok"}, "service": STRING}, {"harness": _ANY_OBJECT}),
}
