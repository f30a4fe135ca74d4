"""The flow engines once more, as plainly as can be: recursion, one branch after the other, no state to resume.

It shares nothing with the engines but the canonical forms, so that a rule misread there shows as a difference.
It says which effects a segment asks for (as a set) and how it ends. What depends on who answers first stays
open: `ambiguous` is set where version 1 picks a failure by the order in which branches end.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from protocol.canonical import canonical_request, request_hash

GONE: Any = type("Gone", (), {"__repr__": lambda self: "GONE"})()
"""JavaScript's `undefined`."""

Answerer = Callable[[dict[str, Any]], Any]


class Fails(Exception):
    def __init__(self, code: str | None, message: str, path: str | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.path = code, message, path


class Waits(Exception):
    pass


class Pends:
    """What the host answers instead of a value."""

    def __init__(self, status: str) -> None:
        self.status = status


class Breaks:
    """The host raises this message."""

    def __init__(self, message: str) -> None:
        self.message = message


def has(value: Any, name: str) -> bool:
    return isinstance(value, dict) and name in value


def cut(members: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in members.items() if value is not GONE}


def truth(value: Any) -> bool:
    if value is GONE or value is None or value is False or value == "":
        return False
    return not (isinstance(value, int | float) and value == 0)


def in_order(branches: dict[str, Any]) -> dict[str, Any]:
    numbers = [key for key in branches if re.fullmatch("0|[1-9][0-9]{0,9}", key) and int(key) <= 2**32 - 2]
    return {
        key: branches[key] for key in [*sorted(numbers, key=int), *(k for k in branches if k not in numbers)]
    }


def dotted(vector: tuple[int, ...]) -> str:
    return ".".join(map(str, vector)) or "-"


def unwrapped(value: Any) -> tuple[Any, Any]:
    if not isinstance(value, dict) or not {"output", "agent"} <= value.keys():
        return value, GONE
    version = value.get("__nylorunAgentTurn")
    return (value, GONE) if version != 1 or version is True else (value["output"], value["agent"])


class Reading:
    def __init__(
        self, manifest: dict[str, Any], checkpoint: dict[str, Any], answer: Answerer, limits: Any
    ) -> None:
        self.manifest, self.checkpoint, self.answer = manifest, checkpoint, answer
        limits = limits or {}
        self.max_items = 1000 if limits.get("maxMapItems") is None else limits["maxMapItems"]
        self.max_rounds = 100 if limits.get("maxLoopIterations") is None else limits["maxLoopIterations"]
        self.hashes: set[tuple[str, str]] = set()
        self.pending: dict[str, str] = {}
        self.given_up: set[str] = set()
        self.ambiguous = False

    def run(self) -> Any:
        """The output of the whole workflow. Raises Fails and Waits."""
        raise AssertionError("each version has its own")

    def fallback(self) -> str:
        """Where a failure without a path stands."""
        raise AssertionError("each version has its own")

    def result(self) -> dict[str, Any]:
        """How the segment ends, without the wording of its error."""
        try:
            output = self.run()
        except Waits:
            status = "uncertain" if "uncertain" in self.pending.values() else "waiting"
            return {"status": status, "ids": set(self.pending)}
        except Fails as failure:
            code = failure.code or "fn.failed"
            if code == "cancelled":
                return {"status": "cancelled"}
            path = self.fallback() if failure.path is None else failure.path
            return {"status": "failed", "error": (code, failure.message, path), "cancels": self.given_up}
        return {"status": "completed", "output": output}

    def effect(
        self,
        kind: str,
        given: Any,
        path: str,
        key: str,
        vector: tuple[int, ...],
        context: Any,
        role: str = "",
    ) -> Any:
        turn, segment = self.checkpoint["turnId"], self.checkpoint["segment"]
        document = {
            "effectId": f"{turn}:{segment}:flow:{path}:{kind}{role and '.' + role}:{dotted(vector)}",
            "sessionId": self.checkpoint["sessionId"],
            "turnId": turn,
            "agentId": self.manifest["id"],
            "manifestHash": self.checkpoint["manifestHash"],
            "kind": kind,
            "path": path,
            "key": key,
            "iterations": dotted(vector),
            "input": given,
            "context": context,
        }
        document = cut(document)
        if document["effectId"] in self.given_up:
            raise Fails("cancelled", "given up", path)
        self.hashes.add((document["effectId"], request_hash(document)))
        value = self.answer(document)
        if isinstance(value, Breaks):
            raise Fails(None, value.message)
        if isinstance(value, Pends):
            self.pending[document["effectId"]] = value.status
            raise Waits
        if isinstance(value, dict) and value.get("kind") == "failed" and isinstance(value.get("code"), str):
            message, where = value.get("message"), value.get("path")
            raise Fails(
                value["code"],
                message if isinstance(message, str) else value["code"],
                where if isinstance(where, str) else path,
            )
        return value

    def tool(self, value: Any, path: str) -> Any:
        if isinstance(value, dict):
            if value.get("kind") == "completed" and "output" in value:
                return value["output"]
            if value.get("kind") == "denied":
                reason = value.get("reason")
                raise Fails("tool.denied", reason if isinstance(reason, str) else "", path)
        return value

    def side_by_side(self, works: list[Callable[[], Any]], places: list[str], rank: Any = None) -> list[Any]:
        outputs, failures, waits = [], [], False
        for index, work in enumerate(works):
            try:
                outputs.append(work())
            except Waits:
                waits = True
            except Fails as failure:
                if failure.code is None:
                    failure = Fails("fn.failed", failure.message, places[index])
                failures.append(failure)
        if failures:
            self.given_up |= set(self.pending)
            if rank is None:
                raise failures[0]
            ranks = [rank(failure.path or "") for failure in failures]
            self.ambiguous = self.ambiguous or ranks.count(min(ranks)) > 1
            raise failures[ranks.index(min(ranks))]
        if waits:
            raise Waits
        return outputs

    def items(self, value: Any, path: str) -> list[Any]:
        if not isinstance(value, list):
            raise Fails("map.not-a-list", "", path)
        if len(value) > self.max_items:
            raise Fails("map.too-many-items", "", path)
        return value

    def changed(self, agent: Any, pin: Any, is_leaf: bool, path: str) -> Any:
        """What a decision's agent makes of the variant. The pins of these tests have nothing to drop, so a
        variant is the same agent in other words."""
        if is_leaf and pin is not GONE and agent is None:
            raise Fails(None, "")
        if not is_leaf or (pin is not GONE and not self.alike(agent, pin)):
            raise Fails("loop.invalid-agent", "", path)
        return GONE if agent is None else agent

    def alike(self, agent: Any, pin: Any) -> bool:
        bare = [
            {name: value for name, value in one.items() if name not in ("name", "description")}
            for one in (agent, pin)
        ]
        return canonical_request(bare[0]) == canonical_request(bare[1])
