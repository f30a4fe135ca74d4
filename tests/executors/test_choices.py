"""Pure decisions: rendezvous hashing, targets, statuses, which servers and tools a manifest has."""

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.executors import rendezvous
from gateway.executors.run_servers import RunServers, servers_for
from gateway.executors.servers_of import index_records, sandbox_spec
from gateway.executors.status import Meaning, failure_of
from gateway.executors.targets import DnsName, FixedAddresses, TargetInvalid, read_target, resolve
from protocol.mcp_servers import servers_of
from tests.executors.support import run_of

# Rendezvous.


def test_the_choice_never_changes_because_files_live_where_it_points():
    names = ["sandbox-0", "sandbox-1", "sandbox-2"]
    keys = [f"nylorun-t-{number:016x}" for number in range(6)]
    assert [rendezvous.choose(names, key) for key in keys] == CHOSEN
    assert rendezvous.choose([], "x") is None


CHOSEN = ["sandbox-0", "sandbox-0", "sandbox-0", "sandbox-2", "sandbox-1", "sandbox-2"]


@given(st.sets(st.text("abc0", min_size=1), min_size=2, max_size=6), st.text(max_size=5).filter(str.isascii))
def test_a_name_that_goes_moves_only_its_own_keys(names, key):
    chosen = rendezvous.choose(names, key)
    for gone in names - {chosen}:
        assert rendezvous.choose(names - {gone}, key) == chosen
    assert rendezvous.choose(sorted(names, reverse=True), key) == chosen


# Targets.


@pytest.mark.parametrize(
    ("target", "read"),
    [
        ("unix:/run/x", FixedAddresses(("unix:/run/x",))),
        ("ipv4:1.2.3.4:5, 1.2.3.5:6,1.2.3.4:5", FixedAddresses(("ipv4:1.2.3.4:5", "ipv4:1.2.3.5:6"))),
        ("ipv6:[::1]:5", FixedAddresses(("ipv6:[::1]:5",))),
        ("127.0.0.1:4410", FixedAddresses(("ipv4:127.0.0.1:4410",))),
        ("[::1]:4410", FixedAddresses(("ipv6:[::1]:4410",))),
        ("harness-model:4410", DnsName("harness-model", 4410)),
        ("dns:///harness-model:4410", DnsName("harness-model", 4410)),
        ("dns:harness-model:4410", DnsName("harness-model", 4410)),
    ],
)
def test_targets_are_addresses_or_a_name_to_ask_for(target, read):
    assert read_target(target) == read


@pytest.mark.parametrize("target", ["", "host", ":1", "host:", "host:0", "host:99999", "host:x"])
def test_what_is_no_target(target):
    with pytest.raises(TargetInvalid):
        read_target(target)


async def test_a_host_of_two_families_is_one_address():
    assert await resolve(DnsName("localhost", 4410)) == ("ipv4:127.0.0.1:4410",)


@pytest.mark.parametrize("host", ["a..b", "x" * 64 + ".example"])
async def test_a_name_that_dns_can_not_have_is_a_failed_lookup(host):
    with pytest.raises(OSError, match="not one that DNS can have"):
        await resolve(DnsName(host, 4410))


# Statuses.


class Status(Exception):
    def __init__(self, code, details="said", trailing=()):
        super().__init__(details)
        self._values = code, details, trailing

    def code(self):
        return self._values[0]

    def details(self):
        return self._values[1]

    def trailing_metadata(self):
        return self._values[2]


@pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK])
def test_every_status_has_a_meaning_and_only_our_own_texts_are_passed_on(code):
    failure = failure_of(Status(code, "secret"), "mcp-pool")
    assert "mcp-pool" in failure.text
    assert ("secret" in failure.text) is (failure.meaning is Meaning.INVALID)
    assert not failure.started


def test_the_word_that_nothing_started_wins_over_the_status():
    for code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL):
        failure = failure_of(Status(code, "full", (("x-whippletree-not-started", "1"),)), "mcp-pool")
        assert failure.meaning is Meaning.NOT_STARTED


