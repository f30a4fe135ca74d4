"""Linked sessions in the database: who runs an agent effect, and when its turn begins (flow-engine 14.1).

An agent effect queues a link in the transaction that records it. Its turn begins in a transaction of its own,
when its session has no other turn and fewer linked turns run for the workflow than may run at once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from protocol import jsjson
from services.dev_core.clock import new_id
from services.dev_core.effects.held import storable
from services.dev_core.manifests import Checked, ManifestFacts, ManifestRefused, check_manifest
from services.dev_core.problems import Problem
from services.dev_core.store import agents, effects, events, links, sessions
from services.dev_core.store.links import Link
from services.dev_core.store.sessions import OPEN_STATUSES, Session
from services.dev_core.store.transaction import Tx
from services.dev_core.turns.ending import AGENT_FAILED, complete_agent, failed_agent
from services.dev_core.turns.messages import Message, start_turn

MAX_NESTING: Final = 16
"""Linked sessions below a person's session: flows of a registry may name each other in a circle."""


def linked_session_id(session_id: str, document: Mapping[str, Any]) -> str:
    """The id of the session that carries out an agent effect.

    A path of a workflow session keeps one session, whatever the turn and the iteration; a verifier has one
    per iteration, and an agent's flow one per call.
    """
    given, context = document["input"], document["context"]
    parts = [session_id, given["path"]]
    if context.get("role") == "verify-agent":
        parts += ["verify", document["turnId"], *document.get("iterations", "").split(".")]
    elif context.get("role") == "delegate":
        parts += ["delegate", document["turnId"], str(context.get("delegationId"))]
    digest = hashlib.sha256("\0".join(map(storable, parts)).encode()).hexdigest()
    return f"wf_{digest[:24]}"


@dataclass(frozen=True, slots=True)
class RunningLink:
    """A linked turn that runs for a session."""

    effect_id: str
    session_id: str
    agent_id: str
    status: str


def running(tx: Tx, session_id: str) -> list[RunningLink]:
    """The linked turns that run for a session, in the order they were asked for."""
    found: list[RunningLink] = []
    for link in links.running(tx, session_id):
        linked = sessions.load(tx, link.linked_id)
        if linked is not None:
            found.append(RunningLink(link.effect_id, linked.id, linked.agent_id, linked.status))
    return found


@dataclass(frozen=True, slots=True)
class LinkedAgent:
    """The agent of an effect. `has_endpoint`: its Actions go to an endpoint of its own."""

    manifest: Checked
    has_endpoint: bool = False


class Unlinkable(Exception):
    """No session can carry the effect out; the text says why."""


def agent_of(tx: Tx, facts: ManifestFacts, document: Mapping[str, Any]) -> LinkedAgent:
    """The agent that an effect of a run with these facts names. Raises Unlinkable.

    A workflow of version 2 embeds it, one of version 1 takes it from the registry, and an agent has it among
    its tools.
    """
    given = document["input"]
    agent_id = given["agentId"]
    match facts.engine:
        case "flow-1":
            found = agents.load(tx, storable(agent_id))
            if found is None:
                raise Unlinkable(f"There is no agent {agent_id!r}: put it with PUT /v1/agents/{{id}}")
            text = agents.manifest(tx, found.manifest_hash)
            assert text is not None
            manifest = Checked(found.manifest_hash, text, found.engine)
            return LinkedAgent(manifest, found.actions_url is not None)
        case "flow-2":
            embedded = facts.embedded(given.get("flow", ()), agent_id)
        case _:
            embedded = facts.delegate(agent_id)
    if embedded is None:
        raise Unlinkable(f"The manifest embeds no agent {agent_id!r}")
    return LinkedAgent(embedded)


def queue(
    tx: Tx, session_id: str, effect_id: str, document: Mapping[str, Any], agent: LinkedAgent, now_ms: int
) -> None:
    """Queues an agent effect of the turn under way, in a session that is made when there is none.

    Raises Unlinkable; then nothing was written.
    """
    linked_id = linked_session_id(session_id, document)
    parent = sessions.as_parent(tx, session_id)
    if parent.nesting > MAX_NESTING:
        raise Unlinkable(f"Flows nest at most {MAX_NESTING} sessions deep; do two workflows name each other?")
    links.insert(tx, Link(session_id, effect_id, document["turnId"], linked_id, None, "queued"))
    if sessions.load(tx, linked_id) is None:
        agents.put_manifest(tx, agent.manifest.hash, agent.manifest.text)
        sessions.create(
            tx,
            linked_id,
            storable(document["input"]["agentId"]),
            agent.manifest.hash,
            engine=agent.manifest.engine,
            info=sessions.document(tx, session_id, "info"),
            now_ms=now_ms,
            parent=sessions.Parent(parent.id, parent.nesting, None) if agent.has_endpoint else parent,
        )
    tx.move(session_id, "links")


def begin_queued(tx: Tx, session_id: str, at_once: int, now_ms: int) -> int:
    """Begins the linked turns that may begin now, at most `at_once` at a time; how many began."""
    session = sessions.load(tx, session_id)
    if session is None:
        return 0
    begun = 0
    room = at_once - links.count_running(tx, session_id)
    for link in links.ready(tx, session_id, room, OPEN_STATUSES):
        linked = sessions.load(tx, link.linked_id)
        if linked is None or linked.status in OPEN_STATUSES:
            continue  # two effects of one path: the second waits for the first one's end
        _begin(tx, link, linked, now_ms)
        begun += 1
    return begun


def _begin(tx: Tx, link: Link, linked: Session, now_ms: int) -> None:
    row = effects.load(tx, link.session_id, link.effect_id)
    assert row is not None
    request: Any = jsjson.loads(row.request)
    given = request["input"]
    turn_id = new_id("t")
    try:
        turn_manifest = _turn_manifest(tx, linked, given)
        value = given.get("input")
        message = Message("text" if isinstance(value, str) else "data", value)
        start_turn(tx, linked.id, turn_id, message, now_ms, turn_manifest_hash=turn_manifest)
    except (ManifestRefused, Problem) as error:
        links.move(tx, link, "settled")
        complete_agent(tx, link, failed_agent(AGENT_FAILED, str(error)), now_ms)
        return
    links.move(tx, link, "running", turn_id)
    label = f'{row.label[:-1]},"sessionId":"{linked.id}"}}'
    events.append(tx, link.session_id, "agent.started", link.turn_id, label, now_ms)
    tx.move(linked.id, "runnable")


def _turn_manifest(tx: Tx, linked: Session, given: Mapping[str, Any]) -> str | None:
    """The hash of the manifest that the effect brings for its turn; None for the session's own."""
    if "manifest" not in given or linked.engine != "agent":
        return None
    checked = check_manifest(given["manifest"])
    if checked.engine != "agent":
        raise ManifestRefused("The loop's decision brings a workflow for its agent.")
    if checked.hash == linked.manifest_hash:
        return None
    agents.put_manifest(tx, checked.hash, checked.text)
    return checked.hash
