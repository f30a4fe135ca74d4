"""The conversation of a session as people read it, drawn from its log.

The log rather than the transcript: it also has the turn that is under way, and turns that failed or were
cancelled. An item's `seq` is its event's, so that a page continues after the last one.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from protocol import jsjson
from services.dev_core.core import Core
from services.dev_core.store import effects
from services.dev_core.store.events import Event
from services.dev_core.store.sessions import Session

_MAX_PAGE_CHARS: Final = 8 * 1024 * 1024
TYPES: Final = (
    "turn.started",
    "turn.resumed",
    "message.assistant",
    "model.failed",
    "tool.completed",
    "agent.completed",
    "function.completed",
    "verify.completed",
    "delegation.completed",
    "transcript.updated",
    "effect.uncertain",
    "turn.paused",
    "turn.completed",
    "turn.failed",
    "turn.cancelled",
)


async def items_page(core: Core, session: Session, after: int, limit: int) -> dict[str, Any]:
    """Items of the events after a seq, of at most `limit` events; `after` continues when there is more."""
    session_id = session.id
    page = await core.events(session_id, after, limit=limit, max_chars=_MAX_PAGE_CHARS, types=TYPES)
    calls: dict[str | None, set[str]] = {}
    for event in page:
        if event.type == "transcript.updated" and event.turn_id and event.turn_id not in calls:
            read = partial(effects.call_ids, session_id=session_id, turn_id=event.turn_id)
            calls[event.turn_id] = await core.store.read(read)
    is_flow = session.engine != "agent"
    items = [
        item for event in page for item in _items(event, calls.get(event.turn_id, set()), is_flow=is_flow)
    ]
    more = {"after": page[-1].seq} if page else {}
    return {"items": items, **more}


def _items(event: Event, calls: set[str], *, is_flow: bool) -> Iterator[dict[str, Any]]:
    payload: Any = jsjson.loads(event.payload)
    place = {"seq": event.seq, "turnId": event.turn_id}
    match event.type:
        case "turn.started":
            yield {**place, "type": "message", "role": "user", **_user(payload["input"], is_flow=is_flow)}
        case "turn.resumed":
            yield {**place, "type": "answer", **payload["input"]}
        case "message.assistant" | "model.failed" if "compaction" in payload:
            return  # said to the engine, not to the reader
        case "message.assistant":
            yield from _blocks(place, payload)
        case "model.failed":
            yield {**place, "type": "model_failed", **_source(payload), "error": payload["outcome"]["value"]}
        case "tool.completed" | "agent.completed" | "function.completed" | "verify.completed" if is_flow:
            yield {**place, "type": "stage_result", **_stage(payload), "result": payload["outcome"]["value"]}
        case "agent.completed":
            return  # the delegation around it says the same
        case "tool.completed":
            yield {
                **place,
                "type": "tool_result",
                **_source(payload),
                "callId": payload.get("callId"),
                "toolName": payload.get("toolName"),
                "result": payload["outcome"]["value"],
            }
        case "delegation.completed":
            yield {
                **place,
                "type": "tool_result",
                "effectId": payload["effectId"],
                "callId": payload.get("callId"),
                "toolName": payload.get("agent", {}).get("id"),
                "result": payload.get("input", {}).get("outcome"),
            }
        case "transcript.updated":
            yield from _immediate_results(place, payload, calls)
        case "turn.paused":
            yield {**place, "type": "paused", "pending": payload["pending"]}
        case "effect.uncertain":
            yield {**place, "type": "uncertain", **payload}
        case kind:
            yield {**place, "type": kind.partition(".")[2], **payload}


def _user(given: Any, *, is_flow: bool) -> dict[str, Any]:
    if isinstance(given, str):
        return {"content": [{"type": "text", "text": given}]}
    if is_flow:
        return {"content": [{"type": "json", "value": given}]}
    content = given["content"] if "content" in given else [{"type": "text", "text": given["text"]}]
    return {"content": content} | ({"metadata": given["metadata"]} if "metadata" in given else {})


def _stage(payload: Any) -> dict[str, Any]:
    names = ("effectId", "kind", "path", "iterations", "agentId", "toolName", "role")
    return {name: payload[name] for name in names if name in payload}


def _source(payload: Any) -> dict[str, Any]:
    return {"effectId": payload["effectId"]} | ({"agent": payload["agent"]} if "agent" in payload else {})


def _blocks(place: dict[str, Any], payload: Any) -> Iterator[dict[str, Any]]:
    source = {**place, **_source(payload)}
    value = payload["outcome"]["value"]
    if isinstance(value, str):
        yield {**source, "type": "message", "role": "assistant", "content": [{"type": "text", "text": value}]}
        return
    blocks = value.get("output") if isinstance(value, dict) else None
    for block in blocks if isinstance(blocks, list) else []:
        match block:
            case {"type": "tool-call"}:
                yield {
                    **source,
                    "type": "tool_call",
                    "callId": block.get("id"),
                    "toolName": block.get("name"),
                    "args": block.get("args"),
                }
            case {"type": "reasoning"}:
                yield {**source, "type": "reasoning", "text": block.get("text")}
            case {"type": "text" | "json"}:
                yield {**source, "type": "message", "role": "assistant", "content": [block]}


def _immediate_results(place: dict[str, Any], payload: Any, calls: set[str]) -> Iterator[dict[str, Any]]:
    """Results of calls that never were effects: unknown tools, bad arguments, denials."""
    for entry in payload["entries"]:
        if not isinstance(entry, dict) or entry.get("kind") != "tool-results":
            continue
        for result in entry.get("results", ()):
            if result.get("callId") not in calls:
                yield {
                    **place,
                    "type": "tool_result",
                    "callId": result.get("callId"),
                    "toolName": result.get("toolName"),
                    "result": {k: v for k, v in result.items() if k not in ("callId", "toolName")},
                }
