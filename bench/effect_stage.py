"""The processes and channels that effects are measured against."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Final

from websockets.asyncio.client import connect as connect_socket

from bench import journal_route, mcp_route, model_route, sandbox_route
from bench.echo_client import EchoClient
from bench.environment import spec_of
from bench.processes import child, helper
from bench.turns import Variant
from cli.ports import HOST
from cli.stack import CORE, MCP, MODEL, SANDBOX, StackPlan
from cli.state import StateFolder
from gateway.executors.contract import Executors
from gateway.executors.factory import connect
from gateway.settings import Target
from services.common.channel import bearer
from services.common.logs import trace_context
from services.common.metadata import AFFINITY, TRACEPARENT, affinity_of
from services.common.telemetry import new_trace_id, traceparent

_FRAME_BYTES: Final = 64 * 1024 * 1024

Ways = Callable[[int], Awaitable[dict[str, Variant]]]
"""Makes the ways of an effect of a size."""


@dataclass(frozen=True, slots=True)
class Stage:
    """The three services and the echo server, running, and the gateway's executors connected to them.

    What is made here ends with `stack`.
    """

    stack: AsyncExitStack
    plan: StackPlan
    executors: Executors
    echo: EchoClient

    async def ways(self, kind: str, sizes: Sequence[int]) -> Ways:
        """The ways of a kind of effect."""
        match kind:
            case "model":
                return self._model(sizes)
            case "mcp":
                return await self._mcp()
            case "sandbox":
                return self._sandbox()
            case _:
                return await self._journal()

    def _model(self, sizes: Sequence[int]) -> Ways:
        here = model_route.InProcessModel(sizes)
        self.stack.push_async_callback(here.close)

        async def ways(size: int) -> dict[str, Variant]:
            return model_route.variants(size, here, self.executors.model, self.echo)

        return ways

    async def _mcp(self) -> Ways:
        here = mcp_route.InProcessMcp(spec_of(_elsewhere(self.plan), MCP).environ)
        self.stack.push_async_callback(here.close)
        snapshot = await mcp_route.discover(self.executors)

        async def ways(size: int) -> dict[str, Variant]:
            return mcp_route.variants(size, here, self.executors, snapshot, self.echo)

        return ways

    def _sandbox(self) -> Ways:
        here = sandbox_route.InProcessSandbox(spec_of(_elsewhere(self.plan), SANDBOX).environ)
        self.stack.push_async_callback(here.close)

        async def ways(size: int) -> dict[str, Variant]:
            await sandbox_route.fill(size, here, self.executors)
            return sandbox_route.variants(size, here, self.executors, self.echo)

        return ways

    async def _journal(self) -> Ways:
        enter = self.stack.enter_async_context
        core = await enter(child(CORE, *_command(self.plan, CORE)))
        ready = await core.ready("dev_core_ready")
        floor = await enter(
            child("floor", helper("floor_server", str(self.plan.state.path / "floor.db")), {})
        )
        url = (await floor.ready("ready"))["url"]
        socket = await enter(
            connect_socket(url, compression=None, max_size=_FRAME_BYTES, ping_interval=None, proxy=None)
        )
        token = _token(self.plan, "harness")

        async def ways(size: int) -> dict[str, Variant]:
            held = await enter(
                journal_route.held_run(ready["http"], ready["harness"], token, self.executors, size)
            )
            return journal_route.variants(size, held, self.echo, socket)

        return ways


async def set_stage(stack: AsyncExitStack, plan: StackPlan, *, uvloop_everywhere: bool) -> Stage:
    """Starts the services and the echo server. Raises NotReady.

    `uvloop_everywhere`: also the two services that run on asyncio's own loop otherwise.
    """
    targets: dict[str, tuple[Target, ...]] = {}
    bearers: dict[str, str] = {}
    for name in (MODEL, MCP, SANDBOX):
        argv, environ = _command(plan, name)
        if uvloop_everywhere and name != MODEL:
            argv = helper("on_uvloop", name)
        started = await stack.enter_async_context(child(name, argv, environ))
        await started.ready("grpc_serving")
        port = getattr(plan.ports, name.replace("-", "_"))
        targets[name] = (Target(name, f"{HOST}:{port}"),)
        bearers[name] = _token(plan, name)
    server = await stack.enter_async_context(child("echo", helper("echo_server"), {}))
    # A run's effects share its trace.
    trace_context.set(traceparent(new_trace_id()))
    trace = (TRACEPARENT, trace_context.get() or "")
    metadata = (*bearer(bearers[MODEL]), (AFFINITY, affinity_of("ses_bench")), trace)
    echo = EchoClient((await server.ready("ready"))["target"], metadata)
    stack.push_async_callback(echo.close)
    connected = await stack.enter_async_context(connect(targets, bearers))
    await connected.services_ready()
    return Stage(stack, plan, connected.executors, echo)


def _command(plan: StackPlan, name: str) -> tuple[tuple[str, ...], dict[str, str]]:
    spec = spec_of(plan, name)
    return spec.argv, dict(spec.environ)


def _token(plan: StackPlan, name: str) -> str:
    return plan.state.token_file(name).read_text(encoding="ascii").strip()


def _elsewhere(plan: StackPlan) -> StackPlan:
    """The same settings with another root folder, for executors in this process."""
    state = StateFolder(plan.state.path / "here")
    for name in ("model-executor", "mcp-pool", "sandbox-manager"):
        file = state.token_file(name)
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file.write_text(_token(plan, name), encoding="ascii")
    return replace(plan, state=state)
