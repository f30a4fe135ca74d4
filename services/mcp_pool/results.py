"""The shapes of MCP results, as far as they decide whether an answer counts (mcp-pool 4).

Unknown members of a result and of a tool stay or are ignored; unknown members of a content part are
dropped. Every refusal names the member.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from protocol.jsjson import JsonValue
from protocol.mcp_client import ACCEPTED_VERSIONS
from services.mcp_pool.failures import AnswerInvalid

Check = Callable[[object], bool]


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _is_object(value: object) -> bool:
    return isinstance(value, dict)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _one_of(*options: str) -> Check:
    return lambda value: isinstance(value, str) and value in options


def _shaped(members: Mapping[str, Check], required: tuple[str, ...] = ()) -> Check:
    def check(value: object) -> bool:
        return (
            isinstance(value, dict)
            and all(name in value for name in required)
            and all(fits(value[name]) for name, fits in members.items() if name in value)
        )

    return check


def _list_of(check: Check) -> Check:
    return lambda value: isinstance(value, list) and all(check(item) for item in value)


_ICONS: Final = _list_of(
    _shaped(
        {"src": _is_text, "mimeType": _is_text, "sizes": _is_texts, "theme": _one_of("light", "dark")},
        ("src",),
    )
)
_ANNOTATIONS: Final = _shaped(
    {"audience": _list_of(_one_of("user", "assistant")), "priority": _is_number, "lastModified": _is_text}
)
_RESOURCE_TEXT: Final = _shaped(
    {"uri": _is_text, "mimeType": _is_text, "text": _is_text, "_meta": _is_object}, ("uri", "text")
)
_RESOURCE_BLOB: Final = _shaped(
    {"uri": _is_text, "mimeType": _is_text, "blob": _is_text, "_meta": _is_object}, ("uri", "blob")
)


def _is_resource(value: object) -> bool:
    return _RESOURCE_TEXT(value) or _RESOURCE_BLOB(value)


def _known_members(resource: dict[str, Any]) -> dict[str, Any]:
    content = "text" if _RESOURCE_TEXT(resource) else "blob"
    return {name: value for name, value in resource.items() if name in ("uri", "mimeType", "_meta", content)}


_PART_COMMON: Final[dict[str, Check]] = {"annotations": _ANNOTATIONS, "_meta": _is_object}
_MEDIA: Final[tuple[dict[str, Check], tuple[str, ...]]] = (
    {"data": _is_text, "mimeType": _is_text, **_PART_COMMON},
    ("data", "mimeType"),
)
# Members and required members of each content part, `type` apart.
_PARTS: Final[dict[str, tuple[dict[str, Check], tuple[str, ...]]]] = {
    "text": ({"text": _is_text, **_PART_COMMON}, ("text",)),
    "image": _MEDIA,
    "audio": _MEDIA,
    "resource_link": (
        {
            "uri": _is_text,
            "name": _is_text,
            "title": _is_text,
            "description": _is_text,
            "mimeType": _is_text,
            "icons": _ICONS,
            **_PART_COMMON,
        },
        ("uri", "name"),
    ),
    "resource": ({"resource": _is_resource, **_PART_COMMON}, ("resource",)),
}

_TOOL_MEMBERS: Final[dict[str, Check]] = {
    "title": _is_text,
    "description": _is_text,
    "icons": _ICONS,
    "_meta": _is_object,
    "annotations": _shaped(
        {
            "title": _is_text,
            "readOnlyHint": _is_flag,
            "destructiveHint": _is_flag,
            "idempotentHint": _is_flag,
            "openWorldHint": _is_flag,
        }
    ),
    "execution": _shaped({"taskSupport": _one_of("required", "optional", "forbidden")}),
}


def check_initialize(result: JsonValue) -> None:
    """Checks the answer to `initialize`. Raises AnswerInvalid; for a version that is not spoken it names it."""
    members = _members(result, "initialize")
    version = members.get("protocolVersion")
    if not isinstance(version, str):
        raise AnswerInvalid("initialize: protocolVersion is not a string.")
    info = members.get("serverInfo")
    if not _shaped({"name": _is_text, "version": _is_text}, ("name", "version"))(info):
        raise AnswerInvalid("initialize: serverInfo has no name or no version.")
    capabilities = members.get("capabilities")
    if not isinstance(capabilities, dict):
        raise AnswerInvalid("initialize: capabilities is not an object.")
    if "instructions" in members and not _is_text(members["instructions"]):
        raise AnswerInvalid("initialize: instructions is not a string.")
    if version not in ACCEPTED_VERSIONS:
        raise AnswerInvalid(f"The server speaks MCP version {version[:64]!r}, which is not supported.")


def check_tools_page(result: JsonValue) -> tuple[list[dict[str, Any]], str | None]:
    """The tools of a `tools/list` page and its next cursor. Raises AnswerInvalid: one bad tool fails all."""
    members = _members(result, "tools/list")
    tools = members.get("tools")
    if not isinstance(tools, list):
        raise AnswerInvalid("tools/list: tools is not an array.")
    cursor = members.get("nextCursor")
    if "nextCursor" in members and not _is_text(cursor):
        raise AnswerInvalid("tools/list: nextCursor is not a string.")
    for index, tool in enumerate(tools):
        _check_tool(tool, f"tools/list: tools[{index}]")
    return tools, cursor


def _check_tool(tool: object, at: str) -> None:
    if not isinstance(tool, dict):
        raise AnswerInvalid(f"{at} is not an object.")
    if not _is_text(tool.get("name")):
        raise AnswerInvalid(f"{at}.name is not a string.")
    _check_schema(tool.get("inputSchema"), f"{at}.inputSchema")
    if "outputSchema" in tool:
        _check_schema(tool["outputSchema"], f"{at}.outputSchema")
    for name, fits in _TOOL_MEMBERS.items():
        if name in tool and not fits(tool[name]):
            raise AnswerInvalid(f"{at}.{name} does not have its MCP type.")


def _check_schema(schema: object, at: str) -> None:
    if not isinstance(schema, dict) or schema.get("type") != "object":
        raise AnswerInvalid(f'{at} is not an object with type "object".')
    properties = schema.get("properties", {})
    # Arrays pass: to the original everything but null and scalars is an object here.
    if not isinstance(properties, dict) or not all(
        isinstance(item, dict | list) for item in properties.values()
    ):
        raise AnswerInvalid(f"{at}.properties holds something that is not an object.")
    if "required" in schema and not _is_texts(schema["required"]):
        raise AnswerInvalid(f"{at}.required is not an array of strings.")


def check_call_result(result: JsonValue) -> dict[str, Any]:
    """The result of `tools/call` with `content` filled in and unknown members of parts dropped.

    Raises AnswerInvalid.
    """
    members = dict(_members(result, "tools/call"))
    content = members.get("content", [])
    if not isinstance(content, list):
        raise AnswerInvalid("tools/call: content is not an array.")
    members["content"] = [_part(part, f"tools/call: content[{index}]") for index, part in enumerate(content)]
    if "structuredContent" in members and not _is_object(members["structuredContent"]):
        raise AnswerInvalid("tools/call: structuredContent is not an object.")
    if "isError" in members and not _is_flag(members["isError"]):
        raise AnswerInvalid("tools/call: isError is not a boolean.")
    return members


def _part(part: object, at: str) -> dict[str, Any]:
    kind = part.get("type") if isinstance(part, dict) else None
    shape = _PARTS.get(kind) if isinstance(kind, str) else None
    if not isinstance(part, dict) or shape is None:
        raise AnswerInvalid(f"{at} is not a content part that MCP knows.")
    checks, required = shape
    for name in required:
        if name not in part:
            raise AnswerInvalid(f"{at}.{name} is missing.")
    for name, fits in checks.items():
        if name in part and not fits(part[name]):
            raise AnswerInvalid(f"{at}.{name} does not have its MCP type.")
    kept = {name: value for name, value in part.items() if name == "type" or name in checks}
    if kind == "resource":
        kept["resource"] = _known_members(kept["resource"])
    return kept


def _members(result: JsonValue, method: str) -> dict[str, Any]:
    if not isinstance(result, dict):
        raise AnswerInvalid(f"{method}: the result is not an object.")
    if "_meta" in result and not _is_object(result["_meta"]):
        raise AnswerInvalid(f"{method}: _meta is not an object.")
    return result
