"""SIGKILL of each process at each boundary of each effect of a turn: nothing runs twice, nothing is lost.

A turn of four model calls, a stdio MCP call, a command and an edit. A process is killed when an effect has
just been handed out, and when its outcome has just been recorded; the supervisor starts it again.
"""

import hashlib

import pytest
import pytest_asyncio

from cli.stack import CORE, GATEWAY, MCP, MODEL, SANDBOX
from tests.system.support import ENDED, Stack, calls, counting_manifest, patiently, until

pytestmark = [
    pytest.mark.faults,
    pytest.mark.system,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(120),
]

AGENT = "killed"
ANSWER = "All done."
EFFECTS = ("model", "append", "model", "bash", "model", "edit", "model")
BOUNDARIES = [(index, status) for index in range(len(EFFECTS)) for status in ("invoking", "completed")]
MAY_BE_UNCERTAIN = {
    "append": {MCP, GATEWAY, CORE},
    "bash": {SANDBOX, GATEWAY, CORE},
    "edit": {SANDBOX, GATEWAY, CORE},
}
"""Which kills may leave which tool's outcome unknown. A model call's never is: its route recovers."""


def answers(journal):
    def slow(step, *tools):
        return calls(AGENT, step, *tools, delay_ms=150)

    return [
        slow(0, ("counting__append", {"file": str(journal), "line": "ran", "holdMs": 150})),
        slow(1, ("bash", {"command": "echo ran >> count; sleep 0.15; printf 'state: old\\n' > note"})),
        slow(2, ("edit", {"path": "note", "old_string": "old", "new_string": "new"})),
        {"agent": AGENT, "step": 3, "delayMs": 150, "answer": ANSWER},
    ]


@pytest.fixture(scope="module")
def journal(tmp_path_factory):
    path = tmp_path_factory.mktemp("journal") / "calls"
    path.touch()
    return path


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory, journal):
    stack = Stack(
        tmp_path_factory.mktemp("stack"),
        answers(journal),
        core_settings={"WHIPPLETREE_CORE_LEASE_MS": "1500"},
    )
    await stack.start()
    async with stack.core() as core:
        await core.put_agent(AGENT, counting_manifest(AGENT))
    yield stack
    await stack.stop()


def workspace(stack, session):
    name = hashlib.sha256(session.encode()).hexdigest()[:16]
    (found,) = stack.plan.state.root.glob(f"sandboxes/nylorun-*-{name}/workspace")
    return found


def lines(path):
    return path.read_text().splitlines() if path.exists() else []


@pytest.fixture(autouse=True)
def _log_of_a_failure(request, stack):
    mark = len(stack.log)
    yield
    print("\n" + stack.tail(min(80, len(stack.log) - mark)))


@pytest.mark.parametrize(("index", "status"), BOUNDARIES)
@pytest.mark.parametrize("process", [GATEWAY, CORE, MODEL, MCP, SANDBOX])
async def test_a_killed_process_loses_nothing_and_runs_nothing_twice(stack, journal, process, index, status):
    before = len(lines(journal))
    async with stack.core() as core:
        session = await patiently(lambda: core.create_session(AGENT))
        turn = await patiently(lambda: core.send_message(session, "go"))

        def reached(effects):
            return len(effects) > index and effects[index]["status"] in (status, "completed")

        await until(lambda: core.effects(session, turn), reached, pause=0.003)
        assert stack.kill(process) is not None
        view = await until(lambda: core.session(session), lambda seen: seen["status"] in ENDED)
        effects = await patiently(lambda: core.effects(session, turn))
        ran = len(lines(journal)) - before

        if view["status"] == "completed":
            assert view["lastTurn"]["result"]["output"] == ANSWER
            assert [effect["status"] for effect in effects] == ["completed"] * len(EFFECTS)
            assert ran == 1
            assert lines(workspace(stack, session) / "count") == ["ran"]
            assert (workspace(stack, session) / "note").read_text() == "state: new\n"
        else:
            assert view["status"] == "uncertain", view
            unknown = [
                name
                for name, effect in zip(EFFECTS, effects, strict=False)
                if effect["status"] == "uncertain"
            ]
            assert len(unknown) == 1, effects
            assert process in MAY_BE_UNCERTAIN.get(unknown[0], ()), (process, unknown)
            assert ran <= 1
            assert "cancel" in view["hint"].lower()
            await core._call("POST", f"/v1/sessions/{session}/cancel", {})
            again = await core.send_message(session, "go on")
            view = await until(
                lambda: core.session(session),
                lambda seen: seen["lastTurn"]["id"] == again and seen["status"] in ENDED,
            )
            assert view["status"] == "completed"
            assert len(lines(journal)) - before == ran + 1
