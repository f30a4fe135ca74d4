"""Engine `flow-1`: runs workflow manifests of version 1 (flow-engine 6).

Loops and results are scoped by where nodes stand, so that the ids of concurrent loops don't depend on who
answers first (flow-engine 6.8).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gateway.engine.contract import ABSENT
from gateway.engine.failures import Suspended, WorkFailed
from gateway.engine.flow.attempts import Attempts
from gateway.engine.flow.branches import outputs_of
from gateway.engine.flow.effects import NO_CONTEXT, Context, FlowEffects
from gateway.engine.flow.failures import (
    FN_FAILED,
    LOOP_STOPPED,
    NO_MATCH,
    VERIFY_FAILED,
    NodeFailure,
    Unreadable,
)
from gateway.engine.flow.limits import Limits, check_iteration, items_of
from gateway.engine.flow.scope import OUTSIDE_LOOPS, next_iteration
from gateway.engine.flow.values import (
    AgentTurn,
    Value,
    agent_turn,
    document,
    kind_name,
    listed,
    named,
    tool_output,
    whole,
)
from gateway.engine.tasks import Settled, Together, Within, Work
from protocol.jsjson import js_order

_Node = Mapping[str, Any]
_INDEX: Final = re.compile(r"\[[0-9]+\]")
_FIRST_INDEX: Final = re.compile(r"\[([0-9]+)\]")


@dataclass(slots=True)
class _Scope:
    """What surrounds a node: the results of its chain, and the iterations of its loops."""

    results: dict[str, Value]
    vector: str = OUTSIDE_LOOPS


@dataclass(slots=True)
class _Owner:
    """What a slot can see of the stage that holds it: that one's input, and the item's index in a map."""

    given: Value
    index: int | None = None


def part_of(node: _Node) -> str:
    """The name of a node in paths."""
    while True:
        if "agent" in node:
            return str(node["agent"])
        ((shape, inner),) = node.items()
        if shape == "tool":
            return str(inner["name"])
        if "id" in inner:
            return str(inner["id"])
        node = inner["run"]  # a slot without an id


def key_of(path: str) -> str:
    """A path without the indices of map items."""
    return _INDEX.sub("", path)


class Flow1:
    """One run of a workflow. Works nest as its nodes do."""

    def __init__(self, effects: FlowEffects, limits: Limits) -> None:
        self._effects = effects
        self._limits = limits
        self._stages: dict[str, Callable[[Any, str, _Scope, Value], Work[Value]]] = {
            "agent": self._agent,
            "tool": self._tool,
            "chain": self._chain,
            "switch": self._switch,
            "parallel": self._parallel,
            "map": self._map,
            "loop": self._loop,
        }

    def root(self, manifest: _Node, given: Value) -> Work[Value]:
        """The work of the whole workflow."""
        node = manifest["root"]
        return self._run(node, part_of(node), _Scope({}), given)

    def _run(
        self, node: _Node, path: str, scope: _Scope, given: Value, owner: _Owner | None = None
    ) -> Work[Value]:
        ((shape, inner),) = node.items()
        if shape == "slot":
            return self._slot(inner, path, scope, given, owner)
        return self._stages[shape](inner, path, scope, given)

    # Leaves

    def _slot(
        self, slot: _Node, path: str, scope: _Scope, given: Value, owner: _Owner | None = None
    ) -> Work[Value]:
        if "input" in slot:
            seen = given if owner is None or owner.given.json in (None, ABSENT) else owner.given
            members = {"value": given, "input": seen, "results": named(scope.results)}
            if owner is not None and owner.index is not None:
                members["index"] = whole(owner.index)
            given = yield from self._effects.ask(
                "fn",
                document(members),
                path=path,
                key=f"{key_of(path)}/input",
                iterations=scope.vector,
                context={"role": "slot-input"},
                role="slot-input",
            )
        output: Value = yield Within(self._run(slot["run"], path, scope, given))
        return output

    def _agent(self, agent_id: str, path: str, scope: _Scope, given: Value) -> Work[Value]:
        turn = yield from self._agent_turn(agent_id, path, scope, given)
        return turn.output

    def _agent_turn(
        self,
        agent_id: str,
        path: str,
        scope: _Scope,
        given: Value,
        context: Context = NO_CONTEXT,
        variant: Value | None = None,
    ) -> Work[AgentTurn]:
        members = {"agentId": Value(agent_id, True), "input": given, "path": Value(path, True)}
        if variant is not None:
            members["manifest"] = variant
        value = yield from self._ask_agent(document(members), path, scope, context)
        return agent_turn(value)

    def _ask_agent(self, given: Value, path: str, scope: _Scope, context: Context) -> Work[Value]:
        return self._effects.ask(
            "agent", given, path=path, key=key_of(path), iterations=scope.vector, context=context
        )

    def _tool(self, tool: _Node, path: str, scope: _Scope, given: Value) -> Work[Value]:
        value = yield from self._effects.ask(
            "tool",
            given,
            path=path,
            key=key_of(path),
            iterations=scope.vector,
            context={"toolName": tool["name"]},
        )
        return tool_output(value, path)

    # Stages

    def _chain(self, chain: _Node, path: str, scope: _Scope, given: Value) -> Work[Value]:
        inner = _Scope({}, scope.vector)
        value = given
        for step in chain["steps"]:
            part = part_of(step)
            value = yield Within(self._run(step, f"{path}/{part}", inner, value, _Owner(given)))
            inner.results[part] = value
        return value

    def _switch(self, switch: _Node, path: str, scope: _Scope, given: Value) -> Work[Value]:
        chosen = yield from self._function("on", "switch-on", given, path, scope)
        case = chosen.json
        if not isinstance(case, str):
            raise NodeFailure(FN_FAILED, f"The switch function gave {kind_name(case)}, no name", path)
        if case in switch["cases"]:
            target, name = switch["cases"][case], case
        elif "default" in switch:
            target, name = switch["default"], "default"
        else:
            raise NodeFailure(NO_MATCH, f"The switch has neither a case {case!r} nor a default", path)
        output: Value = yield Within(self._run(target, f"{path}/{name}", scope, given))
        return output

    def _parallel(self, parallel: _Node, path: str, scope: _Scope, given: Value) -> Work[Value]:
        branches = js_order(parallel["branches"])
        ended: list[int] = []
        outputs: list[Value] = []
        if branches:
            settled: list[Settled[Value]] = yield Together(
                [
                    _noted(self._run(branch, f"{path}/{name}", scope, given), ended, index)
                    for index, (name, branch) in enumerate(branches.items())
                ],
                at_once=True,
            )
            names = list(branches)
            outputs = outputs_of(
                settled,
                self._effects,
                path_of=lambda index: f"{path}/{names[index]}",
                choose=lambda failures: _first_by(failures, ended, lambda at: _rank_of_name(at, names)),
            )
        return named(dict(zip(branches, outputs, strict=True)))

    def _map(self, mapping: _Node, path: str, scope: _Scope, given: Value) -> Work[Value]:
        over = yield from self._function("over", "map-over", given, path, scope)
        items = items_of(over, self._limits, path)
        if not items:
            return Value([], True)
        each, part = mapping["each"], part_of(mapping["each"])
        ended: list[int] = []
        settled: list[Settled[Value]] = yield Together(
            [
                _noted(
                    self._run(
                        each,
                        f"{path}[{index}]/{part}",
                        scope,
                        Value(item, over.plain),
                        _Owner(given, index),
                    ),
                    ended,
                    index,
                )
                for index, item in enumerate(items)
            ],
            at_once=True,
        )
        outputs = outputs_of(
            settled,
            self._effects,
            path_of=lambda index: f"{path}[{index}]/{part}",
            choose=lambda failures: _first_by(failures, ended, _rank_of_index),
        )
        return listed(outputs)

    def _loop(self, loop: _Node, path: str, scope: _Scope, given: Value) -> Work[Value]:
        body, attempts = loop["run"], Attempts()
        is_leaf = "agent" in body
        body_path = f"{path}/{part_of(body)}"
        current = given
        n = 0
        while True:
            n += 1
            self._effects.check_abort()
            check_iteration(n, self._limits, path)
            context: Context = {"loopPath": path, "n": n}
            inner = _Scope(scope.results, next_iteration(scope.vector, n))
            output: Value
            if is_leaf:
                turn = yield from self._agent_turn(
                    body["agent"], body_path, inner, current, context, attempts.agent
                )
                output = attempts.ran(turn)
            else:
                output = yield Within(self._run(body, body_path, inner, current, _Owner(given)))
            verdict = yield from self._verdict(loop["verify"], path, inner, context, given, output, n)
            members = {
                "output": output,
                "verdict": verdict,
                "iteration": whole(n),
                "input": given,
                "history": attempts.history(),
            }
            if attempts.agent is not None:
                members["agent"] = attempts.agent
            decision = yield from self._decision(document(members), path, inner, context)
            if isinstance(decision, Value):
                return decision
            attempts.change_agent(decision.agent, is_leaf=is_leaf, path=path)
            attempts.add(n, output, verdict)
            current = decision.given

    def _verdict(
        self,
        verify: _Node,
        path: str,
        scope: _Scope,
        context: Context,
        given: Value,
        output: Value,
        n: int,
    ) -> Work[Value]:
        """What the verifier says, which only the decision reads."""
        if "fn" in verify:
            try:
                verdict = yield from self._effects.ask(
                    "verify",
                    document({"input": given, "output": output, "iteration": whole(n)}),
                    path=path,
                    key=key_of(path),
                    iterations=scope.vector,
                    context=context,
                )
            except NodeFailure as failure:
                if failure.code == VERIFY_FAILED:
                    raise
                raise NodeFailure(VERIFY_FAILED, failure.message, path) from None
            return verdict
        task = document({"task": given, "response": output, "iteration": whole(n)})
        verify_path = f"{path}/{part_of(verify)}"
        try:
            if "agent" in verify:
                members = {"agentId": Value(verify["agent"], True), "input": task}
                members["path"] = Value(verify_path, True)
                verdict = yield from self._ask_agent(
                    document(members), verify_path, scope, {**context, "role": "verify-agent"}
                )
            else:
                verdict = yield Within(self._run(verify, verify_path, scope, task))
        except Suspended:
            raise
        except WorkFailed as failed:
            raise NodeFailure(VERIFY_FAILED, failed.message, path) from None
        return verdict

    def _decision(self, given: Value, path: str, scope: _Scope, context: Context) -> Work[Value | _Retry]:
        """The loop's output, or how it tries again. Raises Unreadable for a decision that is neither."""
        try:
            made = yield from self._effects.ask(
                "fn",
                given,
                path=path,
                key=f"{key_of(path)}/decide",
                iterations=scope.vector,
                context={**context, "role": "decide"},
            )
        except Suspended:
            raise
        except WorkFailed as failure:
            if isinstance(failure, NodeFailure) and failure.code != FN_FAILED:
                raise
            raise NodeFailure(LOOP_STOPPED, failure.message, path) from None
        decision = made.json
        if not isinstance(decision, dict):
            raise Unreadable(f"The loop's decision is {kind_name(decision)}, not an object")
        if "input" in decision:
            agent = Value(decision.get("agent", ABSENT), made.plain)
            return _Retry(Value(decision["input"], made.plain), agent)
        if "output" in decision:
            return Value(decision["output"], made.plain)
        raise Unreadable("The loop's decision has neither an output nor an input")

    def _function(self, name: str, role: str, given: Value, path: str, scope: _Scope) -> Work[Value]:
        return self._effects.ask(
            "fn",
            given,
            path=path,
            key=f"{key_of(path)}/{name}",
            iterations=scope.vector,
            context={"role": role},
        )


