"""JSON Schema with the verdicts, values and issue texts of the peer's validator (agent-engine 11).

`compile_schema` once, `Schema.validate` often. See `convert` for what the keywords mean, `outcome` for how issues
come together, `usable` for the check that tools of MCP servers go through.
"""

from protocol.json_schema.errors import JsonSchemaError, SchemaUnsupported, ValidationStopped
from protocol.json_schema.js_values import ABSENT
from protocol.json_schema.outcome import Issue
from protocol.json_schema.schema import Invalid, Schema, Valid, check_tool_input_schema, compile_schema
from protocol.json_schema.usable import usable_schema

__all__ = [
    "ABSENT",
    "Invalid",
    "Issue",
    "JsonSchemaError",
    "Schema",
    "SchemaUnsupported",
    "Valid",
    "ValidationStopped",
    "check_tool_input_schema",
    "compile_schema",
    "usable_schema",
]
