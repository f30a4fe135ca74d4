"""The HTTP API under /v1: agents, sessions, turns (its description: `openapi.py`)."""

from __future__ import annotations

from typing import Any, Final

from aiohttp import web

from protocol.jsjson import RawJson
from services.dev_core.clock import iso_time
from services.dev_core.core import Core, SessionView
from services.dev_core.http import params
from services.dev_core.http.app import json_response, read_body
from services.dev_core.http.items import items_page
from services.dev_core.http.stream import PAGE_CHARS, stream_events
from services.dev_core.problems import Problem
from services.dev_core.store.agents import Agent
from services.dev_core.store.effects import Effect
from services.dev_core.store.sessions import Session

DEFAULT_PAGE: Final = 100
MAX_PAGE: Final = 1000
MAX_TYPES: Final = 50


class Routes:
    """Handlers of the API."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def add_to(self, app: web.Application) -> None:
        """Registers every route."""
        app.add_routes(
            [
                web.get("/v1/agents", self.list_agents),
                web.put("/v1/agents/{agent}", self.put_agent),
                web.get("/v1/agents/{agent}", self.get_agent),
                web.get("/v1/manifests/{hash}", self.get_manifest),
                web.post("/v1/sessions", self.create_session),
                web.get("/v1/sessions", self.list_sessions),
                web.get("/v1/sessions/{session}", self.get_session),
                web.post("/v1/sessions/{session}/messages", self.post_message),
                web.post("/v1/sessions/{session}/approve", self.approve),
                web.post("/v1/sessions/{session}/respond", self.respond),
                web.post("/v1/sessions/{session}/cancel", self.cancel),
                web.get("/v1/sessions/{session}/items", self.items),
                web.get("/v1/sessions/{session}/events", self.events, allow_head=False),
                web.get("/v1/sessions/{session}/log", self.log),
                web.get("/v1/sessions/{session}/effects", self.effects),
                web.get("/v1/sessions/{session}/effects/{effect:.+}", self.effect),
                web.get("/v1/fleet", self.fleet),
                web.post("/v1/sessions/{session}/effects/{effect:.+}/outcome", self.outcome),
            ]
        )

    # Agents

    async def put_agent(self, request: web.Request) -> web.Response:
        """Makes or replaces an agent."""
        body, size = await read_body(request)
        agent, is_new = await self._core.put_agent(request.match_info["agent"], body, size)
        return json_response(_agent(agent), 201 if is_new else 200)

    async def get_agent(self, request: web.Request) -> web.Response:
        """One agent with its manifest."""
        agent, manifest = await self._core.agent(request.match_info["agent"])
        return json_response({**_agent(agent), "manifest": RawJson(manifest)})

    async def list_agents(self, request: web.Request) -> web.Response:
        """Agents by id."""
        limit = params.number(request, "limit", DEFAULT_PAGE, least=1, most=MAX_PAGE)
        found = await self._core.agents(request.query.get("after", ""), limit)
        return json_response({"agents": [_agent(agent) for agent in found]})

    async def get_manifest(self, request: web.Request) -> web.Response:
        """A manifest by its hash: what a session was made with, whatever its agent is now."""
        return json_response(RawJson(await self._core.manifest(request.match_info["hash"])))

    # Sessions

    async def create_session(self, request: web.Request) -> web.Response:
        """A new session."""
        body, _ = await read_body(request)
        return json_response(_session(await self._core.create_session(body)), 201)

    async def list_sessions(self, request: web.Request) -> web.Response:
        """The newest sessions first."""
        limit = params.number(request, "limit", DEFAULT_PAGE, least=1, most=MAX_PAGE)
        before = params.number(request, "before", 0, least=1) or None
        query = request.query
        found = await self._core.sessions(limit, before, query.get("agentId"), query.get("parentId"))
        more = {"before": found[-1][0]} if len(found) == limit else {}
        return json_response({"sessions": [_session(session) for _, session in found], **more})

    async def get_session(self, request: web.Request) -> web.Response:
        """One session with what it waits for."""
        return json_response(_view(await self._core.session(request.match_info["session"])))

    async def items(self, request: web.Request) -> web.Response:
        """The conversation."""
        view = await self._core.session(request.match_info["session"])
        after = params.number(request, "after", 0)
        limit = params.number(request, "limit", DEFAULT_PAGE, least=1, most=MAX_PAGE)
        return json_response(await items_page(self._core, view.session, after, limit))

    async def log(self, request: web.Request) -> web.Response:
        """A page of the log, of some types or of all."""
        view = await self._core.session(request.match_info["session"])
        after = params.number(request, "after", 0)
        limit = params.number(request, "limit", DEFAULT_PAGE, least=1, most=MAX_PAGE)
        types = tuple(part for part in request.query.get("types", "").split(",") if part)
        if len(types) > MAX_TYPES:
            raise Problem("invalid", f"types names at most {MAX_TYPES} types.")
        page = await self._core.events(view.session.id, after, limit=limit, max_chars=PAGE_CHARS, types=types)
        more = {"after": page[-1].seq} if page else {}
        return json_response({"events": [event.document(view.session.id) for event in page], **more})

    async def fleet(self, request: web.Request) -> web.Response:
        """The gateways and what they know of the services."""
        del request
        return json_response(await self._core.fleet.document())

    async def effects(self, request: web.Request) -> web.Response:
        """What the turns did outside: one entry per effect, with times and attempts."""
        view = await self._core.session(request.match_info["session"])
        after = params.number(request, "after", 0)
        limit = params.number(request, "limit", DEFAULT_PAGE, least=1, most=MAX_PAGE)
        brief = request.query.get("documents", "1") == "0"
        turn_id = request.query.get("turnId")
        found = await self._core.effects(view.session.id, turn_id, after, limit, brief=brief)
        more = {"after": found[-1][0]} if len(found) == limit else {}
        shown = _brief_effect if brief else _effect
        return json_response({"effects": [shown(effect) for _, effect in found], **more})

    async def effect(self, request: web.Request) -> web.Response:
        """One effect with its documents."""
        found = await self._core.effect(request.match_info["session"], request.match_info["effect"])
        return json_response(_effect(found))

    async def events(self, request: web.Request) -> web.StreamResponse:
        """The log, as server-sent events."""
        view = await self._core.session(request.match_info["session"])
        resume = request.headers.get("Last-Event-ID", "").strip() or request.query.get("after", "0")
        return await stream_events(
            self._core, request, view.session.id, params.whole(resume, "Last-Event-ID")
        )

    # Turns

    async def post_message(self, request: web.Request) -> web.Response:
        """Starts a turn."""
        session_id = request.match_info["session"]
        body, _ = await read_body(request)
        turn_id, seq = await self._core.message(session_id, body)
        return json_response({"sessionId": session_id, "turnId": turn_id, "seq": seq}, 202)

    async def approve(self, request: web.Request) -> web.Response:
        """Approves or rejects."""
        session_id = request.match_info["session"]
        body, _ = await read_body(request)
        owner, seq = await self._core.approve(session_id, body)
        return json_response({"sessionId": owner, "seq": seq}, 202)

    async def respond(self, request: web.Request) -> web.Response:
        """Answers a question."""
        session_id = request.match_info["session"]
        body, _ = await read_body(request)
        owner, seq = await self._core.respond(session_id, body)
        return json_response({"sessionId": owner, "seq": seq}, 202)

    async def cancel(self, request: web.Request) -> web.Response:
        """Ends the turn that is under way."""
        session_id = request.match_info["session"]
        await self._core.cancel(session_id)
        return json_response(_view(await self._core.session(session_id)))

    async def outcome(self, request: web.Request) -> web.Response:
        """An Action's outcome that comes later."""
        session_id, effect_id = request.match_info["session"], request.match_info["effect"]
        body, _ = await read_body(request)
        resolved = await self._core.outcome(session_id, effect_id, body)
        return json_response({"effectId": effect_id, "result": resolved.result})


