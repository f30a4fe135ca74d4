"""What holds for any script of answers: order of arrival, replay, suspension and edits change nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.engine.contract import Completed, EffectRequest, RecordedOutcome, YieldAfter
from protocol import jsjson
from protocol.canonical import request_hash
from protocol.transcript import Entry, fold, updates
from tests.engine.support import Player, agent, checkpoint, json_of, tool
from tests.vectors.segment_host import whole_effect

NUMBERED = {"type": "object", "properties": {"n": {"type": "integer", "default": 1}}, "required": []}
MANIFEST = agent(
    tool("free"),
    tool("numbered") | {"inputSchema": NUMBERED},
    tool("checked", outputSchema={"type": "object", "properties": {"a": {"type": "string"}}}),
)
MODEL_FAILURE = {"kind": "failed", "code": "overloaded", "message": "m", "retryable": True}

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
BAG = st.dictionaries(st.sampled_from("abc"), st.integers(0, 3), max_size=2)


def outcomes() -> st.SearchStrategy[dict[str, Any]]:
    asking = st.sampled_from(["approval", "response"]).map(
        lambda kind: {
            "kind": "interaction-required",
            "interaction": {"kind": kind, "prompt": "?"},
            "token": 1,
        }
    )
    value = st.one_of(
        JSON,
        JSON.map(lambda output: {"kind": "completed", "output": output}),
        st.just({"kind": "failed", "code": "a.b", "message": "m"}),
        st.just({"kind": "denied", "reason": "r"}),
        st.just({"kind": "failed"}),
        asking,
        asking,
    )
    return st.builds(
        lambda value, patch: {"value": value} if patch is None else {"value": value, "statePatch": patch},
        value,
        st.none() | BAG,
    )


def steps() -> st.SearchStrategy[Any]:
    call = st.builds(
        lambda name, id_, args: {"type": "tool-call", "id": id_, "name": name, "args": args},
        st.sampled_from(["free", "free", "numbered", "checked", "gone", ""]),
        st.sampled_from(["x", "y", "z", "w", ""]),
        st.one_of(
            st.dictionaries(st.text(max_size=3), JSON, max_size=3),
            st.fixed_dictionaries({"n": st.integers(0, 9)}),
        ),
    )
    block = st.one_of(
        st.text(max_size=5).map(lambda text: {"type": "text", "text": text}),
        st.sampled_from(["turn", "always"]).map(
            lambda replay: {"type": "reasoning", "text": "r", "providerMetadata": {"replay": replay}}
        ),
    )
    return st.tuples(st.lists(block, max_size=2), st.lists(call, min_size=1, max_size=3)).map(
        lambda parts: {"output": [*parts[0], *parts[1]]}
    )


@dataclass(frozen=True)
class Script:
    """Answers by number of the model call and, for tools, in the order in which calls are first made."""

    answers: list[Any]
    outcomes: list[Any]
    limit: int | None

    def answer(self, effect: EffectRequest, models: int) -> dict[str, Any]:
        """The outcome of an effect: a pure function of it."""
        if effect.kind == "model":
            return {"value": self.answers[models] if models < len(self.answers) else "done"}
        context: Any = effect.document["context"]
        if "resume" in context:
            return {"value": {"kind": "completed", "output": context["resume"]}}
        number = int(effect.effect_id.rsplit("_", 1)[1])
        return dict(self.outcomes[number % len(self.outcomes)])


SCRIPTS = st.builds(
    Script,
    st.builds(
        lambda middle, end: middle + end,
        st.lists(steps(), min_size=1, max_size=5),
        st.sampled_from([[], [], [], ["words"], [MODEL_FAILURE], [5]]),
    ),
    st.lists(outcomes(), min_size=1, max_size=5),
    st.none() | st.integers(1, 2),
)


@dataclass
class Session:
    """A turn with all its segments."""

    asked: list[tuple[str, str]] = field(default_factory=list)
    ends: list[tuple[str, Any, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Way:
    """How a turn is played. `journal`: every segment stops after so many answers, with all other effects
    pending, and is run again from what is recorded."""

    order: int = 0
    journal: int | None = None
    plain: bool = False


PLAINLY = Way()


def play_turn(script: Script, way: Way = PLAINLY) -> Session:
    """Plays one turn to its end."""
    session = Session()
    state: Any = None
    entries: list[Entry] = []
    input_: Any = "go"
    for segment in range(12):
        given = checkpoint(MANIFEST, input_, segment=segment)
        if state is not None:
            given["state"] = state
        player = play_segment(script, way, given, entries)
        session.asked += sorted((effect.effect_id, effect.request_hash) for effect, _ in player.observed)
        result = player.result
        check_edits(player)
        session.ends.append((result.status, player.state, json_of([str(result.output), str(result.error)])))
        if result.status == "paused":
            input_ = reply(json_of(result.pending)[0])
        elif result.status == "yielded":
            input_ = {"kind": "continue"}
        else:
            return session
        state, entries = player.state, list(result.transcript or ())
    return session


def reply(pending: Any) -> Any:
    interaction = pending["interaction"]
    if interaction["kind"] == "approval":
        return {"kind": "approve", "interactionId": interaction["id"], "approved": True}
    return {"kind": "respond", "interactionId": interaction["id"], "value": {"b": 1, "a": 2}}


def play_segment(script: Script, way: Way, given_: Any, entries: list[Entry]) -> Player:
    """Plays one segment to an end that isn't waiting."""
    recorded: list[RecordedOutcome] = []
    before = sum(1 for entry in entries if entry.text.startswith('{"kind":"candidate"'))
    left = way.journal
    while True:
        player = Player(
            MANIFEST,
            given_,
            outcomes=recorded,
            transcript=[Entry(entry.text) for entry in entries] if way.journal else entries,
            yield_after=YieldAfter(steps=script.limit),
        ).start()
        while player.in_flight:
            effect_id = sorted(player.in_flight)[way.order % len(player.in_flight)]
            if left == 0:
                player.pending(effect_id)
                continue
            effect = player.in_flight[effect_id]
            models = before + sum(1 for seen, _ in player.observed if seen.kind == "model") - 1
            parsed = jsjson.parse(jsjson.dumps(script.answer(effect, models)))
            outcome: Any = parsed.value
            player.answer(effect_id, Completed(outcome, way.plain and parsed.plain))
            recorded.append(RecordedOutcome(effect_id, effect.request_hash, outcome))
            left = None if left is None else left - 1
        if player.result.status != "waiting":
            return player
        left = way.journal


