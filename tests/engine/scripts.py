"""Generated agents, and scripts that answer whatever they ask for as a pure function of the effect."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from gateway.engine.contract import EffectRequest
from tests.engine.support import agent_of, call, capability, delegate, text, tool

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=4,
)

NUMBERED = {"type": "object", "properties": {"n": {"type": "integer", "default": 1}}, "required": []}
TOOLS = (
    tool("free"),
    tool("numbered") | {"inputSchema": NUMBERED},
    tool("checked", outputSchema={"type": "object", "properties": {"a": {"type": "string"}}}),
)
FLOW = {
    "kind": "workflow",
    "workflowSchemaVersion": 2,
    "id": "pipeline",
    "description": "Runs.",
    "root": {"agent": "plain"},
    "agents": {"plain": {"manifestSchemaVersion": 4, "id": "plain", "capabilities": []}},
}
POINTS = ("before-turn", "before-step", "after-step", "after-turn")

# Manifests


@st.composite
def manifests(draw: Any) -> dict[str, Any]:
    """An agent with tools, and maybe hooks, agents of its own and an output schema."""
    hooks = st.lists(st.sampled_from(POINTS), max_size=3, unique=True).map(
        lambda points: " ".join(sorted(points, key=POINTS.index))
    )
    none = st.just("")
    delegates: list[dict[str, Any]] = []
    if draw(st.sampled_from([True, True, False])):
        child = capability("core", TOOLS[0], hooks=draw(none | none | hooks), instructions=["Find."])
        shape = draw(st.sampled_from([{}, {}, {"outputSchema": {"type": "object"}}]))
        delegates.append(delegate(agent_of(child, id="scout", description="Finds.", **shape)))
        if draw(st.booleans()):
            delegates.append(delegate(FLOW))
    desk = capability("desk", *TOOLS[:2], *delegates, hooks=draw(none | hooks))
    rack = capability(draw(st.sampled_from(["rack", "agent"])), TOOLS[2], hooks=draw(none | hooks))
    shape = draw(st.sampled_from([{}, {}, {}, {"outputSchema": {"type": "object"}}]))
    return agent_of(desk, rack, **shape)


# Answers

IDS = "xyz"
CALLS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("free", {}),
    ("free", {"b": 1, "a": 2}),
    ("free", {"": 1, "10": 2, "9": 3}),
    ("numbered", {}),
    ("numbered", {"n": 2}),
    ("checked", {}),
)
ODD_CALLS: tuple[tuple[str, dict[str, Any]], ...] = (("numbered", {"n": "no"}), ("gone", {}), ("", {}))
DELEGATIONS: tuple[tuple[str, dict[str, Any]], ...] = (
    *(("scout", {"task": task}) for task in "abc"),
    ("pipeline", {"task": "run"}),
)
ODD_BLOCKS = (call("x", "free"), call("", "free"))
"""An id twice, and no id."""
BLOCKS = (
    text("a"),
    text(" "),
    text("w" * 900),
    {"type": "reasoning", "text": "r", "providerMetadata": {"replay": "turn"}},
    {"type": "reasoning", "text": "s", "providerMetadata": {"replay": "always"}},
)
ABOUT = (
    {},
    {},
    {},
    {"evidence": {"extras": {"contextWindow": 500, "maxOutputTokens": 50}}},
    {"usage": {"totalTokens": 480}, "evidence": {"extras": {"contextWindow": 500}}},
)
ANSWERS = (
    "words",
    {"output": [{"type": "json", "value": {"b": 1, "a": 2}}]},
    {"output": []},
    {"kind": "failed", "code": "overloaded", "message": "m", "retryable": True},
    {"kind": "failed", "code": "context_overflow", "message": "m", "retryable": False},
    {"kind": "failed", "code": "context_overflow", "message": "m", "retryable": False},
    5,
)
BAGS = ({"a": 1}, {"a": 2, "b": 1}, {"a": 3, "": 0})
BEFORE: tuple[Any, ...] = (
    None,
    {},
    {"instructions": ["Be kind."]},
    {"active": False},
    {"active": True},
    {"tools": {"free": False}},
    *({"state": bag} for bag in BAGS),
    {"state": {"d": 1}, "instructions": ["Be brief."]},
)
AFTER: tuple[Any, ...] = (
    None,
    {},
    {},
    {"deny": [{"id": "x", "reason": "no"}]},
    {"approve": [{"id": "x", "prompt": "?"}, {"id": "z", "prompt": "?"}]},
    {"approve": [{"id": "y", "prompt": "?"}]},
    {"retry": "again"},
    {"text": "clean"},
)
STOPS: tuple[Any, ...] = ({"block": "stop"}, "no object")


def _candidates(made: Sequence[tuple[str, dict[str, Any]]]) -> st.SearchStrategy[Any]:
    calls = st.builds(
        lambda blocks, chosen, odd, about: {"output": [*blocks, *_with_ids(chosen), *odd], **about},
        st.lists(st.sampled_from(BLOCKS), max_size=2),
        st.lists(st.sampled_from(made), min_size=1, max_size=3),
        st.sampled_from([(), (), (), *((block,) for block in ODD_BLOCKS)]),
        st.sampled_from(ABOUT),
    )
    return st.one_of(*[calls] * 7, st.sampled_from(ANSWERS))


def _with_ids(chosen: Sequence[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    return [call(id_, name, **args) for id_, (name, args) in zip(IDS, chosen, strict=False)]


def _outcomes() -> st.SearchStrategy[Any]:
    values = st.one_of(
        st.sampled_from(
            [
                {"kind": "failed", "code": "a.b", "message": "m"},
                {"kind": "denied", "reason": "r"},
                {"kind": "failed"},
                {"kind": "completed", "output": "r" * 900},
                {"kind": "completed"},
                {"kind": "deferred", "token": 1},
                *(
                    {"kind": "interaction-required", "interaction": {"kind": kind, "prompt": "?"}, "token": 1}
                    for kind in ("approval", "response", "quiz")
                ),
            ]
        ),
        JSON,
    )
    patch = st.sampled_from([{}, *({"statePatch": bag} for bag in BAGS)])
    return st.builds(lambda value, patched: {"value": value, **patched}, values, patch)


def _pool(items: Sequence[Any], rare: Sequence[Any] = ()) -> st.SearchStrategy[list[Any]]:
    return st.lists(st.sampled_from([*items, *items, *rare]), min_size=1, max_size=4)


_NUMBER = re.compile(r"(\d+)$")
LAST_SEGMENT = 4
LAST_INVOCATION = 8


@dataclass(frozen=True)
class Script:
    """Pools of answers; which one an effect gets depends on its id alone, and late ones end the turn."""

    manifest: dict[str, Any]
    candidates: list[Any]
    outcomes: list[Any]
    before: list[Any]
    after: list[Any]
    flow: Any
    summary: str
    limit: int | None

    def answer(self, effect: EffectRequest) -> dict[str, Any]:
        """The outcome of an effect."""
        if effect.kind == "model":
            return {"value": self._model(effect.effect_id)}
        if effect.kind == "hook":
            return {"value": {"results": self.hook_results(effect)}}
        if effect.kind == "agent":
            return {"value": self.flow}
        if effect.kind == "delegation":
            return {"value": None}
        context: Any = effect.document["context"]
        if "resume" in context:
            return {"value": {"kind": "completed", "output": context["resume"]}}
        return dict(_pick(self.outcomes, effect.effect_id))

    def hook_results(self, effect: EffectRequest) -> dict[str, Any]:
        """What a hook effect is answered, by capability."""
        hook: Any = effect.document["hook"]
        if hook["at"] == "before":
            pool = self.before
        else:
            shown: Any = effect.document["input"]
            pool = self.after if shown["attempt"] < 2 else [{}]
        return {name: _pick(pool, f"{name} {effect.effect_id}") for name in hook["capabilityIds"]}

    def _model(self, effect_id: str) -> Any:
        if "compaction-" in effect_id:
            return self.summary
        number = _NUMBER.search(effect_id)
        assert number is not None
        segment = int(effect_id.split(":")[1])
        if segment >= LAST_SEGMENT or int(number.group()) >= LAST_INVOCATION:
            return "done"
        return _pick(self.candidates, effect_id)


def _pick(pool: Sequence[Any], name: str) -> Any:
    return pool[zlib.crc32(name.encode()) % len(pool)]


_PLAIN = _candidates((*CALLS, *CALLS, *ODD_CALLS))
_DELEGATING = _candidates((*CALLS, *CALLS, *ODD_CALLS, *DELEGATIONS, *DELEGATIONS))


@st.composite
def _scripts(draw: Any) -> Script:
    manifest = draw(manifests())
    tools = manifest["capabilities"][0]["tools"]
    candidates = _DELEGATING if any("agent" in tool for tool in tools) else _PLAIN
    return Script(
        manifest,
        draw(st.lists(candidates, min_size=2, max_size=4)),
        draw(st.lists(_outcomes(), min_size=2, max_size=4)),
        draw(_pool(BEFORE, STOPS)),
        draw(_pool(AFTER, STOPS)),
        draw(st.sampled_from([None, "x", {"a": 1}, {"kind": "failed", "code": "a.b"}])),
        draw(st.sampled_from(["Summary.", "Summary.", "Summary.", ""])),
        draw(st.none() | st.integers(1, 2)),
    )


SCRIPTS = _scripts()
