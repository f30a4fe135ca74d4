"""Join, renew and the network gate, over real sockets."""

import asyncio
import contextlib
import json
import socket
import stat
import uuid

import aiohttp
import pytest

from gateway.pod.host_credentials import HostCredentials, PodIdentity
from gateway.pod.network_policy import PolicyMissing, await_network_policy
from gateway.websocket import DialFailed
from tests.doubles.http import serving
from tests.doubles.pod_host import PodHostDouble


@contextlib.asynccontextmanager
async def pod(tmp_path):
    async with serving(PodHostDouble()) as core:
        (tmp_path / "token").write_text(" join-1\n")
        identity = PodIdentity(core.origin, "sbx", "pod-1", tmp_path / "token", tmp_path / "v" / "volume-id")
        yield core, HostCredentials(identity)


def paths(core):
    return [request.target.rpartition("/")[2] for request in core.requests]


async def test_the_first_token_joins_and_the_second_renews(tmp_path):
    async with pod(tmp_path) as (core, host):
        assert await host.token() == "host-1"
        assert await host.token() == "host-2"
        assert host.held.egress_token == "egress-2"
        join, renew = core.requests
        volume = (tmp_path / "v" / "volume-id").read_text().strip()
        assert json.loads(join.body) == {
            "sandboxId": "sbx",
            "podUid": "pod-1",
            "joinToken": "join-1",
            "volumeId": volume,
        }
        assert (renew.body, renew.headers["authorization"]) == (b"", "Bearer host-1")
        assert "content-type" not in renew.headers
        assert paths(core) == ["join", "renew"]
        assert "host-2" not in repr(host)


async def test_a_refused_renewal_joins_in_the_same_call(tmp_path):
    async with pod(tmp_path) as (core, host):
        await host.token()
        core.live = ""
        await host.token()
        assert paths(core) == ["join", "renew", "join"]
        assert host.held.epoch == 2


async def test_a_renewal_that_fails_otherwise_keeps_what_is_held(tmp_path):
    async with pod(tmp_path) as (core, host):
        await host.token()
        core.answers = [503]
        with pytest.raises(DialFailed, match="503"):
            await host.token()
        assert host.held.host_token == "host-1"
        assert await host.token() == "host-2"
        assert paths(core) == ["join", "renew", "renew"]


async def test_the_join_file_is_read_at_each_join_and_may_come_late(tmp_path):
    async with pod(tmp_path) as (core, host):
        core.join_token = "join-2"
        with pytest.raises(DialFailed, match="401"):
            await host.token()
        (tmp_path / "token").unlink()
        with pytest.raises(DialFailed, match="can't join"):
            await host.token()
        (tmp_path / "token").write_text("join-2")
        assert await host.token() == "host-1"


async def test_the_timer_renews_only_what_is_held_and_never_joins(tmp_path):
    async with pod(tmp_path) as (core, host):
        await host.renew()
        assert core.requests == []
        await host.token()
        core.answers = [503]
        await host.renew()
        assert host.held is not None
        core.live = ""
        await host.renew()
        assert host.held is None
        assert paths(core) == ["join", "renew", "renew"]


async def test_the_volume_id_is_private_stays_and_replaces_an_empty_file(tmp_path):
    file = tmp_path / "v" / "volume-id"
    file.parent.mkdir()
    file.write_text("")
    async with pod(tmp_path) as (core, host):
        await host.token()
        core.live = ""
        await host.token()
        first, second = (json.loads(one.body)["volumeId"] for one in core.requests if one.body)
        assert first == second
        assert uuid.UUID(first).version == 4
        assert file.read_text() == f"{first}\n"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


async def test_a_port_that_stays_open_is_named_and_a_closed_one_passes():
    with socket.create_server(("127.0.0.1", 0)) as open_port:
        port = open_port.getsockname()[1]
        with pytest.raises(PolicyMissing, match=rf"NetworkPolicy.*127\.0\.0\.1:{port}"):
            await await_network_policy([("127.0.0.1", port)], limit_s=0.05, pause_s=0.01)
    assert await asyncio.wait_for(await_network_policy([("127.0.0.1", port)]), 30) >= 0
    assert await await_network_policy([]) == 0


async def test_a_connection_in_between_starts_the_count_again(monkeypatch):
    results = [False, False, True, False, False, False]

    async def opens(host, port):
        return results.pop(0)

    monkeypatch.setattr("gateway.pod.network_policy._opens", opens)
    await await_network_policy([("x", 1)], pause_s=0)
    assert results == []


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"\xff",
        b"[]",
        b'{"hostToken":"a","egressToken":"b","sandboxId":"c","epoch":0,"expiresAt":"d"}',
        b'{"hostToken":"a\\n","egressToken":"b","sandboxId":"c","epoch":1,"expiresAt":"d"}',
    ],
)
async def test_an_answer_that_makes_no_sense_fails_and_is_not_held(tmp_path, body):
    async with pod(tmp_path) as (core, host):
        core.raw = [body]
        with pytest.raises(DialFailed, match="core's answer to host/join"):
            await host.token()
        assert host.held is None


async def test_the_double_refuses_what_core_refuses(tmp_path):
    async with pod(tmp_path) as (core, _host), aiohttp.ClientSession() as http:
        url = f"{core.origin}/nylorun/harness/v1/host/join"
        assert (await http.get(url)).status == 405
        assert (await http.post(url, headers={"host": "elsewhere"})).status == 421
        assert (await http.post(url, data=b" " * 8193)).status == 400
        assert (await http.post(url, data=b"{}")).status == 400
