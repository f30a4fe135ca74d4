from __future__ import annotations

from typing import Any

import pytest

from protocol.manifest import validate_agent_manifest
from tests.protocol.manifests import agent, delegate, flow, refusal, sandboxed, tool, with_capability

CHILD = agent(id="kid", description="Helps.")
FLOW = {**flow({"agent": "x"}), "id": "kid", "description": "Helps."}
AT = "capabilities[0].tools[0]"


def holding(*tools: dict[str, Any]) -> dict[str, Any]:
    return with_capability(tools=list(tools))


@pytest.mark.parametrize("child", [CHILD, FLOW])
def test_an_agent_and_a_workflow_may_be_tools(child: dict[str, Any]) -> None:
    validate_agent_manifest(holding(delegate(child)))


def test_the_members_of_the_delegate_schema_may_stand_in_any_order() -> None:
    schema = delegate(CHILD)["inputSchema"]
    validate_agent_manifest(holding(delegate(CHILD, inputSchema=dict(reversed(schema.items())))))


@pytest.mark.parametrize(
    ("made", "path", "said"),
    [
        (delegate(CHILD, name="other"), f"{AT}.name", "must equal the agent's id 'kid', not be 'other'"),
        (delegate(CHILD, description="Other."), f"{AT}.description", "must equal the agent's description"),
        (
            delegate(CHILD, inputSchema={"type": "object"}),
            f"{AT}.inputSchema",
            "must be exactly the delegate schema",
        ),
        (delegate(CHILD, outputSchema={}), f"{AT}.outputSchema", "a tool that is an agent has none"),
        (delegate(agent(id="kid", description=" \ufeff\n")), f"{AT}.agent.description", "that is not blank"),
        ({**delegate(CHILD), "agent": agent(id="kid")}, f"{AT}.agent.description", "that is not blank"),
        (
            {**delegate(CHILD), "agent": {"description": "Helps."}},
            f"{AT}.agent.id",
            "is required and missing",
        ),
        (delegate({**CHILD, "model": 1}), f"{AT}.agent.model", "unknown member"),
        (
            delegate({**CHILD, "manifestSchemaVersion": 5}),
            f"{AT}.agent.manifestSchemaVersion",
            "must be 4, not 5",
        ),
        (
            delegate({**FLOW, "workflowSchemaVersion": 1}),
            f"{AT}.agent.workflowSchemaVersion",
            "must be 2, not 1",
        ),
        (delegate({**FLOW, "root": {"agent": "y"}}), f"{AT}.agent.root.agent", "names 'y', which is no key"),
    ],
)
def test_a_broken_rule_between_tool_and_agent_is_refused(made: dict[str, Any], path: str, said: str) -> None:
    error = refusal(holding(made))
    assert error.path == path
    assert said in error.message


def test_numbers_and_booleans_of_the_delegate_schema_are_told_apart() -> None:
    made = delegate(CHILD)
    made["inputSchema"]["additionalProperties"] = 0
    assert refusal(holding(made)).path == f"{AT}.inputSchema"


def test_an_agent_that_is_a_tool_has_no_agents_as_tools() -> None:
    inner = holding(delegate(CHILD))
    error = refusal(holding(delegate({**inner, "id": "outer", "description": "Asks."})))
    assert error.path == f"{AT}.agent.capabilities[0].tools[0].agent"
    assert "move this one to the outer agent" in error.message


def test_names_of_an_agent_and_its_tools_agents_are_apart() -> None:
    child = {**with_capability(tools=[tool("kid"), tool("t")]), "id": "kid", "description": "Helps."}
    validate_agent_manifest(holding(delegate(child), tool("t")))


def test_an_agent_and_its_agents_share_one_sandbox() -> None:
    child = {**sandboxed({"image": "a"}), "id": "kid", "description": "Helps."}
    validate_agent_manifest(sandboxed({"image": "a"}, tools=[delegate(child)]))
    error = refusal(sandboxed({"image": "b"}, tools=[delegate(child)]))
    assert error.path == "capabilities[0].tools[6].agent.capabilities[0].sandbox"
    assert "differs from the sandbox at capabilities[0].sandbox" in error.message


def test_two_agents_as_tools_share_one_sandbox_too() -> None:
    one = {**sandboxed({"image": "a"}), "id": "one", "description": "Helps."}
    two = {**sandboxed({"image": "b"}), "id": "two", "description": "Helps."}
    assert "share one sandbox" in refusal(holding(delegate(one), delegate(two))).message


def test_the_sandbox_of_a_workflow_counts_unless_it_is_empty() -> None:
    validate_agent_manifest(sandboxed({"image": "a"}, tools=[delegate({**FLOW, "sandbox": {}})]))
    error = refusal(sandboxed({"image": "a"}, tools=[delegate({**FLOW, "sandbox": {"image": "b"}})]))
    assert error.path == "capabilities[0].tools[6].agent.sandbox"


def test_a_broken_sandbox_of_a_workflow_is_refused() -> None:
    error = refusal(holding(delegate({**FLOW, "sandbox": {"image": ""}})))
    assert error.path == f"{AT}.agent.sandbox.image"
