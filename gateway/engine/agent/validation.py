"""Checking values against compiled schemas, with an engine failure where there is no verdict."""

from __future__ import annotations

from typing import Any

from gateway.engine.failures import WorkFailed
from protocol.json_schema import Invalid, Schema, Valid, ValidationStopped


class NoVerdict(WorkFailed):
    """The schema can't judge the value: it refers to itself without end, or its branches contradict."""


def validate(schema: Schema, value: Any) -> Valid | Invalid:
    """The schema's verdict. Raises NoVerdict."""
    try:
        return schema.validate(value)
    except ValidationStopped as error:
        raise NoVerdict(f"No verdict on the value: {error}") from None
