"""Helpers of the validator's tests."""

from __future__ import annotations

from typing import Any

import pytest

from protocol import jsjson
from protocol.json_schema import SchemaUnsupported, Valid, compile_schema


def parsed(schema: Any, value: Any) -> Any:
    """The validated value of one that fits."""
    verdict = compile_schema(schema).validate(value)
    assert isinstance(verdict, Valid), verdict
    return verdict.value


def fits(schema: Any, *values: Any) -> None:
    """Each value fits and stays as it is, members in their order."""
    for value in values:
        assert jsjson.dumps(parsed(schema, value)) == jsjson.dumps(value)


def issues(schema: Any, value: Any) -> list[tuple[list[str | int], str, str]]:
    """The issues of a value that does not fit, as (path, code, message)."""
    verdict = compile_schema(schema).validate(value)
    assert not isinstance(verdict, Valid), verdict
    return [(issue.path, issue.code, issue.message) for issue in verdict.issues]


def messages(schema: Any, value: Any) -> list[str]:
    return [message for _, _, message in issues(schema, value)]


def refused(schema: Any) -> str:
    """Why the schema can't be compiled."""
    with pytest.raises(SchemaUnsupported) as caught:
        compile_schema(schema)
    return str(caught.value)
