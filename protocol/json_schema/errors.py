"""What can go wrong with a schema, apart from a value that does not fit."""

from __future__ import annotations


class JsonSchemaError(ValueError):
    """The common base: the schema is at fault, or can't be used on this value."""


class SchemaUnsupported(JsonSchemaError):
    """The schema can't be compiled: an unsupported keyword, type or reference, a pattern that is no regular
    expression, a member where a schema has to stand (agent-engine 11)."""


class ValidationStopped(JsonSchemaError):
    """No verdict: the schema refers to itself without end, the branches of an `allOf` accept the value and
    make different values of it, or a pattern would take too long on this text."""
