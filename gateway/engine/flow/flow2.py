"""Engine `flow-2`: runs workflow manifests of version 2 (flow-engine 7)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from gateway.engine.contract import ABSENT
from gateway.engine.failures import Suspended, WorkFailed
from gateway.engine.flow.attempts import Attempts
from gateway.engine.flow.branches import first_of, outputs_of
from gateway.engine.flow.effects import NO_CONTEXT, Context, FlowEffects
from gateway.engine.flow.failures import (
    FN_FAILED,
    INVALID_DECISION,
    LOOP_EXHAUSTED,
    LOOP_STOPPED,
    NO_MATCH,
    UNKNOWN_AGENT,
    VERIFY_FAILED,
    NodeFailure,
)
from gateway.engine.flow.limits import Limits, check_iteration, items_of
from gateway.engine.flow.scope import ROOT, Place, Scope, below
from gateway.engine.flow.values import (
    NOTHING,
    AgentTurn,
    Value,
    agent_turn,
    document,
    js_string,
    kind_name,
    listed,
    member,
    named,
    tool_output,
    truthy,
    whole,
)
from gateway.engine.tasks import Settled, Together, Within, Work
from protocol.jsjson import js_order, stringify_number
from protocol.workflow import is_workflow

_Node = Mapping[str, Any]


class Flow2:
    """One run of a workflow. Works nest as its nodes do."""

    def __init__(self, effects: FlowEffects, limits: Limits) -> None:
        self._effects = effects
        self._limits = limits
        self._stages = {
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
        return self._run(manifest["root"], ROOT, Scope(manifest["agents"], given, {}), given)

    def _run(self, node: _Node, position: str, scope: Scope, given: Value) -> Work[Value]:
        shape = next(key for key in node if key in self._stages)
        return self._stages[shape](node, position, scope, given)

    # Leaves

    def _agent(self, node: _Node, _position: str, scope: Scope, given: Value) -> Work[Value]:
        turn = yield from self._agent_turn(node, scope, given)
        return turn.output

    def _agent_turn(
        self,
        node: _Node,
        scope: Scope,
        given: Value,
        *,
        input_context: Context = NO_CONTEXT,
        context: Context = NO_CONTEXT,
        variant: Value | None = None,
    ) -> Work[AgentTurn]:
        """An agent node. A flow agent runs inside this flow, and then no context or variant applies."""
        agent_id = node["agent"]
        place = scope.leaf(node.get("id", agent_id))
        given = yield from self._reshaped(node, place, scope, given, input_context)
        agent = scope.agents.get(agent_id)
        if agent is None:
            raise NodeFailure(
                UNKNOWN_AGENT, f"The flow embeds no agent {agent_id!r}, which a node names", place.site
            )
        if is_workflow(agent):
            inner = scope.of_flow(agent_id, agent, place, given)
            output: Value = yield Within(self._run(agent["root"], ROOT, inner, given))
            return AgentTurn(output)
        members = {
            "agentId": Value(agent_id, True),
            "input": given,
            "path": Value(place.site, True),
        }
        if scope.flow:
            members["flow"] = Value(list(scope.flow), True)
        if variant is not None:
            members["manifest"] = variant
        value = yield from self._effects.ask(
            "agent",
            document(members),
            path=place.site,
            key=place.key,
            iterations=scope.vector,
            context=context,
        )
        return agent_turn(value)

    def _tool(self, node: _Node, _position: str, scope: Scope, given: Value) -> Work[Value]:
        name = node["tool"]["name"]
        place = scope.leaf(node.get("id", name))
        given = yield from self._reshaped(node, place, scope, given)
        value = yield from self._effects.ask(
            "tool",
            given,
            path=place.site,
            key=place.key,
            iterations=scope.vector,
            context={"toolName": name},
        )
        return tool_output(value, place.site)

    # Stages

    def _chain(self, node: _Node, position: str, scope: Scope, given: Value) -> Work[Value]:
        value = yield from self._reshaped(node, scope.stage(node, position), scope, given)
        inner = scope.of_chain()
        for index, step in enumerate(node["chain"]):
            value = yield Within(self._run(step, below(position, str(index)), inner, value))
            name = _result_name(step)
            if name is not None:
                inner.results[name] = value
        return value

    def _switch(self, node: _Node, position: str, scope: Scope, given: Value) -> Work[Value]:
        place = scope.stage(node, position)
        given = yield from self._reshaped(node, place, scope, given)
        chosen = yield from self._function("fn", "on", {"input": given}, place, scope)
        case = chosen.json
        if not isinstance(case, str):
            raise NodeFailure(FN_FAILED, f"The switch function gave {kind_name(case)}, no name", place.site)
        switch = node["switch"]
        if case in switch["cases"]:
            target, segment = switch["cases"][case], case
        elif "default" in switch:
            target, segment = switch["default"], "default"
        else:
            raise NodeFailure(NO_MATCH, f"The switch has neither a case {case!r} nor a default", place.site)
        output: Value = yield Within(self._run(target, below(position, segment), scope, given))
        return output

    def _parallel(self, node: _Node, position: str, scope: Scope, given: Value) -> Work[Value]:
        place = scope.stage(node, position)
        given = yield from self._reshaped(node, place, scope, given)
        branches = js_order(node["parallel"])
        settled: list[Settled[Value]] = yield Together(
            [self._run(branch, below(position, name), scope, given) for name, branch in branches.items()],
            at_once=True,
        )
        outputs = outputs_of(settled, self._effects, path_of=lambda _: place.site, choose=first_of)
        return named(dict(zip(branches, outputs, strict=True)))

    def _map(self, node: _Node, position: str, scope: Scope, given: Value) -> Work[Value]:
        place = scope.stage(node, position)
        given = yield from self._reshaped(node, place, scope, given)
        items = items_of(given, self._limits, place.site)
        if not items:
            return Value([], True)
        each, inner = node["map"]["each"], below(position, "each")
        settled: list[Settled[Value]] = yield Together(
            [
                self._run(each, inner, scope.of_item(index), Value(item, given.plain))
                for index, item in enumerate(items)
            ],
            at_once=True,
        )
        outputs = outputs_of(
            settled, self._effects, path_of=lambda index: f"{place.site}[{index}]", choose=first_of
        )
        return listed(outputs)

    def _loop(self, node: _Node, position: str, scope: Scope, given: Value) -> Work[Value]:
        place = scope.stage(node, position)
        given = yield from self._reshaped(node, place, scope, given)
        loop, attempts = node["loop"], Attempts()
        body = loop["run"]
        is_leaf = "agent" in body and not is_workflow(scope.agents.get(body["agent"]))
        current = given
        n = 0
        while True:
            n += 1
            self._effects.check_abort()
            check_iteration(n, self._limits, place.site)
            context: Context = {"loopPath": place.site, "n": n}
            now = _Iteration(n, place, scope.of_iteration(n), context, given)
            output: Value
            if is_leaf:
                turn = yield from self._agent_turn(
                    body, now.scope, current, input_context=context, context=context, variant=attempts.agent
                )
                output = attempts.ran(turn)
            else:
                output = yield Within(self._run(body, below(position, "run"), now.scope, current))
            verdict = yield from self._verdict(loop["verify"], now, output)
            if "decide" in loop:
                decision = yield from self._decision(now, output, verdict, attempts)
            else:
                decision = _verdict_alone(output, verdict)
            if decision.output is not None:
                return decision.output
            if "max" in loop and n >= loop["max"]:
                raise NodeFailure(LOOP_EXHAUSTED, _exhausted(loop["max"], verdict), place.site)
            attempts.change_agent(decision.agent, is_leaf=is_leaf, path=place.site)
            attempts.add(n, output, verdict)
            current = decision.retry

    def _verdict(self, verify: _Node, now: _Iteration, output: Value) -> Work[Value]:
        """What the verifier says. Every failure but a suspension becomes one of the loop."""
        try:
            if "fn" in verify:
                members = {"input": now.given, "output": output, "iteration": whole(now.n)}
                verdict = yield from self._function(
                    "verify", "verify", members, now.place, now.scope, now.context
                )
                return verdict
            task = document({"task": now.given, "response": output, "iteration": whole(now.n)})
            context: Context = {**now.context, "role": "verify-agent"}
            turn = yield from self._agent_turn(verify, now.scope, task, context=context)
            return turn.output
        except Suspended:
            raise
        except WorkFailed as failure:
            if isinstance(failure, NodeFailure) and failure.code == VERIFY_FAILED:
                raise
            raise NodeFailure(VERIFY_FAILED, failure.message, now.place.site) from None

    def _decision(
        self, now: _Iteration, output: Value, verdict: Value, attempts: Attempts
    ) -> Work[_Decision]:
        members = {
            "input": now.given,
            "output": output,
            "verdict": verdict,
            "iteration": whole(now.n),
            "history": attempts.history(),
        }
        if attempts.agent is not None:
            members["agent"] = attempts.agent
        try:
            made = yield from self._function("fn", "decide", members, now.place, now.scope, now.context)
        except NodeFailure as failure:
            if failure.code != FN_FAILED:
                raise
            raise NodeFailure(LOOP_STOPPED, failure.message, now.place.site) from None
        decision = made.json
        if isinstance(decision, dict):
            if "output" in decision:
                return _Decision(output=Value(decision["output"], made.plain))
            if "retry" in decision:
                agent = Value(decision.get("agent", ABSENT), made.plain)
                return _Decision(retry=Value(decision["retry"], made.plain), agent=agent)
        text = "The loop's decision has neither an output nor a retry"
        raise NodeFailure(INVALID_DECISION, text, now.place.site)

    # Effects

    def _reshaped(
        self, node: _Node, place: Place, scope: Scope, given: Value, context: Context = NO_CONTEXT
    ) -> Work[Value]:
        """What the node gets: what its input function makes of the value, if it has one."""
        if "input" not in node:
            return given
        value = yield from self._function("fn", "input", {"input": given}, place, scope, context)
        return value

    def _function(
        self,
        kind: Literal["fn", "verify"],
        role: str,
        members: Mapping[str, Value],
        place: Place,
        scope: Scope,
        context: Context = NO_CONTEXT,
    ) -> Work[Value]:
        """A function of the application, which sees the results and the flow's input beside its own members."""
        given = document({**members, "results": named(scope.results), "flowInput": scope.flow_input})
        value = yield from self._effects.ask(
            kind,
            given,
            path=f"{place.site}:{role}",
            key=f"{place.key}:{role}",
            iterations=scope.vector,
            context={"role": role, **context},
        )
        return value


