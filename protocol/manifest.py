"""Agent manifests, schema version 4: the whole of agent-engine 2, embedded workflows included."""

from __future__ import annotations

from protocol.manifests.agent import DELEGATE_INPUT_SCHEMA, HOOK_POINTS
from protocol.manifests.place import ManifestInvalid
from protocol.manifests.sandbox import SANDBOX_TOOLS
from protocol.manifests.walk import check_documents

__all__ = [
    "DELEGATE_INPUT_SCHEMA",
    "HOOK_POINTS",
    "SANDBOX_TOOLS",
    "ManifestInvalid",
    "validate_agent_manifest",
]


def validate_agent_manifest(value: object) -> None:
    """Refuse a parsed document that is not an agent manifest of version 4 (agent-engine 2, all rules).

    Raises `ManifestInvalid` for the first rule it breaks. Takes linear time, and no Python stack however deep
    the document nests; schemas and metadata are objects to it and are not looked into.
    """
    check_documents(value, workflow=False)