@dataclass(slots=True)
class _Retry:
    """A decision to try again, with this input and perhaps another manifest."""

    given: Value
    agent: Value


def _noted(work: Work[Value], ended: list[int], index: int) -> Work[Value]:
    """The work; notes the order in which branches fail."""
    try:
        output: Value = yield Within(work)
    except Suspended:
        raise
    except WorkFailed:
        ended.append(index)
        raise
    return output


def _first_by(
    failures: Sequence[tuple[int, NodeFailure]], ended: Sequence[int], rank: Callable[[str], float]
) -> NodeFailure:
    """The failure of the lowest rank, among equals the one that came first."""
    order = {index: place for place, index in enumerate(ended)}
    return min(failures, key=lambda one: (rank(one[1].path or ""), order[one[0]]))[1]


def _rank_of_index(path: str) -> float:
    found = _FIRST_INDEX.search(path)
    # A double, as in JavaScript: a path may come from an outcome, and int() refuses very long numbers.
    return float(found[1]) if found is not None else float("inf")


def _rank_of_name(path: str, names: Sequence[str]) -> float:
    """By the first branch whose name the path seems to hold, be it only as a part of a longer one."""
    found = (i for i, name in enumerate(names) if f"/{name}" in path or path.endswith(name))
    return next(found, len(names))