def check_edits(player: Player) -> None:
    """The reported edits lead from the starting transcript to the state's."""
    after = list(player.result.transcript or ())
    folded = list(player.transcript)
    for edit in updates(player.transcript, after, 200):
        folded = fold(folded, edit)
    assert folded == after
    assert all(entry.text == Entry.from_value(entry.value()).text for entry in after)


@settings(max_examples=150, deadline=None)
@given(SCRIPTS, st.integers(0, 5))
def test_the_order_of_arrival_changes_nothing(script: Script, order: int) -> None:
    assert play_turn(script, Way(order=order)) == play_turn(script)


@settings(max_examples=150, deadline=None)
@given(SCRIPTS, st.integers(1, 3))
def test_suspending_and_replaying_at_any_boundary_changes_nothing(script: Script, journal: int) -> None:
    assert play_turn(script, Way(journal=journal)) == play_turn(script)


@settings(max_examples=150, deadline=None)
@given(SCRIPTS)
def test_writing_the_fast_way_changes_nothing(script: Script) -> None:
    assert play_turn(script, Way(plain=True)) == play_turn(script)


@settings(max_examples=100, deadline=None)
@given(SCRIPTS)
def test_ids_are_used_once_in_a_turn(script: Script) -> None:
    session = play_turn(script)
    effect_ids = [effect_id for effect_id, _ in session.asked]
    assert len(set(effect_ids)) == len(effect_ids)
    state = session.ends[-1][1]
    for entry in state["transcript"]:
        if entry["kind"] == "tool-results":
            call_ids = [result["callId"] for result in entry["results"]]
            assert len(set(call_ids)) == len(call_ids)


@settings(max_examples=100, deadline=None)
@given(SCRIPTS)
def test_the_hash_is_that_of_the_whole_effect(script: Script) -> None:
    player = play_segment(script, PLAINLY, checkpoint(MANIFEST, "go"), [])
    for effect, _ in player.observed:
        assert request_hash(whole_effect(effect)) == effect.request_hash
