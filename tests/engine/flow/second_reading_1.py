"""The second reading of engine flow-1 (flow-engine 6)."""

from __future__ import annotations

import re
from typing import Any

from tests.engine.flow.second_reading import GONE, Fails, Reading, cut, has, in_order, unwrapped


class Reading1(Reading):
    def run(self) -> Any:
        root = self.manifest["root"]
        return self.node1(root, part(root), (), {}, self.checkpoint["input"])

    def fallback(self) -> str:
        return part(self.manifest["root"])

    def node1(
        self, node: Any, path: str, vector: tuple[int, ...], results: Any, given: Any, owner: Any = None
    ) -> Any:
        key = re.sub(r"\[[0-9]+\]", "", path)
        ((shape, inner),) = node.items()
        if shape == "slot":
            if "input" in inner:
                seen, index = owner or (given, None)
                document = {"value": given, "input": given if seen in (None, GONE) else seen}
                document["results"] = cut(results)
                if index is not None:
                    document["index"] = index
                context = {"role": "slot-input"}
                given = self.effect("fn", cut(document), path, f"{key}/input", vector, context, "slot-input")
            return self.node1(inner["run"], path, vector, results, given)
        if shape == "agent":
            document = cut({"agentId": inner, "input": given, "path": path})
            return unwrapped(self.effect("agent", document, path, key, vector, {}))[0]
        if shape == "tool":
            return self.tool(self.effect("tool", given, path, key, vector, {"toolName": inner["name"]}), path)
        if shape == "chain":
            own: dict[str, Any] = {}
            value = given
            for step in inner["steps"]:
                value = self.node1(step, f"{path}/{part(step)}", vector, own, value, (given, None))
                own[part(step)] = value
            return value
        if shape == "switch":
            name = self.effect("fn", given, path, f"{key}/on", vector, {"role": "switch-on"})
            if not isinstance(name, str):
                raise Fails("fn.failed", "", path)
            if name in inner["cases"]:
                return self.node1(inner["cases"][name], f"{path}/{name}", vector, results, given)
            if "default" in inner:
                return self.node1(inner["default"], f"{path}/default", vector, results, given)
            raise Fails("switch.no-match", "", path)
        if shape == "parallel":
            branches = in_order(inner["branches"])

            def by_name(where: str) -> int:
                fits = [i for i, b in enumerate(branches) if f"/{b}" in where or where.endswith(b)]
                return fits[0] if fits else len(branches)

            works = [
                lambda name=name, branch=branch: self.node1(branch, f"{path}/{name}", vector, results, given)
                for name, branch in branches.items()
            ]
            outputs = self.side_by_side(works, [f"{path}/{name}" for name in branches], by_name)
            return cut(dict(zip(branches, outputs, strict=True)))
        if shape == "map":
            listed = self.effect("fn", given, path, f"{key}/over", vector, {"role": "map-over"})
            places = [f"{path}[{i}]/{part(inner['each'])}" for i in range(len(self.items(listed, path)))]

            def by_index(where: str) -> float:
                found = re.search(r"\[([0-9]+)\]", where)
                return int(found[1]) if found else float("inf")

            works = [
                lambda i=i, item=item: self.node1(inner["each"], places[i], vector, results, item, (given, i))
                for i, item in enumerate(listed)
            ]
            return [None if one is GONE else one for one in self.side_by_side(works, places, by_index)]
        return self.loop1(inner, path, key, vector, results, given)

    def loop1(self, loop: Any, path: str, key: str, outer: tuple[int, ...], results: Any, given: Any) -> Any:
        body, verify = loop["run"], loop["verify"]
        below = f"{path}/{part(body)}"
        below_key = re.sub(r"\[[0-9]+\]", "", below)
        current, history = given, []
        pin = variant = GONE
        n = 0
        while True:
            n += 1
            vector = (*outer, n)
            if n > self.max_rounds:
                raise Fails("loop.too-many-iterations", "", path)
            context = {"loopPath": path, "n": n}
            if "agent" in body:
                document = cut(
                    {"agentId": body["agent"], "input": current, "path": below, "manifest": variant}
                )
                output, ran = unwrapped(self.effect("agent", document, below, below_key, vector, context))
                if ran is not GONE and ran is not None:
                    pin, variant = (ran if pin is GONE else pin), ran
            else:
                output = self.node1(body, below, vector, results, current, (given, None))
            if "fn" in verify:
                document = cut({"input": given, "output": output, "iteration": n})
                try:
                    verdict = self.effect("verify", document, path, key, vector, context)
                except Fails as failure:
                    if failure.code in (None, "loop.verify-failed"):
                        raise
                    raise Fails("loop.verify-failed", failure.message, path) from None
            else:
                task = cut({"task": given, "response": output, "iteration": n})
                at = f"{path}/{part(verify)}"
                try:
                    if "agent" in verify:
                        document = {"agentId": verify["agent"], "input": task, "path": at}
                        at_key = re.sub(r"\[[0-9]+\]", "", at)
                        said = {**context, "role": "verify-agent"}
                        verdict = self.effect("agent", document, at, at_key, vector, said)
                    else:
                        verdict = self.node1(verify, at, vector, results, task)
                except Fails as failure:
                    raise Fails("loop.verify-failed", failure.message, path) from None
            document = cut(
                {
                    "output": output,
                    "verdict": verdict,
                    "iteration": n,
                    "input": given,
                    "history": list(history),
                    "agent": variant,
                }
            )
            try:
                decision = self.effect(
                    "fn", document, path, f"{key}/decide", vector, {**context, "role": "decide"}
                )
            except Fails as failure:
                if failure.code in (None, "fn.failed"):
                    raise Fails("loop.stopped", failure.message, path) from None
                raise
            if not has(decision, "input"):
                if has(decision, "output"):
                    return decision["output"]
                raise Fails(None, "")
            if "agent" in decision:
                variant = self.changed(decision["agent"], pin, "agent" in body, path)
            history.append(cut({"iteration": n, "output": output, "verdict": verdict}))
            current = decision["input"]


def part(node: Any) -> str:
    ((shape, inner),) = node.items()
    if shape == "agent":
        return str(inner)
    if shape == "tool":
        return str(inner["name"])
    return str(inner["id"]) if "id" in inner else part(inner["run"])
