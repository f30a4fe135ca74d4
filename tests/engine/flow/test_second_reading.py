"""Both engines against a second reading of their rules, over workflows and answers made at random."""

from __future__ import annotations

import random
from typing import Any

import pytest

from gateway.engine.contract import HostError
from tests.engine.flow.second_reading import GONE, Breaks, Pends
from tests.engine.flow.second_reading_1 import Reading1
from tests.engine.flow.second_reading_2 import Reading2
from tests.engine.flow.support import FN, PENDING, UNCERTAIN, agent, checkpoint, flow, flow1, marker, run

LIMITS = {"maxMapItems": 3, "maxLoopIterations": 3}
AGENTS, TOOLS = ["a", "b", "ä", "constructor"], ["t", "send", "__proto__"]
BRANCHES = ["x", "10", "2", "é", "toString"]
VALUES = ["text", "", None, 0, 1.5, True, False, {"n": 1}, {}, [], [1, [2]], {"kind": "completed"}]
HOST = {"pending": PENDING, "uncertain": UNCERTAIN}


class Maker:
    """Makes workflows, and what core answers: by an effect's id alone, so that repeated asks agree."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.seed = seed
        self.left = self.rng.randint(1, 9)
        self.trouble = self.rng.choice([0, 0, 0.03, 0.1])
        self.waits = self.rng.choice([0, 0, 0.1, 0.4])
        self.names = 0

    def named(self) -> str:
        self.names += 1
        return self.rng.choice([f"n{self.names}", f"n{self.names}", "same"])

    def branches(self, make: Any, least: int) -> dict[str, Any]:
        return {name: make() for name in self.rng.sample(BRANCHES, self.rng.randint(least, 3))}

    def node2(self, flows: bool = True) -> dict[str, Any]:
        rng = self.rng
        self.left -= 1
        nested = ["inner", "empty"] if flows else []
        node: dict[str, Any]
        kind = rng.randrange(9) if self.left > 0 else rng.randrange(2)
        below = lambda: self.node2(flows)  # noqa: E731
        if kind == 0:
            node = {"tool": {"name": rng.choice(TOOLS)}}
        elif kind <= 2:
            node = {"agent": rng.choice([*AGENTS, *nested])}
        elif kind == 3:
            node = {"switch": {"on": FN, "cases": self.branches(below, 0)}}
            if rng.random() < 0.5:
                node["switch"]["default"] = below()
        elif kind == 4:
            node = {"parallel": self.branches(below, 1)}
        elif kind == 5:
            node = {"map": {"each": below()}}
        elif kind == 6:
            loop: dict[str, Any] = {"run": below(), "verify": FN}
            if rng.random() < 0.5:
                loop["verify"] = {"agent": rng.choice([*AGENTS, *nested]), **rng.choice([{}, {"input": FN}])}
            loop.update(rng.choice([{"max": 2}, {"decide": FN}, {"max": 2, "decide": FN}]))
            node = {"loop": loop}
        else:
            node = {"chain": [below() for _ in range(rng.randint(1, 3))]}
        if rng.random() < 0.3:
            node["id"] = self.named()
        if rng.random() < 0.3 or "map" in node:
            node["input"] = FN
        return node

    def workflow2(self) -> dict[str, Any]:
        inner = flow(self.node2(flows=False), *AGENTS, name="inner")
        empty = flow({"map": {"each": {"agent": "a"}}, "id": "m"}, "a", name="empty")
        return flow(self.node2(), *AGENTS, inner, empty)

    def node1(self) -> dict[str, Any]:
        rng = self.rng
        self.left -= 1
        kind = rng.randrange(10) if self.left > 0 else rng.randrange(2)
        name = self.named()
        if kind == 0:
            return {"tool": {"name": rng.choice(TOOLS)}}
        if kind <= 2:
            return {"agent": rng.choice(AGENTS)}
        if kind == 3:
            switch: dict[str, Any] = {"id": name, "on": FN, "cases": self.branches(self.node1, 0)}
            if rng.random() < 0.5:
                switch["default"] = self.node1()
            return {"switch": switch}
        if kind == 4:
            return {"parallel": {"id": name, "branches": self.branches(self.node1, 0)}}
        if kind == 5:
            return {"map": {"id": name, "over": FN, "each": self.node1()}}
        if kind == 6:
            verify = rng.choice([FN, {"agent": "b"}, None]) or self.slot()
            return {"loop": {"id": name, "run": self.node1(), "verify": verify, "decide": FN}}
        if kind == 7:
            return self.slot()
        return {"chain": {"id": name, "steps": [self.node1() for _ in range(rng.randint(1, 3))]}}

    def slot(self) -> dict[str, Any]:
        options = self.rng.choice([{}, {"input": FN}, {"input": FN, "id": self.named()}])
        return {"slot": {"run": self.node1(), **options}}

    def answer(self, document: dict[str, Any]) -> Any:
        rng = random.Random(f"{self.seed} {document['effectId']}")
        chance = rng.random()
        if chance < self.waits:
            return Pends(rng.choice(["pending", "pending", "uncertain"]))
        chance = rng.random()
        if chance < self.trouble:
            code = rng.choice(["fn.failed", "agent.failed", "cancelled", "loop.verify-failed", 5])
            where = rng.choice([{}, {}, {"path": "else[1]/where"}])
            return {"kind": "failed", "code": code, "message": "m", **where}
        if chance < self.trouble * 1.5:
            return Breaks("drift")
        context = document["context"]
        good = rng.random() > self.trouble
        role = context.get("role", document["kind"])
        if role in ("input", "map-over") and good:
            return rng.choice([[1, None], ["one", [2]], [], [0, 1, 2, 3], "shaped"])
        if role in ("on", "switch-on") and good:
            return rng.choice([*BRANCHES, "default"])
        if role == "decide" and good:
            return self.decision(rng)
        if document["kind"] == "verify" or role == "verify-agent":
            verdict = rng.choice([{"pass": rng.choice(VALUES), "feedback": "more"}, {"pass": False}, *VALUES])
            return rng.choice([verdict, marker(verdict, agent("b"))])
        if document["kind"] == "tool" and rng.random() < 0.5:
            return rng.choice(
                [
                    {"kind": "completed", "output": rng.choice(VALUES)},
                    {"kind": "denied", "reason": rng.choice([1, "no"])},
                ]
            )
        value = rng.choice(VALUES)
        if document["kind"] == "agent":
            ran = agent(document["input"]["agentId"], name=rng.choice(["A", "B"]))
            return rng.choice(
                [
                    value,
                    marker(value, rng.choice([ran, ran, None])),
                    {**marker(value, ran), "__nylorunAgentTurn": True},
                ]
            )
        return value

    def decision(self, rng: random.Random) -> Any:
        ends = rng.choice(
            [{"output": rng.choice(VALUES)}, {"retry": 1, "input": 2}, {"retry": None, "input": None}]
        )
        both = rng.choice([{}, {}, {}, {"output": "both"}])
        other = rng.choice(
            [{}, {}, {}, {"agent": agent("a", name="C")}, {"agent": agent("b")}, {"agent": None}]
        )
        return rng.choice([{**ends, **both, **other}] * 5 + VALUES)


def differ(version: int, seed: int) -> None:
    maker = Maker(seed)
    manifest = flow1(maker.node1()) if version == 1 else maker.workflow2()
    given = maker.rng.choice(["in", None, [1, 2], {"a": 1}])
    read = Reading1 if version == 1 else Reading2
    reading = read(manifest, checkpoint(manifest, given), maker.answer, LIMITS)
    expected = reading.result()

    def answer(effect: Any) -> Any:
        value = maker.answer(dict(effect.document))
        if isinstance(value, Breaks):
            return HostError("effect_drift", value.message)
        return HOST[value.status] if isinstance(value, Pends) else value

    order = random.Random(seed)
    played = run(manifest, given, answer, limits=LIMITS, choose=lambda waiting: order.randrange(len(waiting)))
    result = played.result
    assert played.hashes == reading.hashes
    assert result.status == expected["status"]
    match result.status:
        case "completed":
            found = (
                GONE
                if result.output is not None and repr(result.output).startswith("<Absent")
                else result.output
            )
            assert repr(found) == repr(expected["output"])
        case "failed":
            code, message, path = expected["error"]
            assert set(result.cancel_effect_ids) == expected["cancels"]
            if not reading.ambiguous:
                assert played.code_and_path == (code, path)
                assert not message or played.error["message"] == message
        case "waiting" | "uncertain":
            assert set(result.effect_ids) == expected["ids"]


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("group", range(5))
def test_a_second_reading_of_the_rules_comes_to_the_same(version: int, group: int) -> None:
    for seed in range(group * 100, group * 100 + 100):
        differ(version, seed)
