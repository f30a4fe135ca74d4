"""Programs that tests run inside of the stack's containers, with the image's own interpreter."""

REPORT = """
from pathlib import Path
import grpc
from whippletree.v1 import sandbox_manager_pb2 as messages, sandbox_manager_pb2_grpc as services
request = messages.ReportRequest(tenant=messages.TenantRef(tenant_id="tn_dev"))
bearer = "Bearer " + Path("/tokens/sandbox-manager").read_text().strip()
with grpc.insecure_channel("127.0.0.1:4430") as channel:
    stub = services.SandboxManagerStub(channel)
    print(stub.Report(request, metadata=[("authorization", bearer)], timeout=20).report.text)
"""

_COMMAND = """
import json, queue
from pathlib import Path
import grpc
from whippletree.v1 import common_pb2 as common
from whippletree.v1 import sandbox_manager_pb2 as messages, sandbox_manager_pb2_grpc as services
spec, command, session = {told!r}
told = queue.SimpleQueue()
told.put(messages.RunRequest(request=messages.WorkspaceOperation(
    tenant=messages.TenantRef(tenant_id="tn_dev"),
    workspace=messages.WorkspaceRef(owner_id=session),
    spec=common.Json(text=json.dumps(spec)),
    effect=common.EffectRef(
        tenant_id="tn_dev", session_id=session, turn_id="turn", run_id="run", effect_id="effect"
    ),
    tool=messages.ToolOperation(tool="bash", input=common.Json(text=json.dumps({{"command": command}}))),
)))
told.put(messages.RunRequest(start=common.Start()))
bearer = "Bearer " + Path("/tokens/sandbox-manager").read_text().strip()
with grpc.insecure_channel("127.0.0.1:4430") as channel:
    stub = services.SandboxManagerStub(channel)
    replies = stub.Run(iter(told.get, None), metadata=[("authorization", bearer)], timeout=60)
    for reply in replies:
        if reply.HasField("event"):
            told.put(messages.RunRequest(ack=messages.EventAck(seq=reply.event.seq)))
        elif reply.HasField("outcome"):
            print(reply.outcome.text)
    told.put(None)
"""

_REACHES = """
import socket
from concurrent.futures import ThreadPoolExecutor
def reached(target):
    try:
        socket.create_connection(target, 3).close()
    except OSError:
        return False
    return True
targets = {targets!r}
with ThreadPoolExecutor(len(targets)) as pool:
    for target, open in zip(targets, pool.map(reached, targets)):
        if open:
            print(target[1])
"""


def command(spec, line, session):
    """Prints the outcome of a command in a session's workspace, asked of the sandbox-manager there."""
    return _COMMAND.format(told=(spec, line, session))


def reaches(targets):
    """Prints the ports of those targets (address and port) that take a connection."""
    return _REACHES.format(targets=targets)
