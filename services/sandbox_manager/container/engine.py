"""The engine's API as far as workspaces need it. Every failure is a BackendError without the host's paths."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Final

import aiodocker
import aiohttp
from aiodocker.exceptions import DockerError

from protocol.jsjson import dumps
from services.sandbox_manager.container.plan import KEY_LABEL, PLAN_LABEL, ROOT_LABEL
from services.sandbox_manager.contract import BackendError

CALL_S: Final = 60.0
"""Of one call to the engine that starts, kills or removes."""
PULL_S: Final = 600.0
_EXIT_POLL_S: Final = 0.02
_STDOUT: Final = 1
_NOT_STARTED: Final = (126, 127, 128)
_COMPLAINT: Final = b"OCI runtime exec failed: "


@dataclass(frozen=True, slots=True)
class Found:
    """A container that carries our labels."""

    id: str
    name: str
    plan: str
    running: bool


@dataclass(slots=True)
class _Beginning:
    """The first bytes that came."""

    data: bytes = b""

    def add(self, data: bytes) -> None:
        if len(self.data) < len(_COMPLAINT):
            self.data += data[: len(_COMPLAINT)]


class Engine:
    """A connection to the engine of `url` (`unix:///…`); None takes DOCKER_HOST or the usual sockets."""

    def __init__(self, url: str | None) -> None:
        self._url = url
        self._docker: aiodocker.Docker | None = None

    async def version(self) -> str:
        """What answers. Raises BackendError."""
        async with self._call("the engine does not answer") as docker:
            found = await docker.version()
        return f"engine {found.get('Version', 'unknown')}"

    async def close(self) -> None:
        """Closes the connection."""
        if self._docker is not None:
            await self._docker.close()
            self._docker = None

    async def ours(self, root_id: str, key: str | None = None) -> list[Found]:
        """The containers of a root, or of one of its workspaces. Raises BackendError."""
        labels = [f"{ROOT_LABEL}={root_id}"]
        if key is not None:
            labels.append(f"{KEY_LABEL}={key}")
        async with self._call("containers can't be listed") as docker:
            listed = await docker._query_json(
                "containers/json", params={"all": "1", "filters": dumps({"label": labels})}
            )
        return [
            Found(
                id=str(each["Id"]),
                name=str(each["Names"][0]).removeprefix("/") if each["Names"] else "",
                plan=str(each["Labels"].get(PLAN_LABEL, "")),
                running=each["State"] == "running",
            )
            for each in listed
        ]

    async def create(self, name: str, document: dict[str, Any], *, pull: bool) -> str:
        """Makes a container; its id. Raises BackendError, which names a missing image and the way out."""
        image = document["Image"]
        for attempt in range(2):
            async with self._call("the container can't be made", missing_is_none=True) as docker:
                made = await docker._query_json(
                    "containers/create", method="POST", params={"name": name}, data=document
                )
                return str(made["Id"])
            if not pull or attempt:
                break
            await self._pull(image)
        raise BackendError(
            f"The image {image} is not present: run `docker pull {image}` on the engine's host, or set "
            "WHIPPLETREE_SANDBOX_PULL=missing."
        )

    async def _pull(self, image: str) -> None:
        async with self._call(f"The image {image} can't be pulled", limit_s=PULL_S) as docker:
            await docker.images.pull(image)

    async def start(self, container_id: str) -> None:
        """Starts a container; one that runs is fine. Raises BackendError."""
        async with self._call("the container can't be started") as docker:
            await docker.containers.container(container_id).start()

    async def kill(self, container_id: str) -> None:
        """Kills everything in a container and waits until it is gone. Raises BackendError."""
        async with self._call("the container can't be killed") as docker:
            container = docker.containers.container(container_id)
            try:
                await container.kill(signal="SIGKILL")
            except DockerError as error:
                if error.status not in (404, 409):  # gone, or not running
                    raise
                return
            await container.wait()

    async def remove(self, container_id: str) -> None:
        """Removes a container with what runs in it; an absent one is fine. Raises BackendError."""
        async with self._call("the container can't be removed", missing_is_none=True) as docker:
            await docker.containers.container(container_id).delete(force=True, v=True)

    async def processes(self, container_id: str) -> int:
        """How many processes a container has: none when it ended. Raises BackendError."""
        async with self._call("the container's processes can't be counted") as docker:
            found = await docker._query_json(f"containers/{container_id}/top", params={"ps_args": "-eo pid"})
        return len(found["Processes"] or ())

    async def exec(
        self, container_id: str, words: list[str], on_output: Callable[[bool, bytes], None]
    ) -> int:
        """Runs a command to its end; its exit code. `on_output` gets (is stdout, bytes).

        Has no time limit: the command ends when its container is killed. Raises BackendError, also when the
        engine could not start it: its complaint would else be the command's output.
        """
        began = _Beginning()
        async with self._call("the command can't be run", limit_s=None) as docker:
            execution = await docker.containers.container(container_id).exec(words, stdin=False)
            async with execution.start(detach=False) as stream:
                while (message := await stream.read_out()) is not None:
                    began.add(message.data)
                    on_output(message.stream == _STDOUT, message.data)
            # It may have closed its streams before its end, which the engine does not announce.
            while (state := await execution.inspect())["Running"]:  # noqa: ASYNC110
                await asyncio.sleep(_EXIT_POLL_S)
        code = state["ExitCode"]
        if not state.get("Pid") and code in _NOT_STARTED and began.data.startswith(_COMPLAINT):
            raise BackendError("The engine could not start the command.")
        if not isinstance(code, int):
            raise BackendError("The engine does not say how the command ended.")
        return code

    @contextlib.asynccontextmanager
    async def _call(
        self, what: str, *, limit_s: float | None = CALL_S, missing_is_none: bool = False
    ) -> AsyncIterator[aiodocker.Docker]:
        try:
            if self._docker is None:
                self._docker = aiodocker.Docker(self._url)
            async with asyncio.timeout(limit_s):
                yield self._docker
        except DockerError as error:
            if missing_is_none and error.status == 404:
                return
            raise BackendError(f"{what}: {error.message}") from error
        except TimeoutError:
            raise BackendError(f"{what}: the engine took too long") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise BackendError(f"{what}: {type(error).__name__}") from error
