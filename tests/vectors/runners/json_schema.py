"""Kinds `json_schema` and `json_schema_details`: how a schema validates values."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from protocol import jsjson
from protocol.json_schema import (
    Schema,
    SchemaUnsupported,
    Valid,
    check_tool_input_schema,
    compile_schema,
)
from tests.vectors.case import Case, judge
from tests.vectors.files import records

KINDS = ("json_schema", "json_schema_details")


def run(_kind: str, path: Path) -> Iterator[Case]:
    """One case for each record; the first value that is judged otherwise fails it."""
    for line, record in records(path):
        yield judge(f"{line} {record['name']}", _fault(record))


def _fault(record: dict[str, Any]) -> str | None:
    schema = _compiled(record["schema"])
    if (schema is not None) is not record["loads"]:
        return "does not load" if record["loads"] else "loads, and should not"
    if schema is None:
        return None
    if _is_tool_input(record["schema"]) is not record["toolInput"]:
        return f"as a tool's input schema: expected {record['toolInput']}"
    for index, case in enumerate(record.get("cases", [])):
        found = _judged(schema, case["value"])
        expected = {key: case[key] for key in ("ok", "parsed", "issues") if key in case}
        # As text, so that member order and the kinds of numbers count.
        if jsjson.dumps(found) != jsjson.dumps(expected):
            return f"value {index}: {jsjson.dumps(found)} instead of {jsjson.dumps(expected)}"
    return None


def _compiled(schema: Any) -> Schema | None:
    try:
        return compile_schema(schema)
    except SchemaUnsupported:
        return None


def _is_tool_input(schema: Any) -> bool:
    try:
        check_tool_input_schema(schema)
    except SchemaUnsupported:
        return False
    return True


def _judged(schema: Schema, value: Any) -> dict[str, Any]:
    verdict = schema.validate(value)
    if isinstance(verdict, Valid):
        return {"ok": True, "parsed": verdict.value}
    issues = [{"path": issue.path, "code": issue.code, "message": issue.message} for issue in verdict.issues]
    return {"ok": False, "issues": issues}