# Manifests.

CHILD = {
    "id": "child",
    "capabilities": [
        {"id": "c", "mcpServers": {"deep": {"type": "stdio"}}},
        {"id": "box", "sandbox": {"image": "child"}, "tools": [{"name": "bash"}]},
    ],
}
MANIFEST = {
    "capabilities": [
        {"id": "first", "tools": [{"name": "ask", "agent": CHILD}]},
        {"id": "second", "mcpServers": {"b": {"type": "stdio"}, "a": {"type": "sse"}}},
        {"id": "flow", "tools": [{"name": "f", "agent": {"id": "w", "kind": "flow", "capabilities": []}}]},
        {"id": "box", "sandbox": {"image": "root"}, "tools": [{"name": "bash"}, {"name": "odd"}]},
        {"id": "plain", "tools": [{"name": "bash"}]},
    ]
}


def test_servers_come_root_first_then_child_agents_in_their_own_order():
    assert [
        (server.agent_id, server.capability_id, server.server_name, server.is_stdio, server.plugin_key)
        for server in servers_of(MANIFEST)
    ] == [
        (None, "second", "b", True, "second"),
        (None, "second", "a", False, "second"),
        ("child", "c", "deep", True, "child/c"),
    ]


def test_a_server_is_found_only_under_its_own_agent():
    servers = RunServers(run_of(root_manifest=MANIFEST))

    def found(agent, capability, server):
        named = {"agentId": agent} if agent else {}
        return servers.server({**named, "capabilityId": capability, "serverName": server})

    assert found("child", "c", "deep") is not None
    assert found(None, "c", "deep") is None
    assert found("child", "second", "b") is None


@pytest.mark.parametrize(
    "manifest",
    [
        {},
        {"capabilities": None},
        {"capabilities": [1, None]},
        {"capabilities": [{"mcpServers": []}]},
        {"capabilities": [{"tools": [{"agent": []}, 1]}]},
        {"capabilities": [{"id": 1, "mcpServers": {"a": 1}}]},
    ],
)
def test_manifests_of_odd_shapes_never_fail(manifest):
    for server in servers_of(manifest):
        assert not server.is_stdio
    assert sandbox_spec(manifest, None, "box", "bash") is None


def test_the_first_record_that_fits_agent_capability_and_name_counts():
    first = {"capabilityId": "c", "name": "n", "serverName": "1"}
    odd = [7, {"capabilityId": [], "name": "n"}, {"capabilityId": "c", "name": 1}, {**first, "agentId": 3}]
    snapshot = {"mcpTools": [*odd, {"agentId": "x", **first}, first, {**first, "serverName": "2"}]}
    servers = RunServers(run_of(mcp_snapshot=snapshot))
    assert servers.record(None, "c", "n") is first
    assert servers.record("x", "c", "n")["agentId"] == "x"
    assert servers.record(None, ["c"], "n") is None
    for nothing in (None, 1, {}, {"mcpTools": 1}):
        assert index_records(nothing) == {}


def test_a_run_is_looked_at_once_and_again_when_its_snapshot_changes():
    run = run_of(mcp_snapshot=None)
    first = servers_for(run)
    assert servers_for(run) is first
    assert first.record(None, "c", "n") is None
    run.mcp_snapshot = {"mcpTools": [{"capabilityId": "c", "name": "n"}]}
    assert servers_for(run).record(None, "c", "n") is not None


@pytest.mark.parametrize(
    ("agent", "capability", "tool", "image"),
    [
        (None, "box", "bash", "root"),
        ("child", "box", "bash", "child"),
        (None, "box", "odd", None),
        (None, "box", "read", None),
        (None, "plain", "bash", None),
        ("other", "box", "bash", None),
        (None, None, None, None),
    ],
)
def test_a_sandbox_tool_is_one_of_six_that_a_sandbox_capability_lists(agent, capability, tool, image):
    spec = sandbox_spec(MANIFEST, agent, capability, tool)
    assert (spec and spec["image"]) == image
