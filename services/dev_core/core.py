"""What the development core does for people, independent of HTTP: agents, sessions, turns, their log."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from msgspec import structs

from protocol import jsjson
from services.common.urls import parse_url
from services.dev_core.artifacts.blobs import Blobs
from services.dev_core.clock import new_id, now_ms
from services.dev_core.effects import actions
from services.dev_core.effects.actions import Resolved
from services.dev_core.effects.held import storable
from services.dev_core.event_bus import EventBus
from services.dev_core.fleet import FleetView
from services.dev_core.flows import linking
from services.dev_core.flows.linker import Linker
from services.dev_core.flows.linking import RunningLink
from services.dev_core.harness.scheduler import Scheduler
from services.dev_core.harness.workspaces import Workspaces
from services.dev_core.manifests import Checked, ManifestRefused, check_manifest
from services.dev_core.problems import Problem, no_session
from services.dev_core.session_files import SessionFiles
from services.dev_core.store import agents, effects, events, sessions
from services.dev_core.store.agents import Agent
from services.dev_core.store.database import Store
from services.dev_core.store.effects import Effect
from services.dev_core.store.events import Event
from services.dev_core.store.sessions import Session
from services.dev_core.store.transaction import Move, Tx
from services.dev_core.turns import answers, messages

MAX_ID_CHARS: Final = 512
_BIG_MANIFEST_BYTES: Final = 256 * 1024
"""Larger ones are checked in a thread, so that nobody else waits."""


@dataclass(frozen=True, slots=True)
class SessionView:
    """A session with what people want to know of it. Texts are JSON."""

    session: Session
    last_seq: int
    info: str | None
    waits: str | None
    interactions: list[dict[str, Any]]
    mcp_diagnostics: str | None
    last_turn: tuple[str, str, int, int | None, str | None] | None
    linked: list[RunningLink]
    """The linked turns that run for the session."""


class Core:
    """The operations behind the HTTP API. Every method raises Problem, and StoreFailed of the database."""

    def __init__(
        self,
        store: Store,
        scheduler: Scheduler,
        bus: EventBus,
        blobs: Blobs,
        linker: Linker,
        fleet_urls: Sequence[str] = (),
    ) -> None:
        self.store: Final = store
        self.linker: Final = linker
        self.scheduler: Final = scheduler
        self.bus: Final = bus
        self.workspaces: Final = Workspaces(scheduler.connections)
        self.fleet: Final = FleetView(fleet_urls)
        self.files: Final = SessionFiles(store, blobs, self.workspaces)

    # Agents

    async def put_agent(self, agent_id: str, body: Any, body_bytes: int = 0) -> tuple[Agent, bool]:
        """Makes or replaces an agent from `{manifest, actions?: {url}}`; also whether it is new.

        `body_bytes` is the size of the body's text: a large manifest is checked in a thread.
        """
        _check_id(agent_id, "agent")
        members = _members(body, required=("manifest",), optional=("actions",))
        url = None
        if "actions" in members:
            url = _url(_members(members["actions"], required=("url",))["url"])
        try:
            checked = await _check_manifest(members["manifest"], body_bytes)
        except ManifestRefused as error:
            raise Problem("manifest_invalid", str(error)) from None
        return await self.store.write(
            partial(
                agents.put,
                agent_id=agent_id,
                manifest_hash=checked.hash,
                manifest=checked.text,
                engine=checked.engine,
                actions_url=url,
                now_ms=now_ms(),
            )
        )

    async def agent(self, agent_id: str) -> tuple[Agent, str]:
        """An agent and its manifest's text."""

        def read(tx: Tx) -> tuple[Agent, str]:
            agent = agents.load(tx, storable(agent_id))
            if agent is None:
                raise _no_agent(agent_id)
            manifest = agents.manifest(tx, agent.manifest_hash)
            assert manifest is not None
            return agent, manifest

        return await self.store.read(read)

    async def manifest(self, manifest_hash: str) -> str:
        """The text of a manifest that an agent or a session has."""
        found = await self.store.read(partial(agents.manifest, manifest_hash=storable(manifest_hash)))
        if found is None:
            raise Problem("not_found", f"There is no manifest with the hash {manifest_hash!r}.")
        return found

    async def agents(self, after: str, limit: int) -> list[Agent]:
        """Agents by id."""
        return await self.store.read(partial(agents.listing, after=storable(after), limit=limit))

    # Sessions

    async def create_session(self, body: Any) -> Session:
        """A session of an agent from `{agentId, info?}`, pinned to the agent's manifest as it is now."""
        members = _members(body, required=("agentId",), optional=("info",))
        agent_id = members["agentId"]
        if not isinstance(agent_id, str):
            raise Problem("invalid", "agentId is a string.")
        if not isinstance(members.get("info", {}), dict):
            raise Problem("invalid", "info is an object.")
        info = jsjson.dumps(members["info"]) if "info" in members else None
        session_id = new_id("ses")

        def write(tx: Tx) -> Session:
            agent = agents.load(tx, storable(agent_id))
            if agent is None:
                raise _no_agent(agent_id)
            return sessions.create(
                tx,
                session_id,
                agent.id,
                agent.manifest_hash,
                engine=agent.engine,
                info=info,
                now_ms=now_ms(),
            )

        return await self.store.write(write)

    async def session(self, session_id: str) -> SessionView:
        """One session."""

        def read(tx: Tx) -> SessionView:
            session = sessions.load(tx, storable(session_id))
            if session is None:
                raise no_session(session_id)
            documents = sessions.documents(tx, session.id)
            interactions = answers.open_interactions(documents.get("pending"))
            running = linking.running(tx, session.id)
            if running:
                interactions += answers.linked_interactions(tx, session.id)
                if interactions and session.status == "waiting":
                    # A person waits for nothing else: the linked session that asks is one of its own.
                    session = structs.replace(session, status="paused")
            return SessionView(
                session,
                events.last_seq(tx, session.id),
                documents.get("info"),
                documents.get("waits"),
                interactions,
                documents.get("mcp_diagnostics"),
                sessions.last_turn(tx, session.id),
                running,
            )

        return await self.store.read(read)

    async def sessions(
        self, limit: int, before: int | None, agent_id: str | None, parent_id: str | None = None
    ) -> list[tuple[int, Session]]:
        """Sessions, the newest first, each with the number that `before` continues at; linked ones are those of
        a `parent_id` only."""
        return await self.store.read(
            partial(
                sessions.listing,
                limit=limit,
                before=before,
                agent_id=None if agent_id is None else storable(agent_id),
                parent_id=None if parent_id is None else storable(parent_id),
            )
        )

    async def events(
        self, session_id: str, after: int, *, limit: int, max_chars: int, types: tuple[str, ...] = ()
    ) -> list[Event]:
        """Events of a session after a seq."""
        return await self.store.read(
            partial(
                events.page,
                session_id=session_id,
                after=after,
                limit=limit,
                max_chars=max_chars,
                types=types,
            )
        )

    async def next_events(
        self, session_id: str, after: int, *, limit: int, max_chars: int
    ) -> tuple[list[Event], bool]:
        """`events`, and whether there may be more after them."""
        return await self.store.read(
            partial(
                events.page_and_rest, session_id=session_id, after=after, limit=limit, max_chars=max_chars
            )
        )

    async def effects(
        self, session_id: str, turn_id: str | None, after: int, limit: int, *, brief: bool = False
    ) -> list[tuple[int, Effect]]:
        """Effects of a session in the order they were asked for; `brief` leaves their documents out."""
        wanted = None if turn_id is None else storable(turn_id)
        read = effects.brief_of_session if brief else effects.of_session
        return await self.store.read(
            partial(read, session_id=session_id, turn_id=wanted, after=after, limit=limit)
        )

    async def effect(self, session_id: str, effect_id: str) -> Effect:
        """One effect."""
        found = await self.store.read(
            partial(effects.load, session_id=storable(session_id), effect_id=storable(effect_id))
        )
        if found is None:
            raise Problem(
                "not_found", f"Session {session_id} has no effect {effect_id!r}: /effects lists them."
            )
        return found

    # Turns

    async def message(self, session_id: str, body: Any) -> tuple[str, int]:
        """Starts a turn with a person's message; its id and the seq of its first event."""
        message = messages.read_message(body)
        turn_id = new_id("t")
        seq = await self.store.write(
            partial(
                messages.start_turn,
                session_id=storable(session_id),
                turn_id=turn_id,
                message=message,
                now_ms=now_ms(),
            )
        )
        self.scheduler.offer(session_id)
        return turn_id, seq

    async def approve(self, session_id: str, body: Any) -> tuple[str, int]:
        """Answers an approval from `{interactionId, approved}`; the session that asked, and the event's seq."""
        members = _members(body, required=("interactionId", "approved"))
        if not isinstance(members["approved"], bool):
            raise Problem("invalid", "approved is true or false.")
        return await self._answer(session_id, "approve", members)

    async def respond(self, session_id: str, body: Any) -> tuple[str, int]:
        """Answers a question from `{interactionId, value}`; the session that asked, and the event's seq."""
        return await self._answer(session_id, "respond", _members(body, required=("interactionId", "value")))

    async def _answer(self, session_id: str, kind: str, members: dict[str, Any]) -> tuple[str, int]:
        if not isinstance(members["interactionId"], str):
            raise Problem("invalid", "interactionId is a string.")
        owner, seq = await self.store.write(
            partial(
                answers.answer,
                session_id=storable(session_id),
                given={"kind": kind, **members},
                now_ms=now_ms(),
            )
        )
        self.scheduler.offer(owner)
        return owner, seq

    async def cancel(self, session_id: str) -> None:
        """Ends the turn that is under way: committed first, then the run is told."""
        if await self.store.write(partial(answers.cancel, session_id=storable(session_id), now_ms=now_ms())):
            self.scheduler.cancel_run(session_id)

    async def outcome(self, session_id: str, effect_id: str, body: Any) -> Resolved:
        """An Action's outcome that comes after its 202."""
        text = actions.read_outcome(body)
        resolved = await self.store.write(
            partial(
                actions.receive_outcome,
                session_id=storable(session_id),
                effect_id=storable(effect_id),
                outcome=text,
                now_ms=now_ms(),
            )
        )
        self.after_resolved(session_id, effect_id, resolved)
        return resolved

    def after_moved(self, moves: list[tuple[str, Move]]) -> None:
        """After a commit that moved other sessions than its own."""
        for session_id, how in moves:
            match how:
                case "runnable":
                    self.scheduler.offer(session_id)
                case "cancelled":
                    self.scheduler.cancel_run(session_id)
                case _:
                    self.linker.begin(session_id)

    def after_resolved(self, session_id: str, effect_id: str, resolved: Resolved) -> None:
        """Once an Action's outcome is committed: tells the run that waits, or offers the session."""
        if resolved.result == "completed" and resolved.outcome is not None:
            self.scheduler.resolved(session_id, effect_id, resolved.outcome)
        if resolved.offer:
            self.scheduler.offer(session_id)


