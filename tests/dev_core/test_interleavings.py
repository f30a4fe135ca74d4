"""Random interleavings of everything that writes: two sessions' rules hold after every step.

The machine works on the transactions themselves, one after the other as the writer thread does. It keeps a
small model beside them: what each session's transcript and state must be, and which runs were settled.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from protocol import jsjson
from protocol.canonical import request_hash
from protocol.errors import HarnessApiError
from protocol.methods import check_params
from services.dev_core.effects import actions, intent, outcome
from services.dev_core.effects.held import HandedOut, HeldRun
from services.dev_core.effects.intent import Asked, Recovery
from services.dev_core.manifests import NO_MCP_TOOLS, check_manifest, facts_of
from services.dev_core.problems import Problem
from services.dev_core.store import agents, effects, events, sessions
from services.dev_core.store.schema import prepare
from services.dev_core.store.sessions import OPEN_STATUSES
from services.dev_core.store.transaction import Tx
from services.dev_core.transcripts import fold_log
from services.dev_core.turns import answers, lease, messages, settle
from services.dev_core.turns.settle import Abort, Output
from tests.dev_core.support import HELPER

CHECKED = check_manifest(HELPER)
HASH, TEXT = CHECKED.hash, CHECKED.text
FACTS = facts_of(HASH, TEXT)
RECOVERY = Recovery(models=True)
OWNER = "conn_1"
ENDS = frozenset({"turn.completed", "turn.failed", "turn.cancelled"})
CALLS = [
    {
        "callId": "c1",
        "toolName": "note",
        "status": "interaction",
        "interaction": {"id": "i1", "kind": "approval", "prompt": "?"},
    }
]


class Interleavings(RuleBasedStateMachine):
    """One session, its runs, and whatever may happen to them in any order."""

    @initialize()
    def begin(self) -> None:
        self.connection = sqlite3.connect(":memory:", isolation_level=None)
        prepare(self.connection, ":memory:")
        self.tx = Tx(self.connection)
        self.now = 0
        self.turns = 0
        self.settled: Counter[str] = Counter()
        self.runs: list[HeldRun] = []
        self.asked: dict[str, list[tuple[dict[str, Any], HandedOut]]] = {}
        self.outcomes: dict[str, str] = {}
        self.kept: list[Any] = []
        self.kept_state: Any = None
        self.turn_entries: list[Any] | None = None
        self.log: list[tuple[int, str]] = []
        agents.put(self.tx, "helper", HASH, TEXT, engine="agent", actions_url="http://x/", now_ms=0)
        sessions.create(self.tx, "s", "helper", HASH, engine="agent", info=None, now_ms=0)

    def teardown(self) -> None:
        self.connection.close()

    def do(self, work: Any) -> Any:
        """One transaction, undone when it is refused; its result or the refusal."""
        self.now += 1
        self.connection.execute("BEGIN")
        try:
            result = work(self.tx)
        except (HarnessApiError, Problem) as refusal:
            self.connection.execute("ROLLBACK")
            self.tx = Tx(self.connection)
            return refusal
        self.connection.execute("COMMIT")
        return result

    @property
    def session(self) -> sessions.Session:
        found = sessions.load(self.tx, "s")
        assert found is not None
        return found

    def current(self, data: st.DataObject) -> HeldRun:
        return data.draw(st.sampled_from(self.runs[-3:]))

    # What people do

    @rule()
    def message(self) -> None:
        self.turns += 1
        work = partial(
            messages.start_turn,
            session_id="s",
            turn_id=f"t{self.turns}",
            message=messages.Message("text", "go"),
            now_ms=self.now,
        )
        was_open = self.session.status in OPEN_STATUSES
        refused = isinstance(self.do(work), Problem)
        assert refused == was_open
        if not refused:
            self.turn_entries = None

    @rule()
    def cancel(self) -> None:
        was_open = self.session.status in OPEN_STATUSES
        result = self.do(partial(answers.cancel, session_id="s", now_ms=self.now))
        assert (result is True) == was_open
        if was_open:
            self.turn_entries = None

    @rule(approved=st.booleans())
    def approve(self, approved: bool) -> None:
        given = {"kind": "approve", "interactionId": "i1", "approved": approved}
        was_paused = self.session.status == "paused"
        result = self.do(partial(answers.answer, session_id="s", given=given, now_ms=self.now))
        assert isinstance(result, Problem) != was_paused

    # What the core does

    @rule()
    def take(self) -> None:
        run_id = f"r{len(self.runs)}"
        work = partial(
            lease.take, session_id="s", owner=OWNER, run_id=run_id, until_ms=self.now + 10, now_ms=self.now
        )
        session = self.session
        taken = self.do(work)
        assert (taken is not None) == (session.status == "runnable" and session.lease_owner is None)
        if taken is None:
            return
        recorded = {effect_id for effect_id, _, _ in taken.outcomes}
        assert recorded <= set(self.outcomes)
        self.runs.append(
            HeldRun(
                run_id=run_id,
                session_id="s",
                turn_id=taken.turn_id,
                segment=taken.segment,
                epoch=taken.epoch,
                owner=OWNER,
                agent_id="helper",
                manifest_hash=HASH,
                cursor=taken.cursor,
            )
        )
        self.asked[run_id] = []

    @rule()
    def lapse(self) -> None:
        epoch, owner = self.session.epoch, self.session.lease_owner
        work = partial(lease.take_over, session_id="s", epoch=epoch, model_recovers=True, now_ms=self.now)
        self.do(work)
        assert self.session.lease_owner is None
        if owner is not None:
            assert all(runner == "model" for _, _, runner in effects.invoking(self.tx, "s"))

    @precondition(lambda self: self.runs)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        run = self.current(data)
        self.do(partial(lease.give_back, session_id="s", epoch=run.epoch, owner=run.owner, now_ms=self.now))

    @precondition(lambda self: self.runs)
    @rule(data=st.data(), kind=st.sampled_from(["cancel", "deadline", "ownership.lost"]))
    def abandon(self, data: st.DataObject, kind: Any) -> None:
        run = self.current(data)
        owned = self.owns(run)
        active = owned and self.session.turn_id == run.turn_id
        self.do(partial(settle.abandon, run=run, abort=Abort(kind, "late"), now_ms=self.now))
        if active:
            self.turn_entries = None

    @rule()
    def restart(self) -> None:
        self.do(partial(actions.lose_sent, now_ms=self.now))
        assert effects.open_actions(self.tx, "sent") == []

    # What harnesses do

    def owns(self, run: HeldRun) -> bool:
        session = self.session
        return session.epoch == run.epoch and session.lease_owner == run.owner

    @precondition(lambda self: self.runs)
    @rule(data=st.data(), kind=st.sampled_from(["model", "bash", "lookup"]), number=st.integers(0, 2))
    def ask(self, data: st.DataObject, kind: str, number: int) -> None:
        run = self.current(data)
        effect: dict[str, Any] = {
            "effectId": f"{run.turn_id}:{run.segment}:{kind}:{number}",
            "sessionId": "s",
            "turnId": run.turn_id,
            "agentId": "helper",
            "manifestHash": HASH,
            "kind": "model" if kind == "model" else "tool",
            "context": {},
        }
        if kind != "model":
            effect |= {"input": {}, "toolName": kind, "capabilityId": "box" if kind == "bash" else "desk"}
        params = check_params(
            "effect.intent", {"runId": run.run_id, "effect": effect, "requestHash": request_hash(effect)}
        )
        asked = Asked(params.effect, effect, params.request_hash, True)
        before = effects.load(self.tx, "s", effect["effectId"])
        decision = self.do(
            partial(
                intent.decide,
                run=run,
                asked=asked,
                facts=FACTS,
                mcp=NO_MCP_TOOLS,
                recovery=RECOVERY,
                abort_message=None,
                now_ms=self.now,
            )
        )
        if isinstance(decision, HarnessApiError):
            expected = "turn_cancelled" if self.owns(run) else "ownership_lost"
            assert decision.code == expected
            return
        # A tool is handed out once in its life.
        assert decision.status != "execute" or before is None
        if decision.status in ("execute", "rejoin"):
            assert decision.handed_out is not None
            self.asked[run.run_id].append((effect, decision.handed_out))
        if decision.status == "completed":
            assert self.outcomes[effect["effectId"]] == decision.outcome

    @precondition(lambda self: any(self.asked.values()))
    @rule(data=st.data(), value=st.integers(), fails=st.booleans(), knows=st.booleans())
    def report(self, data: st.DataObject, value: int, fails: bool, knows: bool) -> None:
        run = self.current(data)
        if not self.asked[run.run_id]:
            return
        effect, handed_out = data.draw(st.sampled_from(self.asked[run.run_id]))
        effect_id = effect["effectId"]
        if fails:
            work: Any = partial(
                outcome.record_error, run=run, effect_id=effect_id, error="lost", now_ms=self.now
            )
        else:
            work = partial(
                outcome.record_value,
                run=run,
                effect_id=effect_id,
                value=str(value),
                failed=False,
                cancelled=False,
                now_ms=self.now,
                handed_out=handed_out if knows else None,
            )
        active = self.owns(run) and self.session.turn_id == run.turn_id
        result = self.do(work)
        if not fails and not isinstance(result, HarnessApiError):
            assert active
            assert self.outcomes.setdefault(effect_id, result) == result

    @precondition(lambda self: self.runs)
    @rule(
        data=st.data(),
        status=st.sampled_from(["completed", "paused", "yielded", "failed", "cancelled", "thrown", "bad"]),
        new=st.lists(st.integers(0, 9), max_size=3),
        late=st.booleans(),
    )
    def output(self, data: st.DataObject, status: str, new: list[int], late: bool) -> None:
        run = self.current(data)
        base = self.turn_entries if self.turn_entries is not None else self.kept
        keep = data.draw(st.integers(0, len(base)))
        entries = [*base[:keep], *new]
        state = {"transcript": [], "n": self.now}
        edit = {"keep": keep, "entries": new, "length": len(entries) + (status == "bad")}
        document: dict[str, Any] = {"runId": run.run_id, "state": state, "transcript": [edit]}
        if status == "thrown":
            document = {"runId": run.run_id, "thrown": {"message": "boom"}}
        else:
            document["status"] = "completed" if status == "bad" else status
        method = {
            "completed": "turn.completed",
            "bad": "turn.completed",
            "paused": "turn.paused",
            "yielded": "checkpoint",
        }.get(status, "turn.failed")
        if status == "paused":
            document["pending"] = CALLS
        output = Output.of(method, check_params(method, document), True)
        active = self.owns(run) and self.session.turn_id == run.turn_id
        abort = Abort("deadline", "too late") if late else None
        result = self.do(partial(settle.settle, run=run, output=output, abort=abort, now_ms=self.now))
        if isinstance(result, HarnessApiError):
            assert not self.owns(run)
            return
        self.settled[run.run_id] += 1
        if not active:
            assert result.cursor is None
            return
        if status == "completed":
            self.kept, self.kept_state, self.turn_entries = entries, state, None
        elif status in ("paused", "yielded"):
            self.turn_entries = entries
        else:
            self.turn_entries = None
            if status == "cancelled" and not late:
                self.kept_state = state

    @precondition(lambda self: self.runs)
    @rule(data=st.data(), uncertain=st.booleans())
    def suspend(self, data: st.DataObject, uncertain: bool) -> None:
        run = self.current(data)
        prefix = f"{run.turn_id}:{run.segment}:"
        ids = [
            e.effect_id
            for _, e in effects.of_session(self.tx, "s", turn_id=run.turn_id, after=0, limit=100)
            if e.effect_id.startswith(prefix) and e.status in ("pending", "uncertain")
        ]
        if not ids:
            return
        document = {"runId": run.run_id, "status": "uncertain" if uncertain else "waiting", "effectIds": ids}
        output = Output.of("turn.waiting", check_params("turn.waiting", document), True)
        result = self.do(partial(settle.settle, run=run, output=output, abort=None, now_ms=self.now))
        if not isinstance(result, HarnessApiError):
            self.settled[run.run_id] += 1

    # What endpoints do

    def pending_actions(self) -> list[str]:
        rows = self.tx.all("SELECT effect_id FROM actions ORDER BY effect_id")
        return [row[0] for row in rows]

    @precondition(lambda self: self.runs)
    @rule(data=st.data(), answer=st.sampled_from(["delivered", "accepted", "rejected", "unknown"]))
    def post(self, data: st.DataObject, answer: str) -> None:
        found = self.pending_actions()
        if not found:
            return
        effect_id = data.draw(st.sampled_from(found))
        order = self.do(partial(actions.mark_sent, session_id="s", effect_id=effect_id, now_ms=self.now))
        again = self.do(partial(actions.mark_sent, session_id="s", effect_id=effect_id, now_ms=self.now))
        assert again is None
        if order is None:
            return
        delivery = {
            "delivered": actions.Delivered('{"value":1}'),
            "accepted": actions.Accepted(),
            "rejected": actions.Rejected("no"),
            "unknown": actions.Unknown("lost"),
        }[answer]
        resolved = self.do(partial(actions.deliver, order=order, delivery=delivery, now_ms=self.now))
        if resolved.result == "completed":
            self.outcomes[effect_id] = resolved.outcome

    @precondition(lambda self: self.runs)
    @rule(data=st.data(), value=st.integers(0, 2))
    def bring(self, data: st.DataObject, value: int) -> None:
        found = self.pending_actions()
        if not found:
            return
        effect_id = data.draw(st.sampled_from(found))
        work = partial(
            actions.receive_outcome,
            session_id="s",
            effect_id=effect_id,
            outcome=f'{{"value":{value}}}',
            now_ms=self.now,
        )
        resolved = self.do(work)
        if not isinstance(resolved, Problem):
            assert self.outcomes.setdefault(effect_id, resolved.outcome) == resolved.outcome

    # What always holds

    @invariant()
    def events_are_never_lost_or_changed(self) -> None:
        page = events.page(self.tx, "s", 0, limit=100_000, max_chars=10**9)
        log = [(event.seq, event.payload) for event in page]
        assert [seq for seq, _ in log] == list(range(1, len(log) + 1))
        assert log[: len(self.log)] == self.log
        self.log = log

    @invariant()
    def every_run_is_settled_at_most_once(self) -> None:
        assert all(count == 1 for count in self.settled.values())

    @invariant()
    def a_turn_starts_and_ends_once(self) -> None:
        rows = self.tx.all("SELECT type, turn_id FROM events ORDER BY seq")
        started = [turn for kind, turn in rows if kind == "turn.started"]
        ended = [turn for kind, turn in rows if kind in ENDS]
        assert len(set(ended)) == len(ended)
        is_open = self.session.status in OPEN_STATUSES
        assert is_open == (self.session.turn_id is not None)
        assert len(started) == len(ended) + is_open
        if is_open:
            assert self.session.turn_id == started[-1]

    @invariant()
    def the_transcript_is_what_the_kept_segments_made_it(self) -> None:
        session = self.session
        kept = fold_log(self.tx, "s", session.cursor)
        assert [jsjson.loads(entry.text) for entry in kept] == self.kept
        assert session.length == len(self.kept)
        cursor, length = session.position
        expected = self.kept if self.turn_entries is None else self.turn_entries
        assert [jsjson.loads(entry.text) for entry in fold_log(self.tx, "s", cursor)] == expected
        assert length == len(expected)
        state = sessions.document(self.tx, "s", "state")
        assert (None if state is None else json.loads(state)) == self.kept_state

    @invariant()
    def outcomes_never_change(self) -> None:
        for effect_id, text in self.outcomes.items():
            row = effects.load(self.tx, "s", effect_id)
            assert row is not None
            assert (row.status, row.outcome) == ("completed", text)


TestInterleavings = Interleavings.TestCase
TestInterleavings.settings = settings(
    max_examples=150,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestInterleavings = pytest.mark.timeout(300)(TestInterleavings)
