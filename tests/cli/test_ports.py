import socket
from dataclasses import astuple
from pathlib import Path

import pytest

from cli.ports import PortError, Ports, check_free, free_ports, ports_from


def test_the_usual_ports_hold_without_settings():
    assert ports_from({}) == Ports(4000, 4200, 4410, 4420, 4430, 4300)


def test_each_listener_can_be_moved():
    ports = ports_from(
        {"WHIPPLETREE_CORE_HTTP_LISTEN": "127.0.0.1:5000", "NYLORUN_HARNESS_HEALTH_PORT": "5300"}
    )
    assert (ports.core_http, ports.health, ports.core_harness) == (5000, 5300, 4200)


@pytest.mark.parametrize(
    "value", ["0.0.0.0:4000", "127.0.0.1:0", "127.0.0.1:x", "127.0.0.1:70000", "127.0.0.1:²"]
)
def test_what_is_not_a_loopback_address_with_a_port_is_refused_by_name(value):
    with pytest.raises(PortError, match="WHIPPLETREE_CORE_HTTP_LISTEN"):
        ports_from({"WHIPPLETREE_CORE_HTTP_LISTEN": value})


def test_two_listeners_on_one_port_are_refused_by_name():
    with pytest.raises(PortError, match=r"WHIPPLETREE_CORE_HARNESS_LISTEN.*WHIPPLETREE_CORE_HTTP_LISTEN"):
        ports_from({"WHIPPLETREE_CORE_HTTP_LISTEN": "127.0.0.1:4200"})


def test_free_ports_are_given_once_and_lie_below_those_of_outgoing_connections():
    given = [port for _ in range(20) for port in astuple(free_ports())]
    assert len(set(given)) == len(given)
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert max(given) < max(first, 32_000)
    assert min(given) >= 20_000


def test_a_taken_port_is_named_with_its_setting():
    ports = free_ports()
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", ports.mcp_pool))
        holder.listen()
        with pytest.raises(PortError, match=f"{ports.mcp_pool}.*WHIPPLETREE_MCP_POOL_LISTEN"):
            check_free(ports)
    check_free(ports)
