"""A whole stack on a model route with a double behind it, and a second model-executor that a test may add."""

import asyncio
import contextlib
import os
import signal
import socket
from dataclasses import replace

from cli.stack import GATEWAY, MODEL, process_specs
from gateway.executors import rendezvous
from tests.system.support import ENDED, Stack, patiently, until

AGENT = "plain"
MANIFEST = {"manifestSchemaVersion": 4, "id": AGENT, "capabilities": []}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class ModelStack(Stack):
    """The gateway knows two addresses of model-executors; at first only one of them is there."""

    def __init__(self, folder, environ, core_settings=None):
        super().__init__(
            folder,
            [],
            core_settings={"WHIPPLETREE_CORE_LEASE_MS": "1500", **(core_settings or {})},
            environ=environ,
        )
        self.second_port = free_port()
        self.first = f"ipv4:127.0.0.1:{self.plan.ports.model_executor}"
        self.second = f"ipv4:127.0.0.1:{self.second_port}"
        both = f"{self.first},{self.second.removeprefix('ipv4:')}"
        overrides = {
            **self.plan.overrides,
            GATEWAY: {"NYLORUN_MODEL_EXECUTOR_TARGET": both},
            MODEL: {"NYLORUN_STOP_GRACE_MS": "1500"},
        }
        self.plan = replace(self.plan, overrides=overrides)

    def choose(self, model):
        """A real model, as `--model` gives it; before the start."""
        self.plan = replace(self.plan, model=model)

    def joined(self):
        """How often an executor said that it joined a call."""
        return sum("effect_joined" in line for name, line in self.log if name.startswith(MODEL))

    async def start(self):
        await super().start()
        async with self.core() as core:
            await core.put_agent(AGENT, MANIFEST)

    @contextlib.asynccontextmanager
    async def second_executor(self, **settings):
        """Another model-executor, once the gateway sends calls to it."""
        [spec] = [spec for spec in process_specs(self.plan) if spec.name == MODEL]
        environ = {**spec.environ, "NYLORUN_GRPC_LISTEN": self.second.removeprefix("ipv4:"), **settings}
        process = await asyncio.create_subprocess_exec(
            *spec.argv,
            env=environ,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        reading = asyncio.create_task(self._keep(process))
        try:
            await self.serving(2)
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            await reading
            await self.serving(1)

    async def _keep(self, process):
        while line := await process.stdout.readline():
            self.log.append(("model-executor-2", line.decode("utf-8", "replace").rstrip()))

    async def serving(self, count):
        """Waits until the gateway has so many model-executors."""
        import aiohttp

        async with aiohttp.ClientSession() as http:

            async def fleet():
                with contextlib.suppress(aiohttp.ClientError):
                    async with http.get(f"{self.plan.health_url()}/fleet") as answer:
                        return await answer.json()

            def enough(seen):
                if seen is None:
                    return False
                replicas = seen["services"][MODEL]["replicas"]
                return sum(replica["serving"] for replica in replicas) == count

            await until(fleet, enough)

    async def session(self, at=None):
        """A new session; one whose direct calls belong to an address when both serve."""
        async with self.core() as core:
            while True:
                session = await patiently(lambda: core.create_session(AGENT))
                if at is None or rendezvous.choose((self.first, self.second), session) == at:
                    return session

    async def say(self, session, text="go"):
        async with self.core() as core:
            return await patiently(lambda: core.send_message(session, text))

    async def ended(self, session, turn=None):
        """The session once its turn, or the given one, is over."""

        def over(view):
            return view["status"] in ENDED and turn in (None, view["lastTurn"]["id"])

        async with self.core() as core:
            return await until(lambda: core.session(session), over)

    def stop_process(self, name):
        """SIGTERM."""
        os.kill(self.running.supervisor.pid(name), signal.SIGTERM)

    async def cancel(self, session):
        async with self.core() as core:
            await core._call("POST", f"/v1/sessions/{session}/cancel", {})
