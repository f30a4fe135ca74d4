"""Turns that a real gateway records: the real engine, a core in memory, scripted executors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gateway.engine.factory import make_engine
from gateway.recording.recorder import Recorder
from protocol import jsjson
from protocol.canonical import manifest_hash
from tests.gateway.support import gateway, lease, logs
from tests.gateway.virtual_time import run_virtually

CLOSE_BOUND_S = 30.0
MANIFEST: dict[str, Any] = {
    "manifestSchemaVersion": 4,
    "id": "clerk",
    "capabilities": [
        {
            "id": "desk",
            "type": "agent",
            "instructions": ["Be terse."],
            "tools": [{"name": "note", "inputSchema": {"type": "object"}}],
        }
    ],
}
FIRST_MODEL = "t1:0:model:invocation_t1_0_1"
FIRST_TOOL = "t1:0:tool:invocation_t1_0_2"
SECOND_TOOL = "t1:0:tool:invocation_t1_0_3"
LAST_MODEL = "t1:0:model:invocation_t1_0_4"
EFFECTS = [FIRST_MODEL, FIRST_TOOL, SECOND_TOOL, LAST_MODEL]


def call(name: str, call_id: str, **args: Any) -> dict[str, Any]:
    return {"type": "tool-call", "id": call_id, "name": name, "args": args}


def says(text: str) -> dict[str, Any]:
    return {"output": [{"type": "text", "text": text}], "finishReason": "stop"}


BEHAVIOURS: dict[str, Any] = {
    FIRST_MODEL: {"output": [call("note", "c1", text="milk"), call("note", "c2", text="eggs")]},
    FIRST_TOOL: {"kind": "completed", "output": {"kept": 1.5}},
    SECOND_TOOL: {"kind": "completed", "output": "kept \ud800"},
    LAST_MODEL: says("Noted."),
}
"""A turn of four effects: a model call, two tools at once, and the answer."""


def turn(text: str = "go", manifest: Mapping[str, Any] = MANIFEST, **changes: Any) -> dict[str, Any]:
    """A lease of one turn."""
    checkpoint = {
        "version": 1,
        "engineVersion": "hosted-3",
        "manifestHash": manifest_hash(manifest),
        "sessionId": changes.get("session_id", "s1"),
        "turnId": changes.pop("turn_id", "t1"),
        "segment": 0,
        "input": text,
        **changes.pop("checkpoint", {}),
    }
    routing = {"rootManifest": manifest, **changes.pop("routing", {})}
    return lease(manifest=manifest, checkpoint=checkpoint, routing=routing, **changes)


def recorder_in(folder: Path, **limits: Any) -> Recorder:
    """A recorder whose clock stands."""
    bounds = {"max_file_bytes": 1 << 20, "max_folder_bytes": 1 << 24, **limits}
    return Recorder.in_folder(str(folder), made="whippletree 9.9.9", **bounds)


def answers_at_once(core: Any) -> None:
    """Core lets every effect be executed and keeps what is reported."""
    core.auto["effect.intent"] = {"status": "execute"}
    core.auto["effect.outcome"] = lambda params: (
        {"status": "completed", "outcome": {"value": params["value"]}}
        if "value" in params
        else {"status": "uncertain"}
    )
    for method in ("turn.completed", "turn.failed", "turn.waiting", "turn.paused", "checkpoint"):
        core.auto[method] = {}


def record_turn(
    folder: Path,
    given: dict[str, Any] | None = None,
    behaviours: Mapping[str, Any] = BEHAVIOURS,
    *,
    prepare: Callable[[Any], None] | None = None,
    ends_with: str = "turn.completed",
) -> Path:
    """Records one whole turn in a folder; the file."""

    async def scenario() -> None:
        async with gateway(make_engine=make_engine) as gw:
            gw.host.recorder = recorder = recorder_in(folder)
            answers_at_once(gw.core)
            gw.fake.behaviours.update(behaviours)
            if prepare is not None:
                prepare(gw)
            end = await gw.core.connection()
            end.answer(await end.expect("lease"), given or turn())
            await end.seen(ends_with)
        assert recorder.close(CLOSE_BOUND_S)

    before = set(folder.glob("*"))
    with logs():
        run_virtually(scenario())
    (path,) = set(folder.glob("*")) - before
    return path


def lines_of(path: Path) -> list[dict[str, Any]]:
    """A recording's lines."""
    return [jsjson.loads(line) for line in path.read_bytes().splitlines()]  # type: ignore[misc]


def write_lines(path: Path, lines: list[dict[str, Any]]) -> Path:
    """Writes a recording anew."""
    path.write_bytes(b"".join(jsjson.dumps_bytes(line) + b"\n" for line in lines))
    return path