@dataclass(slots=True)
class _Iteration:
    """One iteration of a loop: `given` is what the loop itself got."""

    n: int
    place: Place
    scope: Scope
    context: Context
    given: Value


@dataclass(slots=True)
class _Decision:
    """How a loop goes on: it ends with an output, or tries again with another input."""

    output: Value | None = None
    retry: Value = NOTHING
    agent: Value = NOTHING


def _verdict_alone(output: Value, verdict: Value) -> _Decision:
    """The decision where no function decides. Raises Unreadable for a verdict that is null."""
    if truthy(member(verdict.json, "pass", "The verdict")):
        return _Decision(output=output)
    return _Decision(retry=Value(member(verdict.json, "feedback", "The verdict"), verdict.plain))


def _exhausted(most: int, verdict: Value) -> str:
    """Shown to users, and to the letter."""
    text = f"Loop stopped after {stringify_number(most)} attempt{'' if most == 1 else 's'}"
    found = verdict.json if isinstance(verdict.json, dict) else {}
    if truthy(found.get("pass", ABSENT)):
        return text
    return f"{text}: {js_string(found.get('feedback', ABSENT))}"


def _result_name(step: _Node) -> str | None:
    """Under which name a step's output is among the results; None for an unnamed control stage."""
    if "id" in step:
        return str(step["id"])
    if "agent" in step:
        return str(step["agent"])
    return str(step["tool"]["name"]) if "tool" in step else None