def _agent(agent: Agent) -> dict[str, Any]:
    actions = {} if agent.actions_url is None else {"actions": {"url": agent.actions_url}}
    return {
        "id": agent.id,
        "kind": "agent" if agent.engine == "agent" else "workflow",
        "manifestHash": agent.manifest_hash,
        **actions,
        "createdAt": iso_time(agent.created_ms),
        "updatedAt": iso_time(agent.updated_ms),
    }


def _session(session: Session) -> dict[str, Any]:
    return {
        "id": session.id,
        "agentId": session.agent_id,
        "manifestHash": session.manifest_hash,
        "kind": "agent" if session.engine == "agent" else "workflow",
        **({} if session.parent_id is None else {"parentId": session.parent_id}),
        "status": session.status,
        "activeTurnId": session.turn_id,
        "epoch": session.epoch,
        "createdAt": iso_time(session.created_ms),
        "updatedAt": iso_time(session.updated_ms),
    }


def _view(view: SessionView) -> dict[str, Any]:
    document = _session(view.session)
    document["lastSeq"] = view.last_seq
    if view.info is not None:
        document["info"] = RawJson(view.info)
    if view.last_turn is not None:
        turn_id, status, started_ms, ended_ms, result = view.last_turn
        turn: dict[str, Any] = {"id": turn_id, "status": status, "startedAt": iso_time(started_ms)}
        if ended_ms is not None:
            turn["endedAt"] = iso_time(ended_ms)
        if result is not None:
            turn["result"] = RawJson(result)
        document["lastTurn"] = turn
    if view.waits is not None:
        document["waits"] = RawJson(view.waits)
    if view.session.status == "paused":
        document["interactions"] = view.interactions
    if view.linked:
        document["linked"] = [
            {
                "sessionId": link.session_id,
                "effectId": link.effect_id,
                "agentId": link.agent_id,
                "status": link.status,
            }
            for link in view.linked
        ]
    if view.mcp_diagnostics is not None:
        document["mcp"] = {"servers": RawJson(view.mcp_diagnostics)}
    hint = _HINTS.get(view.session.status)
    if hint is not None:
        document["hint"] = hint.format(id=view.session.id)
    return document


