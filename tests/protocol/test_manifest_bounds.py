"""Deep and large manifests: an answer in bounded time, and never a RecursionError."""

from __future__ import annotations

import contextlib
import time
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.manifest import ManifestInvalid, validate_agent_manifest
from protocol.workflow import validate_workflow_v2
from tests.protocol.manifests import agent, delegate, flow, refusal, tool, with_capability


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"a": [value]}
    return value


def test_free_parts_may_nest_as_deep_as_a_document_can() -> None:
    validate_agent_manifest(agent(metadata=deep(440), outputSchema={"a": deep(440)}))
    validate_agent_manifest(with_capability(tools=[tool(inputSchema={"a": deep(440)})]))


def test_nodes_and_workflows_may_nest_as_deep_as_a_document_can() -> None:
    node: Any = {"agent": "x"}
    for _ in range(440):
        node = {"chain": [node]}
    validate_workflow_v2(flow(node))
    inner = flow({"tool": {"name": "t"}}, {}, id="x")
    for _ in range(440):
        inner = flow({"agent": "x"}, {"x": inner}, id="x")
    validate_workflow_v2(inner)
    validate_agent_manifest(with_capability(tools=[delegate({**inner, "description": "Flows."})]))


def test_the_place_of_a_deep_error_is_named_whole() -> None:
    node: Any = {"agent": "gone"}
    for _ in range(440):
        node = {"chain": [node]}
    error = refusal(flow(node), workflow=True)
    assert error.path == "root" + ".chain[0]" * 440 + ".agent"


def test_the_place_of_a_delegates_wrong_schema_is_found_however_deep_it_nests() -> None:
    made = delegate(agent(id="kid", description="Helps."), inputSchema={"properties": {"task": deep(440)}})
    assert refusal(with_capability(tools=[made])).path == "capabilities[0].tools[0].inputSchema"


def test_ten_thousand_tools_and_five_megabytes_take_little_time() -> None:
    tools = [tool(f"t{index}", description="x" * 450) for index in range(10_000)]
    begun = time.monotonic()
    validate_agent_manifest(with_capability(tools=tools))
    validate_workflow_v2(flow({"chain": [{"agent": "x"}] * 200_000}))
    validate_workflow_v2(
        flow({"agent": "x"}, {f"k{n}": agent(id=f"k{n}") for n in range(20_000)} | {"x": agent(id="x")})
    )
    assert refusal(with_capability(tools=[*tools, tools[0]])).path == "capabilities[0].tools[10000].name"
    assert time.monotonic() - begun < 30


KEYS = [
    "manifestSchemaVersion",
    "id",
    "capabilities",
    "tools",
    "name",
    "inputSchema",
    "agent",
    "kind",
    "root",
    "agents",
    "chain",
    "loop",
    "run",
    "verify",
    "max",
    "fn",
    "type",
    "sandbox",
    "hooks",
    "mcpServers",
]
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 5)
    | st.sampled_from(["", "m", "x", "agent", "workflow", "stdio"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=12,
)


@settings(max_examples=300, deadline=None)
@given(JSON, st.booleans())
def test_any_document_passes_or_is_refused_by_the_one_error(value: Any, in_workflow: bool) -> None:
    check = validate_workflow_v2 if in_workflow else validate_agent_manifest
    for document in (value, agent(capabilities=[value]), with_capability(tools=[value]), flow(value)):
        with contextlib.suppress(ManifestInvalid):
            check(document)
