"""A client of the development core's HTTP API, as far as the command line needs it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import quote, urlencode

import aiohttp

from services.common.settings import Environment

Document = dict[str, Any]
TURN_ENDS: Final = frozenset(
    {
        "turn.completed",
        "turn.failed",
        "turn.cancelled",
        "turn.paused",
        "effect.uncertain",
        "agent.uncertain",
        "agent.paused",
    }
)
"""A turn is over after these, or waits for a person."""
_PAGE: Final = 1000
_CALL_S: Final = 30.0
_SILENCE_S: Final = 120.0
_LONGEST_EVENT_BYTES: Final = 64 * 1024 * 1024


class CoreError(Exception):
    """The core refused; the text is its own."""


def core_token(environ: Mapping[str, str]) -> str | None:
    """The bearer that a core started with this environment asks for; None where it asks for none.

    Raises CoreError when the setting can't be read.
    """
    env = Environment(environ)
    token = env.secret("WHIPPLETREE_CORE_TOKEN")
    if env.problems:
        raise CoreError(env.problems[0])
    return token


class CoreClient:
    """Use as `async with CoreClient(url) as core`. `token` is the core's bearer, where it asks for one."""

    def __init__(self, url: str, *, token: str | None = None) -> None:
        self._url = url
        self._token = token
        self._http: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CALL_S, sock_read=_SILENCE_S)
        headers = {} if self._token is None else {"Authorization": f"Bearer {self._token}"}
        self._http = aiohttp.ClientSession(
            timeout=timeout, headers=headers, read_bufsize=_LONGEST_EVENT_BYTES
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._http is not None
        await self._http.close()

    async def put_agent(self, agent_id: str, manifest: Document, actions_url: str | None = None) -> None:
        """Makes or replaces an agent or a workflow. Raises CoreError."""
        actions = {} if actions_url is None else {"actions": {"url": actions_url}}
        await self.put(agent_id, {"manifest": manifest, **actions})

    async def put(self, agent_id: str, body: Document) -> None:
        """Makes or replaces an agent from the whole body. Raises CoreError."""
        await self._call("PUT", f"/v1/agents/{quote(agent_id, safe='')}", body)

    async def create_session(self, agent_id: str) -> str:
        """The new session's id. Raises CoreError."""
        return str((await self._call("POST", "/v1/sessions", {"agentId": agent_id}))["id"])

    async def send_message(self, session_id: str, text: str) -> str:
        """Starts a turn; its id. Raises CoreError."""
        return await self.send(session_id, {"text": text})

    async def send(self, session_id: str, message: Document) -> str:
        """Starts a turn with any message; its id. Raises CoreError."""
        answer = await self._call("POST", f"{self._path(session_id)}/messages", message)
        return str(answer["turnId"])

    async def session(self, session_id: str) -> Document:
        """The session. Raises CoreError."""
        return await self._call("GET", self._path(session_id))

    async def sessions(self, limit: int, agent_id: str | None = None) -> list[Document]:
        """The newest sessions, at most 1,000 of them. Raises CoreError."""
        chosen = {"limit": str(limit)} | ({"agentId": agent_id} if agent_id is not None else {})
        return list((await self._call("GET", f"/v1/sessions?{urlencode(chosen)}"))["sessions"])

    async def agents(self) -> list[Document]:
        """All agents by id. Raises CoreError."""
        return list((await self._call("GET", "/v1/agents"))["agents"])

    async def agent(self, agent_id: str) -> Document:
        """One agent with its manifest. Raises CoreError."""
        return await self._call("GET", f"/v1/agents/{quote(agent_id, safe='')}")

    async def fleet(self) -> Document:
        """The gateways and what they know of the services. Raises CoreError."""
        return await self._call("GET", "/v1/fleet")

    async def health(self) -> Document:
        """Whether the core works and how many harnesses are connected. Raises CoreError."""
        return await self._call("GET", "/health")

    async def answer(self, session_id: str, interaction_id: str, *, approved: bool) -> None:
        """Approves or denies what a paused turn asks. Raises CoreError."""
        body = {"interactionId": interaction_id, "approved": approved}
        await self._call("POST", f"{self._path(session_id)}/approve", body)

    async def respond(self, session_id: str, interaction_id: str, value: Any) -> None:
        """Gives a paused turn the value that it asks for. Raises CoreError."""
        body = {"interactionId": interaction_id, "value": value}
        await self._call("POST", f"{self._path(session_id)}/respond", body)

    async def cancel(self, session_id: str) -> None:
        """Cancels the turn that is under way. Raises CoreError."""
        await self._call("POST", f"{self._path(session_id)}/cancel", {})

    async def effects(self, session_id: str, turn_id: str) -> list[Document]:
        """The effects of a turn in the order they were asked for. Raises CoreError."""
        found: list[Document] = []
        after: int | None = 0
        while after is not None:
            query = urlencode({"limit": _PAGE, "after": after, "turnId": turn_id})
            page = await self._call("GET", f"{self._path(session_id)}/effects?{query}")
            found += page["effects"]
            after = page.get("after")
        return found

    async def events(self, session_id: str, after: int = 0) -> AsyncIterator[tuple[str, Document]]:
        """(event name, data) of the session's log behind the seq `after`, first what there is, then what
        comes. Raises CoreError."""
        assert self._http is not None
        url = f"{self._url}{self._path(session_id)}/events?after={after}"
        try:
            async with self._http.get(url) as answer:
                if answer.status != 200:
                    raise CoreError(await _refusal(answer))
                name = ""
                async for raw in answer.content:
                    line = raw.decode("utf-8").rstrip("\r\n")
                    if line.startswith("event: "):
                        name = line[7:]
                    elif line.startswith("data: "):
                        yield name, json.loads(line[6:])
        except (aiohttp.ClientError, TimeoutError) as error:
            raise CoreError(f"The development core at {self._url} went away: {error}") from error

    async def log(self, session_id: str) -> list[Document]:
        """All events that there are, in order. Raises CoreError."""
        found: list[Document] = []
        after: int | None = 0
        while after is not None:
            page = await self._call("GET", f"{self._path(session_id)}/log?after={after}&limit={_PAGE}")
            found += page["events"]
            after = page.get("after")
        return found

    async def turn_end(self, session_id: str, turn_id: str) -> str:
        """Waits for the end of a turn, or until it waits for a person; the event's name. Raises CoreError."""
        async for name, data in self.events(session_id):
            if name in TURN_ENDS and data.get("turnId") == turn_id:
                return name
        raise CoreError("The development core ended the stream of events.")

    def _path(self, session_id: str) -> str:
        return f"/v1/sessions/{quote(session_id, safe='')}"

    async def _call(self, method: str, path: str, body: Document | None = None) -> Document:
        assert self._http is not None
        try:
            async with self._http.request(method, self._url + path, json=body) as answer:
                if answer.status >= 400:
                    raise CoreError(await _refusal(answer))
                document = await answer.json()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise CoreError(f"The development core at {self._url} does not answer: {error}") from error
        assert isinstance(document, dict)
        return document


async def _refusal(answer: aiohttp.ClientResponse) -> str:
    try:
        return str((await answer.json())["error"]["message"])
    except (aiohttp.ClientError, ValueError, KeyError, TypeError):
        return f"The development core answered {answer.status}."
