"""Workflow manifests: what flows run, in both versions (flow-engine 2)."""

from __future__ import annotations

from protocol.manifests.agent import is_workflow
from protocol.manifests.nodes import MAX_NODE_DEPTH
from protocol.manifests.place import ManifestInvalid, Place
from protocol.manifests.shape import any_object, whole_number
from protocol.manifests.walk import check_documents
from protocol.manifests.workflow_v1 import check_workflow_v1

__all__ = ["MAX_NODE_DEPTH", "ManifestInvalid", "is_workflow", "validate_workflow", "validate_workflow_v2"]


def validate_workflow(value: object) -> int:
    """Refuse a parsed document that no flow engine runs; returns its version, 1 or 2 (flow-engine 2).

    Beside the rules of its version, nodes may nest at most `MAX_NODE_DEPTH` deep, nested flow agents counted
    through. Raises `ManifestInvalid`; takes linear time and no Python stack.
    """
    place = Place()
    workflow = any_object(value, place)
    at = place / "workflowSchemaVersion"
    if "workflowSchemaVersion" not in workflow:
        at.refuse("is required and missing")
    version = whole_number(workflow["workflowSchemaVersion"])
    if version == 1:
        check_workflow_v1(value)
        return 1
    if version == 2:
        check_documents(value, workflow=True, depth=1)
        return 2
    at.refuse("must be 1 or 2: no engine here runs workflows of another version")


def validate_workflow_v2(value: object) -> None:
    """Refuse a parsed document that is not a workflow manifest of version 2 (flow-engine 2.2).

    For workflows that others run, as the agents of a manifest: how deep nodes nest is not limited. Raises
    `ManifestInvalid` for the first rule it breaks. Takes linear time, and no Python stack however deep the
    document nests. What only the workflow compiler of the original checks (duplicate leaf ids, duplicate
    stage ids, verifiers without a verdict schema) is accepted.
    """
    check_documents(value, workflow=True)
