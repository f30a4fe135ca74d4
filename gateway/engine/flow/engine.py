"""One segment of a flow: all checks in their order, then the whole workflow from its start (flow-engine 1)."""

from __future__ import annotations

from gateway.engine.contract import SegmentInput, SegmentResult
from gateway.engine.definitions import DefinitionCache
from gateway.engine.failures import Suspended, WorkFailed
from gateway.engine.flow.checkpoint import read_checkpoint
from gateway.engine.flow.effects import FlowEffects
from gateway.engine.flow.failures import CANCELLED, NodeFailure, as_node_failure
from gateway.engine.flow.flow1 import Flow1, part_of
from gateway.engine.flow.flow2 import Flow2
from gateway.engine.flow.limits import read_limits
from gateway.engine.flow.values import Value
from gateway.engine.host import Host
from gateway.engine.tasks import Within, Work
from protocol.jsjson import JsonValue


def prepare_flow(segment: SegmentInput, definitions: DefinitionCache, host: Host) -> Work[SegmentResult]:
    """Checks everything a segment starts from, and makes its work. Raises EngineRefused."""
    manifest = definitions.workflow(segment.manifest)
    checkpoint = read_checkpoint(segment.checkpoint, manifest, plain=segment.plain)
    document = manifest.document
    effects = FlowEffects(host, checkpoint, document["id"])
    limits = read_limits(segment.flow_limits)
    # One interpreter per engine version; a later version of the manifest gets its own here.
    if manifest.version == 1:
        root_path = part_of(document["root"])
        work = Flow1(effects, limits).root(document, checkpoint.input)
    else:
        root_path = document["id"]
        work = Flow2(effects, limits).root(document, checkpoint.input)
    return _segment(work, root_path, effects, host)


def _segment(work: Work[Value], root_path: str, effects: FlowEffects, host: Host) -> Work[SegmentResult]:
    """Runs the flow. A failure beats a suspension, and `root_path` is where a raw one stands."""
    if host.aborted:
        work.close()
        return SegmentResult("cancelled")
    try:
        output: Value = yield Within(work)
    except Suspended:
        suspension = host.suspension()
        assert suspension is not None
        return suspension
    except WorkFailed as failed:
        failure = as_node_failure(failed, root_path)
        if failure.code == CANCELLED:
            return SegmentResult("cancelled")
        return SegmentResult(
            "failed", error=_error(failure, root_path), cancel_effect_ids=tuple(effects.cancelled)
        )
    return SegmentResult("completed", output=output.json)


def _error(failure: NodeFailure, root_path: str) -> JsonValue:
    path = root_path if failure.path is None else failure.path
    return {"code": failure.code, "message": failure.message, "path": path}