_HINTS: Final = {
    "uncertain": "A call may have run and nobody knows its outcome. Cancel the turn (POST "
    "/v1/sessions/{id}/cancel), then send the next message.",
    "paused": "The turn waits for a person: POST /v1/sessions/{id}/approve or /respond with an interactionId.",
    "waiting": "The turn waits for the outcome of an Action (POST "
    "/v1/sessions/{id}/effects/<effectId>/outcome), or for the sessions in `linked`.",
}


_FAILED: Final = '{"value":{"kind":"failed",'


def _brief_effect(effect: Effect) -> dict[str, Any]:
    document = {**_facts(effect), "label": RawJson(effect.label)}
    return {**document, "failed": True} if (effect.outcome or "").startswith(_FAILED) else document


def _effect(effect: Effect) -> dict[str, Any]:
    document = {**_facts(effect), "request": RawJson(effect.request)}
    return document if effect.outcome is None else {**document, "outcome": RawJson(effect.outcome)}


def _facts(effect: Effect) -> dict[str, Any]:
    document: dict[str, Any] = {
        "effectId": effect.effect_id,
        "turnId": effect.turn_id,
        "segment": effect.segment,
        "kind": effect.kind,
        "runner": effect.runner,
        "status": effect.status,
        "attempts": effect.attempts,
        "startedAt": iso_time(effect.started_ms),
    }
    if effect.ended_ms is not None:
        document["endedAt"] = iso_time(effect.ended_ms)
        document["durationMs"] = effect.ended_ms - effect.started_ms
    if effect.error is not None:
        document["error"] = effect.error
    return document
