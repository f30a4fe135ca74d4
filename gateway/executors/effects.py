"""An effect as the services' messages name it."""

from __future__ import annotations

from collections.abc import Mapping

from whippletree.v1 import common_pb2

from gateway.engine.contract import EffectRequest
from gateway.executors.contract import RunContext
from protocol.jsjson import JsonValue, dumps

SURROGATE_TEXT = "invalid: an id holds half of a surrogate pair, which no service can be sent."
"""Ids are any Unicode on the Harness API; protobuf has no lone surrogates (design, section 1)."""


def effect_ref(effect: EffectRequest, run: RunContext) -> common_pb2.EffectRef:
    """The reference of an effect. Raises UnicodeEncodeError for an id with a lone surrogate."""
    reference = common_pb2.EffectRef()
    fill_effect_ref(reference, effect, run)
    return reference


def fill_effect_ref(reference: common_pb2.EffectRef, effect: EffectRequest, run: RunContext) -> None:
    """The same, into a message that is there already. Raises UnicodeEncodeError."""
    reference.tenant_id = run.tenant_id
    reference.session_id = run.session_id
    reference.turn_id = run.turn_id
    reference.run_id = run.run_id
    reference.effect_id = effect.effect_id
    reference.agent_id = run.agent_id
    reference.epoch = run.epoch


def js_string(value: JsonValue) -> str:
    """`String(value)` as far as ids need it."""
    return value if isinstance(value, str) else dumps(value)


def member(value: object, name: str) -> JsonValue:
    """A member of an object; None when it is absent or the value is no object."""
    found: JsonValue = value.get(name) if isinstance(value, Mapping) else None
    return found


def objects(value: object) -> list[Mapping[str, JsonValue]]:
    """The objects of a list; empty for anything else."""
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []
