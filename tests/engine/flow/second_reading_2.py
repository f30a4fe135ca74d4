"""The second reading of engine flow-2 (flow-engine 7)."""

from __future__ import annotations

from typing import Any

from tests.engine.flow.second_reading import GONE, Fails, Reading, cut, has, in_order, truth, unwrapped


class Scope2:
    def __init__(
        self,
        agents: Any,
        flow_input: Any,
        results: dict[str, Any],
        flow: tuple[str, ...],
        site_prefix: str,
        key_prefix: str,
        pending: tuple[int, ...],
        indices: tuple[int, ...],
        vector: tuple[int, ...],
    ) -> None:
        self.agents, self.flow_input, self.results, self.flow = agents, flow_input, results, flow
        self.site_prefix, self.key_prefix = site_prefix, key_prefix
        self.pending, self.indices, self.vector = pending, indices, vector

    def but(self, **changes: Any) -> Scope2:
        return Scope2(**{**vars(self), **changes})


def indexed(indices: tuple[int, ...]) -> str:
    return "".join(f"[{index}]" for index in indices)


class Reading2(Reading):
    def run(self) -> Any:
        given = self.checkpoint["input"]
        scope = Scope2(self.manifest["agents"], given, {}, (), "", "", (), (), ())
        return self.node2(self.manifest["root"], "@", scope, given)

    def fallback(self) -> str:
        return str(self.manifest["id"])

    def function2(
        self, kind: str, role: str, members: Any, at: tuple[str, str], s: Scope2, context: Any
    ) -> Any:
        document = cut({**members, "results": cut(s.results), "flowInput": s.flow_input})
        where, key = f"{at[0]}:{role}", f"{at[1]}:{role}"
        return self.effect(kind, document, where, key, s.vector, {"role": role, **context})

    def node2(self, node: Any, position: str, s: Scope2, given: Any) -> Any:
        """Any node but the body of a loop and a verifier that are agents."""
        if "agent" in node:
            return self.agent2(node, s, given, {}, {}, GONE)[0]

        def child(segment: object) -> str:
            return f"@{segment}" if position == "@" else f"{position}.{segment}"

        if "tool" in node:
            name = node["tool"]["name"]
            own = node.get("id", name)
            at = (s.site_prefix + own + indexed(s.pending), s.key_prefix + own)
        else:
            own = s.key_prefix + node.get("id", position)
            at = (own + indexed(s.indices), own)
        if "input" in node:
            given = self.function2("fn", "input", {"input": given}, at, s, {})
        site = at[0]
        if "tool" in node:
            value = self.effect("tool", given, site, at[1], s.vector, {"toolName": node["tool"]["name"]})
            return self.tool(value, site)
        if "chain" in node:
            inner = s.but(results={})
            value = given
            for i, step in enumerate(node["chain"]):
                value = self.node2(step, child(i), inner, value)
                tool_name = step["tool"]["name"] if "tool" in step else None
                name = step.get("id", step.get("agent", tool_name))
                if name is not None:
                    inner.results[name] = value
            return value
        if "switch" in node:
            switch = node["switch"]
            case = self.function2("fn", "on", {"input": given}, at, s, {})
            if not isinstance(case, str):
                raise Fails("fn.failed", "", site)
            if case in switch["cases"]:
                return self.node2(switch["cases"][case], child(case), s, given)
            if "default" in switch:
                return self.node2(switch["default"], child("default"), s, given)
            raise Fails("switch.no-match", "", site)
        if "parallel" in node:
            branches = in_order(node["parallel"])
            works = [
                lambda name=name, branch=branch: self.node2(branch, child(name), s, given)
                for name, branch in branches.items()
            ]
            outputs = self.side_by_side(works, [site] * len(works))
            return cut(dict(zip(branches, outputs, strict=True)))
        if "map" in node:
            works = [
                lambda i=i, item=item: self.node2(
                    node["map"]["each"],
                    child("each"),
                    s.but(pending=(*s.pending, i), indices=(*s.indices, i)),
                    item,
                )
                for i, item in enumerate(self.items(given, site))
            ]
            outputs = self.side_by_side(works, [f"{site}[{i}]" for i in range(len(works))])
            return [None if one is GONE else one for one in outputs]
        return self.loop2(node["loop"], at, child("run"), s, given)

    def agent2(
        self, node: Any, s: Scope2, given: Any, shaping: Any, context: Any, variant: Any
    ) -> tuple[Any, Any]:
        agent_id = node["agent"]
        own = node.get("id", agent_id)
        site, key = s.site_prefix + own + indexed(s.pending), s.key_prefix + own
        if "input" in node:
            given = self.function2("fn", "input", {"input": given}, (site, key), s, shaping)
        agent = s.agents[agent_id]
        if "workflowSchemaVersion" in agent:
            inner = Scope2(
                agent["agents"],
                given,
                {},
                (*s.flow, agent_id),
                f"{site}/",
                f"{key}/",
                (),
                s.indices,
                s.vector,
            )
            return self.node2(agent["root"], "@", inner, given), GONE
        document = cut({"agentId": agent_id, "input": given, "path": site, "manifest": variant})
        if s.flow:
            document["flow"] = list(s.flow)
        return unwrapped(self.effect("agent", document, site, key, s.vector, context))

    def loop2(self, loop: Any, at: tuple[str, str], below: str, outer: Scope2, given: Any) -> Any:
        body, site = loop["run"], at[0]
        is_leaf = "agent" in body and "workflowSchemaVersion" not in outer.agents[body["agent"]]
        current, history = given, []
        pin = variant = GONE
        n = 0
        while True:
            n += 1
            if n > self.max_rounds:
                raise Fails("loop.too-many-iterations", "", site)
            s = outer.but(vector=(*outer.vector, n))
            context = {"loopPath": site, "n": n}
            if is_leaf:
                output, ran = self.agent2(body, s, current, context, context, variant)
                if ran is not GONE and ran is not None:
                    pin, variant = (ran if pin is GONE else pin), ran
            else:
                output = self.node2(body, below, s, current)
            try:
                if "fn" in loop["verify"]:
                    members = {"input": given, "output": output, "iteration": n}
                    verdict = self.function2("verify", "verify", members, at, s, context)
                else:
                    task = cut({"task": given, "response": output, "iteration": n})
                    said = {**context, "role": "verify-agent"}
                    verdict = self.agent2(loop["verify"], s, task, {}, said, GONE)[0]
            except Fails as failure:
                if failure.code == "loop.verify-failed":
                    raise
                raise Fails("loop.verify-failed", failure.message, site) from None
            if "decide" in loop:
                members = {
                    "input": given,
                    "output": output,
                    "verdict": verdict,
                    "iteration": n,
                    "history": list(history),
                    "agent": variant,
                }
                try:
                    decision = self.function2("fn", "decide", members, at, s, context)
                except Fails as failure:
                    if failure.code == "fn.failed":
                        raise Fails("loop.stopped", failure.message, site) from None
                    raise
            elif verdict is None or verdict is GONE:
                raise Fails(None, "")
            elif has(verdict, "pass") and truth(verdict["pass"]):
                decision = {"output": output}
            else:
                decision = {"retry": verdict.get("feedback", GONE) if isinstance(verdict, dict) else GONE}
            if has(decision, "output"):
                return decision["output"]
            if not has(decision, "retry"):
                raise Fails("loop.invalid-decision", "", site)
            if "max" in loop and n >= loop["max"]:
                raise Fails("loop.exhausted", "", site)
            if "agent" in decision:
                variant = self.changed(decision["agent"], pin, is_leaf, site)
            history.append(cut({"iteration": n, "output": output, "verdict": verdict}))
            current = decision["retry"]
