"""From a manifest to those it embeds, however deep they nest, without using Python's stack."""

from __future__ import annotations

from protocol.manifests.agent import Embedded, check_agent, is_workflow
from protocol.manifests.place import Place
from protocol.manifests.workflow import check_workflow


def check_documents(value: object, *, workflow: bool, depth: int = 0) -> None:
    """Check a document of the given kind and every one inside it; raises `ManifestInvalid` for the first.

    `depth` 1 limits how deep the nodes of a workflow nest (see `Embedded`).
    """
    left = (check_workflow if workflow else check_agent)(value, Place(), depth)[::-1]
    while left:
        document: Embedded = left.pop()
        check = check_workflow if is_workflow(document.value) else check_agent
        left.extend(reversed(check(document.value, document.place, document.depth)))
