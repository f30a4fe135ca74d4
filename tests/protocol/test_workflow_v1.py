from __future__ import annotations

from typing import Any

import pytest

from protocol.workflow import ManifestInvalid, validate_workflow
from tests.protocol.manifests import agent, flow

FN = {"fn": True}
A = {"agent": "a"}


def v1(root: Any, **members: Any) -> dict[str, Any]:
    return {"kind": "workflow", "workflowSchemaVersion": 1, "id": "w", "root": root, **members}


def refusal(document: Any) -> ManifestInvalid:
    with pytest.raises(ManifestInvalid) as error:
        validate_workflow(document)
    return error.value


EVERY = v1(
    {
        "chain": {
            "id": "c",
            "steps": [
                A,
                {"tool": {"name": "t", "description": "", "inputSchema": {}, "outputSchema": {}}},
                {"switch": {"id": "s", "on": FN, "cases": {}}},
                {"switch": {"id": "s", "on": FN, "cases": {"": A, "x": A}, "default": A}},
                {"parallel": {"id": "p", "branches": {}}},
                {"parallel": {"id": "p", "branches": {"x": A}}},
                {"map": {"id": "m", "over": FN, "each": {"slot": {"run": A}}}},
                {"loop": {"id": "l", "run": A, "verify": FN, "decide": FN}},
                {"loop": {"id": "l", "run": A, "verify": A, "decide": FN}},
                {"loop": {"id": "l", "run": A, "verify": {"slot": {"run": A}}, "decide": FN}},
                {"slot": {"id": "x", "input": FN, "run": {"slot": {"run": A}}}},
            ],
        }
    },
    sandbox={"image": "a"},
)


def test_a_workflow_with_every_kind_of_node_passes() -> None:
    assert validate_workflow(EVERY) == 1
    assert validate_workflow(flow(A, {"a": agent(id="a")})) == 2


@pytest.mark.parametrize(
    ("document", "path", "said"),
    [
        (5, "", "must be an object"),
        ({"kind": "workflow"}, "workflowSchemaVersion", "missing"),
        ({**EVERY, "workflowSchemaVersion": 3}, "workflowSchemaVersion", "1 or 2"),
        ({**EVERY, "workflowSchemaVersion": True}, "workflowSchemaVersion", "1 or 2"),
        ({**EVERY, "kind": "flow"}, "kind", "must be 'workflow'"),
        ({**EVERY, "id": ""}, "id", "must not be empty"),
        ({**EVERY, "agents": {}}, "agents", "unknown member"),
        ({**EVERY, "sandbox": {"cpus": 1}}, "sandbox.cpus", "unknown member"),
        (v1({**A, "id": "x"}), "root.id", "unknown member"),
        (v1({**A, "tool": {"name": "t"}}), "root", "agent and tool"),
        (v1({}), "root", "it has none"),
        (v1([]), "root", "must be an object"),
        (v1({"agent": ""}), "root.agent", "must not be empty"),
        (v1({"tool": {}}), "root.tool.name", "missing"),
        (v1({"chain": [A]}), "root.chain", "must be an object"),
        (v1({"chain": {"id": "c", "steps": []}}), "root.chain.steps", "at least one"),
        (v1({"chain": {"steps": [A]}}), "root.chain.id", "missing"),
        (v1({"switch": {"id": "s", "on": {"fn": 1}, "cases": {}}}), "root.switch.on.fn", "must be true"),
        (v1({"switch": {"id": "s", "on": FN}}), "root.switch.cases", "missing"),
        (
            v1({"switch": {"id": "s", "on": FN, "cases": {"x": 1}}}),
            "root.switch.cases.x",
            "must be an object",
        ),
        (v1({"parallel": {"id": "p"}}), "root.parallel.branches", "missing"),
        (v1({"map": {"id": "m", "each": A}}), "root.map.over", "missing"),
        (v1({"map": {"id": "", "over": FN, "each": A}}), "root.map.id", "must not be empty"),
        (v1({"loop": {"id": "l", "run": A, "verify": FN}}), "root.loop.decide", "missing"),
        (
            v1({"loop": {"id": "l", "run": A, "verify": {"tool": {"name": "t"}}, "decide": FN}}),
            "root.loop.verify",
            "an agent node or a slot",
        ),
        (
            v1({"loop": {"id": "l", "run": A, "verify": {**FN, **A}, "decide": FN}}),
            "root.loop.verify.agent",
            "unknown member",
        ),
        (v1({"slot": {"id": 1, "run": A}}), "root.slot.id", "must be a string"),
        (v1({"slot": {"run": A, "input": True}}), "root.slot.input", "must be an object"),
        (v1({"slot": {"id": "x"}}), "root.slot.run", "missing"),
    ],
)
def test_the_first_broken_rule_is_named_with_its_place(document: Any, path: str, said: str) -> None:
    error = refusal(document)
    assert error.path == path
    assert said in error.message


def test_nodes_nest_two_hundred_deep_and_no_deeper() -> None:
    node: Any = A
    for _ in range(199):
        node = {"slot": {"run": node}}
    assert validate_workflow(v1(node)) == 1
    assert refusal(v1({"slot": {"run": node}})).path == "root" + ".slot.run" * 200


def test_a_nested_flow_is_counted_at_the_deepest_node_that_names_it() -> None:
    inner = flow({"chain": [{"tool": {"name": "t"}}]}, {}, id="inner")
    node: Any = {"agent": "inner"}
    for _ in range(196):
        node = {"chain": [node]}
    assert validate_workflow(flow({"chain": [{"agent": "inner"}, node]}, {"inner": inner})) == 2
    error = refusal(flow({"chain": [{"agent": "inner"}, {"chain": [node]}]}, {"inner": inner}))
    assert error.path == "agents.inner.root.chain[0]"


def test_a_flow_that_nobody_names_is_counted_by_itself() -> None:
    node: Any = {"tool": {"name": "t"}}
    for _ in range(199):
        node = {"chain": [node]}
    unused = flow(node, {}, id="unused")
    assert validate_workflow(flow({"tool": {"name": "t"}}, {"unused": unused})) == 2
    deeper = flow({"chain": [node]}, {}, id="unused")
    assert refusal(flow({"tool": {"name": "t"}}, {"unused": deeper})).path.startswith("agents.unused.root")


def test_flows_that_agents_have_as_tools_are_not_counted() -> None:
    from protocol.manifest import validate_agent_manifest
    from tests.protocol.manifests import delegate, with_capability

    node: Any = {"tool": {"name": "t"}}
    for _ in range(300):
        node = {"chain": [node]}
    made = delegate({**flow(node, {}, id="x"), "description": "Flows."})
    validate_agent_manifest(with_capability(tools=[made]))
