"""Small manifests for tests."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from protocol.manifest import DELEGATE_INPUT_SCHEMA, SANDBOX_TOOLS, ManifestInvalid, validate_agent_manifest
from protocol.workflow import validate_workflow_v2


def agent(**members: Any) -> dict[str, Any]:
    return {"manifestSchemaVersion": 4, "id": "m", "capabilities": [], **members}


def with_capability(**members: Any) -> dict[str, Any]:
    return agent(capabilities=[{"id": "c", "type": "agent", **members}])


def tool(name: str = "t", **members: Any) -> dict[str, Any]:
    return {"name": name, "inputSchema": {"type": "object"}, **members}


def sandboxed(spec: Any, **members: Any) -> dict[str, Any]:
    tools = [tool(name) for name in SANDBOX_TOOLS]
    return with_capability(sandbox=spec, tools=[*tools, *members.pop("tools", [])], **members)


def delegate(child: dict[str, Any], **members: Any) -> dict[str, Any]:
    return {
        "name": child.get("id"),
        "description": child.get("description"),
        "inputSchema": deepcopy(DELEGATE_INPUT_SCHEMA),
        "agent": child,
        **members,
    }


def flow(root: Any, agents: dict[str, Any] | None = None, **members: Any) -> dict[str, Any]:
    found = {"x": agent(id="x")} if agents is None else agents
    return {
        "kind": "workflow",
        "workflowSchemaVersion": 2,
        "id": "f",
        "root": root,
        "agents": found,
        **members,
    }


def refusal(value: Any, *, workflow: bool = False) -> ManifestInvalid:
    with pytest.raises(ManifestInvalid) as caught:
        (validate_workflow_v2 if workflow else validate_agent_manifest)(value)
    return caught.value