async def _check_manifest(value: Any, body_bytes: int) -> Checked:
    if body_bytes > _BIG_MANIFEST_BYTES:
        return await asyncio.to_thread(check_manifest, value)
    return check_manifest(value)


def _members(body: Any, *, required: tuple[str, ...], optional: tuple[str, ...] = ()) -> dict[str, Any]:
    if not isinstance(body, dict):
        raise Problem("invalid", f"The body is an object with {' and '.join(required)}.")
    for name in required:
        if name not in body:
            raise Problem("invalid", f"{name} is missing.")
    unknown = sorted(set(body) - {*required, *optional})
    if unknown:
        known = ", ".join((*required, *optional))
        raise Problem("invalid", f"There is no member {unknown[0]!r} here; known: {known}.")
    return body


def _check_id(text: str, what: str) -> None:
    if not 0 < len(text) <= MAX_ID_CHARS or storable(text) != text:
        raise Problem("invalid", f"The {what} id has 1 to {MAX_ID_CHARS} characters.")


def _url(value: Any) -> str:
    parts = parse_url(value) if isinstance(value, str) else None
    if parts is None or parts.scheme not in ("http", "https") or storable(value) != value:
        raise Problem("invalid", "actions.url is an absolute http or https URL.")
    return str(value)


def _no_agent(agent_id: str) -> Problem:
    return Problem("not_found", f"There is no agent {agent_id!r}: put it with PUT /v1/agents/{{id}}.")
