"""The gateway's page for people: headers, hosts, no writes, and nothing in it but what is named."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from gateway.runs.ended import KEPT_RUNS, MAX_ID_CHARS, EndedRuns
from gateway.view.document import MAX_OPEN, MAX_RUNS, view_document
from gateway.view.port import ViewPort
from protocol import jsjson
from tests.gateway.support import effect, gateway, one_after_another, settle, until_aborted
from tests.gateway.test_health import FakeFleet, FakeLink
from tests.gateway.virtual_time import virtual_time

SECRET = "the-content"


class LeakyLink(FakeLink):
    """Facts with more in them than may be shown."""

    def facts(self) -> list[dict[str, Any]]:
        open_ = [{"effectId": "e1", "kind": "tool", "phase": "executing", "ageMs": 5, "input": SECRET}]
        return [{"runId": "r1", "phase": "running", "ageMs": 9, "open": open_, "done": [], "prompt": SECRET}]


class LeakyFleet(FakeFleet):
    def services(self) -> dict[str, Any]:
        replica = {"target": "a:1", "serving": True, "counts": {"calls": 3}, "facts": {"x": SECRET}}
        return {"mcp-pool": {"serving": True, "replicas": [replica], "more": SECRET}}


@contextlib.asynccontextmanager
async def served() -> AsyncIterator[ViewPort]:
    ended = EndedRuns()
    ids = {"runId": "r0", "sessionId": "s0", "turnId": "t0"}
    ended.add({**ids, "ageMs": 7, "done": [], "output": SECRET}, "completed")
    port = ViewPort(0, LeakyLink(), ended, LeakyFleet())
    await port.open()
    try:
        yield port
    finally:
        await port.close()


async def ask(
    port: ViewPort, path: str, method: str = "GET", **headers: str
) -> tuple[int, aiohttp.typedefs.LooseHeaders, bytes]:
    url = f"http://127.0.0.1:{port.bound_port}{path}"
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as session,
        session.request(method, url, headers=headers) as answer,
    ):
        return answer.status, answer.headers, await answer.read()


async def test_the_page_lets_nothing_run_but_its_own_files():
    async with served() as port:
        status, headers, body = await ask(port, "/")
        assert status == 200
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "http" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert b"style=" not in body
        for name in ("view.js", "console.css", "dom.js", "replica.js", "icon.svg"):
            status, headers, _ = await ask(port, f"/console/{name}")
            assert (status, headers["Content-Security-Policy"]) == (200, policy)
            again, _, _ = await ask(port, f"/console/{name}", **{"If-None-Match": headers["ETag"]})
            assert again == 304


@pytest.mark.parametrize("path", ["/", "/view", "/console/view.js"])
async def test_another_host_is_refused(path):
    async with served() as port:
        status, _, body = await ask(port, path, Host=f"evil.example:{port.bound_port}")
        assert status == 421
        assert b"r1" not in body
        assert (await ask(port, path, Host=f"localhost:{port.bound_port}"))[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
async def test_nothing_can_be_written(method):
    async with served() as port:
        status, headers, _ = await ask(port, "/view", method)
        assert (status, headers["Allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize("path", ["/drain", "/fleet", "/index.html", "/console/", "/console/nobody.js", "//"])
async def test_there_is_nothing_else(path):
    async with served() as port:
        assert (await ask(port, path))[0] == 404


async def test_the_document_holds_what_is_named_and_no_content():
    async with served() as port:
        _, headers, body = await ask(port, "/view")
    assert headers["Cache-Control"] == "no-store"
    assert "Access-Control-Allow-Origin" not in headers
    assert SECRET.encode() not in body
    document = jsjson.loads(body)
    assert document["runs"][0]["open"] == [
        {"effectId": "e1", "kind": "tool", "phase": "executing", "ageMs": 5}
    ]
    assert document["ended"][0]["outcome"] == "completed"
    assert document["services"]["mcp-pool"]["replicas"] == [
        {"target": "a:1", "serving": True, "counts": {"calls": 3}}
    ]


def test_many_runs_and_effects_are_counted_and_not_all_shown():
    runs = [{"runId": f"r{n}", "open": [{"effectId": "e"}] * (MAX_OPEN + 1)} for n in range(MAX_RUNS + 1)]
    document: Any = view_document(gateway={}, runs=runs, ended=[], services={})
    assert (document["runCount"], len(document["runs"])) == (MAX_RUNS + 1, MAX_RUNS)
    assert document["runs"][0]["openCount"] == MAX_OPEN + 1
    assert len(document["runs"][0]["open"]) == MAX_OPEN


def test_the_last_runs_are_kept_and_their_ids_cut():
    ended = EndedRuns()
    for number in range(KEPT_RUNS + 5):
        ids = {"runId": f"r{number}", "sessionId": "s" * 10_000, "turnId": "t"}
        ended.add({**ids, "ageMs": 1, "done": []}, "completed")
    facts = ended.facts()
    assert (len(facts), facts[0]["runId"]) == (KEPT_RUNS, f"r{KEPT_RUNS + 4}")
    assert len(facts[0]["sessionId"]) == MAX_ID_CHARS


@virtual_time
async def test_a_run_is_seen_while_it_lives_and_with_its_outcome_afterwards():
    async with gateway(one_after_another(effect("e1"))) as gw:
        end = await gw.leased()
        intent = await end.expect("effect.intent")
        (run,) = gw.link.facts()
        (open_,) = run["open"]
        assert (open_["effectId"], open_["kind"], open_["phase"]) == ("e1", "tool", "asking")
        end.answer(intent, {"status": "completed", "outcome": {"value": SECRET}})
        output = await end.expect("turn.completed")
        (run,) = gw.link.facts()
        assert (run["open"], run["done"]) == ([], [{"kind": "tool", "outcome": "completed", "count": 1}])
        end.answer(output, {"cursor": 1})
        await settle()
        (ended,) = gw.host.ended.facts()
        assert (ended["runId"], ended["sessionId"], ended["outcome"]) == ("r1", "s1", "completed")
        assert ended["done"] == run["done"]
        assert SECRET not in str(ended)


@pytest.mark.parametrize(("reason", "outcome"), [("cancel", "cancelled"), ("shutdown", "released")])
@virtual_time
async def test_an_aborted_run_ends_as_cancelled_or_given_back(reason, outcome):
    async with gateway(one_after_another(effect("e1"))) as gw:
        gw.fake.behaviours["e1"] = until_aborted
        end = await gw.leased()
        end.answer(await end.expect("effect.intent"), {"status": "execute"})
        await settle()
        end.tell("cancel", runId="r1", reason=reason)
        end.refuse(await end.expect("effect.outcome"), "internal")
        await settle()
    (ended,) = gw.host.ended.facts()
    assert ended["outcome"] == outcome
    assert ended["done"] == [{"kind": "tool", "outcome": "aborted", "count": 1}]
