from __future__ import annotations

from typing import Any

import pytest

from protocol.workflow import validate_workflow_v2
from tests.protocol.manifests import agent, delegate, flow, refusal, with_capability

FN = {"fn": True}
X = {"agent": "x"}

MAILROOM = {
    "kind": "workflow",
    "workflowSchemaVersion": 2,
    "id": "mailroom",
    "name": "Mail room",
    "description": "",
    "metadata": {},
    "inputSchema": {"type": "object"},
    "outputSchema": {},
    "sandbox": {"image": "a"},
    "root": {
        "chain": [
            {"agent": "sorter", "id": "first", "input": FN},
            {
                "switch": {
                    "on": FN,
                    "cases": {
                        "invoice": {
                            "loop": {"run": {"agent": "clerk"}, "verify": {"agent": "auditor"}, "max": 3}
                        },
                        "spam": {"tool": {"name": "discard", "description": "", "inputSchema": {}}},
                    },
                    "default": {"map": {"each": {"agent": "nested"}}, "input": FN},
                },
                "id": "dispatch",
            },
            {"parallel": {"tone": {"agent": "sorter"}, "2": {"switch": {"on": FN, "cases": {}}}}},
            {"loop": {"run": {"agent": "clerk"}, "verify": FN, "decide": FN}},
        ]
    },
    "agents": {
        "sorter": agent(id="sorter"),
        "clerk": agent(id="clerk"),
        "auditor": agent(id="auditor"),
        "unused": agent(id="unused"),
        "nested": {**flow(X), "id": "nested"},
    },
}


def test_a_workflow_with_every_kind_of_node_passes() -> None:
    validate_workflow_v2(MAILROOM)


def test_an_empty_workflow_may_have_no_agents() -> None:
    validate_workflow_v2(flow({"tool": {"name": "t"}}, {}))


@pytest.mark.parametrize(
    ("document", "path", "said"),
    [
        (5, "", "must be an object, not a number"),
        ({**flow(X), "kind": "flow"}, "kind", "must be 'workflow'"),
        ({**flow(X), "workflowSchemaVersion": 3}, "workflowSchemaVersion", "must be 2, not 3"),
        ({**flow(X), "workflowSchemaVersion": None}, "workflowSchemaVersion", "must be 2, not null"),
        ({**flow(X), "id": ""}, "id", "must not be empty"),
        ({**flow(X), "name": ""}, "name", "must not be empty"),
        ({**flow(X), "description": 1}, "description", "must be a string"),
        ({**flow(X), "metadata": []}, "metadata", "must be an object"),
        ({**flow(X), "inputSchema": True}, "inputSchema", "must be an object"),
        ({**flow(X), "sandbox": {"cpus": 1}}, "sandbox.cpus", "unknown member"),
        ({**flow(X), "agents": []}, "agents", "must be an object"),
        ({**flow(X), "limits": {}}, "limits", "unknown member"),
        (
            {key: value for key, value in flow(X).items() if key != "agents"},
            "agents",
            "is required and missing",
        ),
        (flow(X, {"x": agent(id="y")}), "agents.x.id", "must equal its key 'x'"),
        (flow(X, {"x": None}), "agents.x", "must be an object, not null"),
        (flow(X, {"": agent(id="")}), "agents", "an agent's key must not be empty"),
        (flow(X, {"x": {**agent(id="x"), "model": 1}}), "agents.x.model", "unknown member"),
        (
            flow(
                X, {"x": {"kind": "workflow", "workflowSchemaVersion": 1, "id": "x", "root": X, "agents": {}}}
            ),
            "agents.x.workflowSchemaVersion",
            "must be 2, not 1",
        ),
        (flow(X, {"x": {**flow({"agent": "y"}), "id": "x"}}), "agents.x.root.agent", "names 'y'"),
        (flow({"agent": "gone"}), "root.agent", "names 'gone', which is no key of this workflow's agents"),
        (flow({"agent": ""}), "root.agent", "must not be empty"),
        (flow({}), "root", "a node has exactly one of agent, tool, chain"),
        (flow([]), "root", "must be an object, not an array"),
        (flow({"agent": "x", "tool": {"name": "t"}}), "root", "it has agent and tool"),
        (flow({"slot": {"run": X}}), "root", "it has none"),
        (flow({"agent": "x", "to": 1}), "root.to", "unknown member"),
        (flow({"agent": "x", "id": ""}), "root.id", "must not be empty"),
        (flow({"agent": "x", "input": {"fn": False}}), "root.input.fn", "must be true"),
        (flow({"agent": "x", "input": {"fn": 1}}), "root.input.fn", "must be true"),
        (flow({"agent": "x", "input": {"fn": True, "a": 1}}), "root.input.a", "unknown member"),
        (flow({"agent": "x", "input": True}), "root.input", "must be an object"),
        (flow({"tool": {"name": ""}}), "root.tool.name", "must not be empty"),
        (flow({"tool": {"name": "t", "inputSchema": 1}}), "root.tool.inputSchema", "must be an object"),
        (flow({"chain": []}), "root.chain", "a chain needs at least one step"),
        (flow({"chain": [X, {"agent": "y"}]}), "root.chain[1].agent", "names 'y'"),
        (flow({"parallel": {}}), "root.parallel", "a parallel node needs at least one branch"),
        (flow({"parallel": {"a b": {}}}), "root.parallel['a b']", "a node has exactly one of"),
        (flow({"switch": {"cases": {}}}), "root.switch.on", "is required"),
        (flow({"switch": {"on": FN, "cases": []}}), "root.switch.cases", "must be an object"),
        (
            flow({"switch": {"on": FN, "cases": {"a": {"agent": "y"}}}}),
            "root.switch.cases.a.agent",
            "names 'y'",
        ),
        (
            flow({"switch": {"on": FN, "cases": {}, "default": None}}),
            "root.switch.default",
            "must be an object",
        ),
        (flow({"map": {"each": X, "over": FN}}), "root.map.over", "unknown member"),
        (flow({"loop": {"run": X, "verify": FN}}), "root.loop", "a loop needs max or decide"),
        (flow({"loop": {"run": X, "verify": FN, "max": 0}}), "root.loop.max", "of at least 1"),
        (flow({"loop": {"run": X, "verify": FN, "max": 1.5}}), "root.loop.max", "of at least 1"),
        (flow({"loop": {"run": X, "verify": FN, "max": 2.0**60}}), "root.loop.max", "of at least 1"),
        (flow({"loop": {"run": X, "verify": FN, "decide": {}}}), "root.loop.decide.fn", "is required"),
        (
            flow({"loop": {"run": X, "verify": {"chain": [X]}, "max": 1}}),
            "root.loop.verify",
            "or an agent node",
        ),
        (
            flow({"loop": {"run": X, "verify": {"agent": "y"}, "max": 1}}),
            "root.loop.verify.agent",
            "names 'y'",
        ),
    ],
)
def test_a_broken_rule_is_refused_at_its_place(document: Any, path: str, said: str) -> None:
    error = refusal(document, workflow=True)
    assert error.path == path
    assert said in error.message


def test_the_first_broken_node_in_document_order_is_named() -> None:
    broken = {"chain": [{"parallel": {"a": X, "b": {"agent": "one"}}}, {"agent": "two"}]}
    assert refusal(flow(broken), workflow=True).path == "root.chain[0].parallel.b.agent"


def test_agents_of_a_workflow_may_have_agents_as_tools() -> None:
    outer = {**with_capability(tools=[delegate(agent(id="kid", description="Helps."))]), "id": "x"}
    validate_workflow_v2(flow(X, {"x": outer}))
