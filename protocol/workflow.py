"""Workflow manifests, version 2: the whole of flow-engine 2.2, embedded agents and workflows included."""

from __future__ import annotations

from protocol.manifests.agent import is_workflow
from protocol.manifests.place import ManifestInvalid
from protocol.manifests.walk import check_documents

__all__ = ["ManifestInvalid", "is_workflow", "validate_workflow_v2"]


def validate_workflow_v2(value: object) -> None:
    """Refuse a parsed document that is not a workflow manifest of version 2 (flow-engine 2.2).

    Raises `ManifestInvalid` for the first rule it breaks. Takes linear time, and no Python stack however deep
    the document nests. What only the workflow compiler of the original checks (duplicate leaf ids, duplicate
    stage ids, verifiers without a verdict schema) is accepted.
    """
    check_documents(value, workflow=True)
