"""The fleet as a table."""

from __future__ import annotations

import json
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from cli.main import run
from cli.status import is_well, lines

REPLICA: dict[str, Any] = {
    "target": "127.0.0.1:4410",
    "serving": True,
    "version": "0.1.0",
    "running": 2,
    "since": "2026-12-01T05:17:37.471Z",
    "counts": {"model.failed": 1, "model.completed": 9},
    "latencies": [
        {"kind": "model", "boundsMs": [1, 5, 10], "counts": [6, 3, 0, 1]},
        {"kind": "discover", "boundsMs": [1, 5, 10], "counts": [0, 0, 99, 0]},
    ],
}


def fleet(*replicas: dict[str, Any], serving: bool = True) -> dict[str, Any]:
    return {"runs": [{}], "services": {"model-executor": {"serving": serving, "replicas": list(replicas)}}}


def document(*fleets: dict[str, Any]) -> dict[str, Any]:
    return {"gateways": [{"url": "http://127.0.0.1:4300", "reachable": True, "fleet": one} for one in fleets]}


def test_each_replica_is_a_row_with_its_calls_and_times() -> None:
    shown = lines(document(fleet(REPLICA, {"target": "b:1", "serving": True, "draining": True})))
    assert shown[0] == "gateway http://127.0.0.1:4300: 1 run"
    assert " ".join(shown[2].split()) == (
        "model-executor 127.0.0.1:4410 serving 0.1.0 2 9 model.completed, 1 model.failed <= 1 > 10 2026-12-01 05:17:37"
    )
    assert shown[3].split() == ["model-executor", "b:1", "draining"]


def test_a_service_without_replicas_is_away() -> None:
    away = document(fleet(serving=False))
    assert lines(away)[2].split() == ["model-executor", "-", "away"]
    assert not is_well(away)
    assert is_well(document(fleet(REPLICA)))


def test_a_gateway_that_is_away_is_named_with_the_reason() -> None:
    away = {"gateways": [{"url": "http://x", "reachable": False, "reason": "It can't be reached."}]}
    assert lines(away) == ["gateway http://x: away. It can't be reached."]
    assert not is_well(away)


def test_no_gateways_are_not_well() -> None:
    assert "WHIPPLETREE_FLEET_URLS" in lines({"gateways": []})[0]
    assert not is_well({"gateways": []})


@pytest.mark.parametrize(("serving", "code"), [(True, 0), (False, 1)])
async def test_a_gateway_is_asked_directly(
    capsys: pytest.CaptureFixture[str], serving: bool, code: int
) -> None:
    import asyncio

    async def answer(_: web.Request) -> web.Response:
        return web.json_response(fleet(REPLICA, serving=serving))

    app = web.Application()
    app.add_routes([web.get("/fleet", answer)])
    async with TestServer(app) as server:
        url = str(server.make_url(""))
        assert await asyncio.to_thread(run, ["status", "--gateway", url]) == code
        assert "127.0.0.1:4410" in capsys.readouterr().out
        assert await asyncio.to_thread(run, ["status", "--gateway", url, "--json"]) == code
        found = json.loads(capsys.readouterr().out)
        assert found["gateways"][0]["fleet"]["services"]["model-executor"]["replicas"] == [REPLICA]
        assert await asyncio.to_thread(run, ["status", "--gateway", f"{url}/nothing-here"]) == 2
        assert "answered 404" in capsys.readouterr().err


def test_nobody_there_is_said_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["status", "--gateway", "http://127.0.0.1:1"]) == 2
    assert "NYLORUN_HARNESS_HEALTH_PORT" in capsys.readouterr().err
    assert run(["status", "--core", "http://127.0.0.1:1"]) == 2
    assert "does not answer" in capsys.readouterr().err
