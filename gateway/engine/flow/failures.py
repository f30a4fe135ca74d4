"""Why a stage of a flow ends without an output (flow-engine 9, 13).

A `NodeFailure` carries a code and, nearly always, the path of its node up to the root. Every other failure
but a suspension (a host error, drift, an abort while an answer is awaited, a decision that can't be read) is
raw: it becomes `fn.failed` at the branch that held it or, outside of branches, at the flow's own path.
"""

from __future__ import annotations

from typing import Final

from gateway.engine.failures import WorkFailed

CANCELLED: Final = "cancelled"
FN_FAILED: Final = "fn.failed"
INVALID_AGENT: Final = "loop.invalid-agent"
INVALID_DECISION: Final = "loop.invalid-decision"
LOOP_EXHAUSTED: Final = "loop.exhausted"
LOOP_STOPPED: Final = "loop.stopped"
NO_MATCH: Final = "switch.no-match"
NOT_A_LIST: Final = "map.not-a-list"
TOOL_DENIED: Final = "tool.denied"
TOO_MANY_ITEMS: Final = "map.too-many-items"
TOO_MANY_ITERATIONS: Final = "loop.too-many-iterations"
UNKNOWN_AGENT: Final = "flow.unknown-agent"
VERIFY_FAILED: Final = "loop.verify-failed"


class NodeFailure(WorkFailed):
    """A node says no. `path` is None only for an abort."""

    def __init__(self, code: str, message: str, path: str | None) -> None:
        super().__init__(message)
        self.code = code
        self.path = path


class Unreadable(WorkFailed):
    """A value that the flow has to read is not what can be read: raw."""


def as_node_failure(failure: WorkFailed, path: str) -> NodeFailure:
    """The failure of a branch or of the whole flow, which stands at `path` when it is raw."""
    if isinstance(failure, NodeFailure):
        return failure
    return NodeFailure(FN_FAILED, failure.message, path)
