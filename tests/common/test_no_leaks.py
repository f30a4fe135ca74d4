"""A secret raised inside each rpc of the contract: what the client gets is a fixed text."""

import grpc
import pytest
from whippletree.v1 import (
    mcp_pool_pb2,
    mcp_pool_pb2_grpc,
    model_executor_pb2,
    model_executor_pb2_grpc,
    sandbox_manager_pb2,
    sandbox_manager_pb2_grpc,
)

from services.common.errors import FAULT_TEXT
from tests.common.support import served

SECRET = "the secret of this process"
SERVICES = [
    (mcp_pool_pb2.DESCRIPTOR.services_by_name["McpPool"], mcp_pool_pb2_grpc),
    (model_executor_pb2.DESCRIPTOR.services_by_name["ModelExecutor"], model_executor_pb2_grpc),
    (sandbox_manager_pb2.DESCRIPTOR.services_by_name["SandboxManager"], sandbox_manager_pb2_grpc),
]
RPCS = [
    pytest.param(service, module, method, style, id=f"{method.full_name} {style}")
    for service, module in SERVICES
    for method in service.methods
    for style in (("coroutine", "generator") if method.server_streaming else ("coroutine",))
]


def raising(style):
    if style == "generator":

        async def handler(self, request, context):
            raise RuntimeError(SECRET)
            yield  # makes it a generator

    else:

        async def handler(self, request, context):
            raise RuntimeError(SECRET)

    return handler


def leaking(service, module, method, style):
    """A served service with one rpc that raises."""
    register = getattr(module, f"add_{service.name}Servicer_to_server")
    members = {
        "full_name": service.full_name,
        "service": "leaking",
        "register": lambda self, server: register(self, server),  # noqa: PLW0108  (a method, not a member)
        "in_flight": lambda self: [],
        method.name: raising(style),
    }

    async def nothing(self):
        return None

    members |= {"stop_taking": nothing, "close": nothing}
    return type("Leaking", (getattr(module, f"{service.name}Servicer"),), members)()


@pytest.mark.parametrize(("service", "module", "method", "style"), RPCS)
@pytest.mark.spec("operations:13.30")
async def test_a_secret_raised_inside_an_rpc_stays_inside(service, module, method, style):
    async with served(leaking(service, module, method, style)) as port:
        call = getattr(getattr(module, f"{service.name}Stub")(port.channel), method.name)
        if method.client_streaming:
            answer = call(metadata=port.metadata).read()
        else:
            answer = call(method.input_type._concrete_class(), metadata=port.metadata)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await answer
        error = caught.value
        assert (error.code(), error.details()) == (grpc.StatusCode.INTERNAL, FAULT_TEXT)
        told = f"{error} {error.initial_metadata()} {error.trailing_metadata()} {error.debug_error_string()}"
        assert SECRET not in told
