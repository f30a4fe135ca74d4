"""Compares what an engine did in a step with what was recorded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any, Final

from gateway.engine.contract import ABSENT, SegmentResult
from gateway.runs.output import thrown_output, turn_output
from protocol import jsjson
from tests.vectors.segment_host import ABORT_MESSAGES, Played, whole_effect

_EXACT_CODES: Final = frozenset({"loop.exhausted"})


def difference(got: Any, expected: Any, path: str = "") -> str | None:
    """Where two JSON values differ first, or None. Member order is free; true is not 1."""
    where = path or "/"
    if isinstance(got, dict) and isinstance(expected, dict):
        for key in expected:
            if key not in got:
                return f"{where} lacks {key}"
            found = difference(got[key], expected[key], f"{path}/{key}")
            if found is not None:
                return found
        extra = [key for key in got if key not in expected]
        return f"{where} has {extra} too much" if extra else None
    if isinstance(got, list) and isinstance(expected, list):
        for index, (one, other) in enumerate(zip(got, expected, strict=False)):
            found = difference(one, other, f"{path}/{index}")
            if found is not None:
                return found
        return None if len(got) == len(expected) else f"{where} has {len(got)} items, not {len(expected)}"
    if got == expected and isinstance(got, bool) == isinstance(expected, bool):
        return None
    return f"{where} is {jsjson.dumps(got)}, not {jsjson.dumps(expected)}"


def plain(value: Any) -> Any:
    """The value as it reads after it was written: raw parts and tuples become values."""
    return jsjson.loads(jsjson.dumps(value))


def quotable(step: Mapping[str, Any]) -> set[str]:
    """Every text that the engine was given in a step: a flow's message that is one of them quotes it."""
    texts = set(ABORT_MESSAGES.values())
    left: list[Any] = [step["input"], step.get("answers", {})]
    while left:
        value = left.pop()
        if isinstance(value, str):
            texts.add(value)
        elif isinstance(value, dict):
            left.extend(value.values())
        elif isinstance(value, list):
            left.extend(value)
    return texts


def fault_of(
    played: Played, expected: Mapping[str, Any], *, quoted: Collection[str] | None = None
) -> str | None:
    """The first difference, or None.

    With `quoted` an error's message counts only when it is one of these texts, or users are told it to the
    letter: an engine words its own messages as it likes.
    """
    fault = _effects_fault(played, expected.get("effects", []))
    if fault is not None:
        return fault
    if "thrown" in expected:
        return _thrown_fault(played, expected)
    if played.refused is not None:
        return f"refused: {played.refused.code}: {played.refused.message}"
    assert played.result is not None
    got, wanted = plain(result_document(played.result)), expected["result"]
    if quoted is not None:
        got, wanted = _comparable(got, wanted, quoted)
    found = difference(_sorted_ids(got), _sorted_ids(wanted))
    if found is not None:
        return f"result: {found}"
    if "output" in expected:
        method, params = turn_output("run", played.result, played.transcript)
        output, recorded = {"method": method, "params": plain(params)}, expected["output"]
        if quoted is not None:
            output, recorded = _comparable(output, recorded, quoted)
        return _output_fault(output, recorded)
    return None


def _comparable(got: Any, wanted: Any, quoted: Collection[str]) -> tuple[Any, Any]:
    """Both documents, without the error's message where its wording is free."""
    error = _error_of(wanted)
    if error is None or error["code"] in _EXACT_CODES or error["message"] in quoted:
        return got, wanted
    return _without_message(got), _without_message(wanted)


def _error_of(document: Any) -> Any:
    inner = document.get("result", document.get("params"))
    return inner.get("error") if isinstance(inner, dict) else None


def _without_message(document: Any) -> Any:
    name = "result" if "result" in document else "params"
    error = _error_of(document)
    if error is None:
        return document
    assert error["message"], "an error says something"
    return {**document, name: {**document[name], "error": {**error, "message": ""}}}


def result_document(result: SegmentResult) -> dict[str, Any]:
    """A result in the form of the recordings."""
    if result.effect_ids:
        return {"status": result.status, "effectIds": list(result.effect_ids)}
    inner: dict[str, Any] = {"status": result.status}
    if result.state is not None:
        transcript = [entry.raw() for entry in result.transcript or ()]
        inner["state"] = {**result.state, "transcript": transcript}
    for name, value in (("output", result.output), ("pending", result.pending), ("error", result.error)):
        if value is not ABSENT:
            inner[name] = value
    document: dict[str, Any] = {"status": result.status, "result": inner}
    if result.cancel_effect_ids:
        document["cancelEffectIds"] = list(result.cancel_effect_ids)
    return document


def _sorted_ids(document: Any) -> Any:
    if not isinstance(document, dict):
        return document
    names = [name for name in ("effectIds", "cancelEffectIds") if name in document]
    return {**document, **{name: sorted(document[name]) for name in names}}


def _thrown_fault(played: Played, expected: Mapping[str, Any]) -> str | None:
    if played.refused is None:
        return f"not refused: {expected['thrown']}"
    code = expected["thrown"].get("code")
    if played.refused.code != code:
        return f"refused with {played.refused.code} ({played.refused.message}), not {code}"
    method, params = thrown_output("run", played.refused.code, "")
    recorded = plain(expected["output"])
    recorded["params"]["thrown"]["message"] = ""
    return _output_fault({"method": method, "params": plain(params)}, recorded)


def _output_fault(got: Any, expected: Any) -> str | None:
    found = difference(_sorted_output(got), _sorted_output(expected))
    return None if found is None else f"output: {found}"


def _sorted_output(output: Any) -> Any:
    return {**output, "params": _sorted_ids(output["params"])}


def _effects_fault(played: Played, expected: list[Any]) -> str | None:
    got = {effect.effect_id: (effect, known) for effect, known in played.asked}
    asked = Counter(effect.effect_id for effect, _ in played.asked)
    wanted = Counter(effect["effectId"] for effect in expected)
    if asked != wanted:
        return f"asked {sorted(asked - wanted)} too much, {sorted(wanted - asked)} too little"
    for effect in expected:
        request, known = got[effect["effectId"]]
        document = whole_effect(request)
        members = {"requestHash": request.request_hash, "recorded": known, **document}
        if bool(effect.get("recorded")) != known:
            return f"{request.effect_id}: recorded {known}"
        for name, value in effect.items():
            found = f"no {name}" if name not in members else difference(members[name], value, f"/{name}")
            if found is not None:
                return f"{request.effect_id}: {found}"
        if "input" in effect and set(members) - {"requestHash", "recorded"} - set(effect):
            return f"{request.effect_id}: members {sorted(members)}, not {sorted(effect)}"
    order = [effect.effect_id for effect, _ in played.asked if effect.kind == "model" and _is_root(effect)]
    listed = [effect["effectId"] for effect in expected if effect["effectId"] in set(order)]
    return None if order == listed else f"model calls in the order {order}, not {listed}"


def _is_root(effect: Any) -> bool:
    return "agent" not in effect.document
