"""Checking values against compiled schemas, with an engine failure where there is no verdict."""

from __future__ import annotations

from gateway.engine.contract import ABSENT, Absent
from gateway.engine.failures import WorkFailed
from protocol.jsjson import JsonValue
from protocol.json_schema import ABSENT as UNDEFINED
from protocol.json_schema import Invalid, Schema, Valid, ValidationStopped


class NoVerdict(WorkFailed):
    """The schema can't judge the value: it refers to itself without end, or its branches contradict."""


def validate(schema: Schema, value: JsonValue | Absent) -> Valid | Invalid:
    """The schema's verdict, also on a value that is not there: it may fill one in, or find that none is
    needed (a `Valid` of ABSENT). Raises NoVerdict."""
    try:
        checked = schema.validate(UNDEFINED if value is ABSENT else value)
    except ValidationStopped as error:
        raise NoVerdict(f"No verdict on the value: {error}") from None
    return Valid(ABSENT) if isinstance(checked, Valid) and checked.value is UNDEFINED else checked
