"""Which hosts, addresses and requests get out of a sandbox. No sockets here."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.common.addresses import address_problem
from services.sandbox_manager.egress.bodies import BodyReader
from services.sandbox_manager.egress.heads import (
    CHUNKED,
    BadRequest,
    Forward,
    Tunnel,
    read_head,
    refusal,
)
from services.sandbox_manager.egress.hosts import HostRules, plain_host
from services.sandbox_manager.network import make_network, preset_hosts

# Hosts


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Example.COM", "example.com"),
        ("example.com.", "example.com"),
        ("a_b.example.com", "a_b.example.com"),
        ("xn--bcher-kva.example", "xn--bcher-kva.example"),
        ("1.example", "1.example"),
        ("example.com..", None),
        ("localhost", None),
        ("", None),
        (".", None),
        ("a..b", None),
        ("-a.example", None),
        ("a-.example", None),
        ("example.com:80", None),
        ("user@example.com", None),
        ("bücher.example", None),
        ("ex ample.com", None),
        ("example.com\0.evil.org", None),
        ("127.0.0.1", None),
        ("127.1", None),
        ("0x7f.0.0.1", None),
        ("1.0x7f000001", None),
        ("a.0x", None),
        ("010.010.010.010", None),
        ("2130706433", None),
        ("[::1]", None),
        ("a." * 127 + "a", "a." * 126 + "a.a" if len("a." * 127 + "a") <= 253 else None),
        ("a." * 126 + "a", "a." * 126 + "a"),
        ("x" * 64 + ".example", None),
    ],
)
def test_only_names_are_hosts_and_they_are_made_plain(text: str, name: str | None) -> None:
    assert plain_host(text) == name


def test_exact_names_and_suffixes_fit_and_nothing_beside_them() -> None:
    rules = HostRules(make_network("none", ["Api.Example.com", "*.wild.org", "*.b.c.d"]))
    for host in ("api.example.com", "a.wild.org", "x.y.wild.org", "a.b.c.d"):
        assert rules.allows(host), host
    for host in (
        "example.com",
        "x.api.example.com",
        "wild.org",
        "evilwild.org",
        "a.wild.org.evil.net",
        "b.c.d",
        "c.d",
        "com",
    ):
        assert not rules.allows(host), host


def test_presets_allow_what_they_name() -> None:
    assert HostRules(make_network("none", [])).closed
    dev = HostRules(make_network("dev", []))
    assert not dev.closed
    assert all(dev.allows(host) for host in preset_hosts("dev"))
    assert not dev.allows("example.com")
    anywhere = HostRules(make_network("open", []))
    assert not anywhere.closed
    assert anywhere.allows("example.com")


@given(st.lists(st.sampled_from(["a", "b", "c"]), min_size=2, max_size=5), st.data())
def test_the_trie_says_what_the_rules_say_one_by_one(labels: list[str], data: st.DataObject) -> None:
    names = st.lists(st.sampled_from(["a", "b", "c"]), min_size=2, max_size=4).map(".".join)
    allow = data.draw(st.lists(st.one_of(names, names.map(lambda name: f"*.{name}")), max_size=5))
    network = make_network("none", allow)
    host = ".".join(labels)
    expected = host in network.hosts or any(host.endswith(suffix) for suffix in network.suffixes)
    assert HostRules(network).allows(host) is expected


# Addresses


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.0", "0.1.2.3", "10.0.0.1", "10.255.255.255", "100.64.0.1", "100.100.100.200", "127.0.0.1",
        "127.255.255.254", "168.63.129.16", "169.254.169.254", "169.254.170.2", "172.16.0.1",
        "172.31.255.255", "192.0.0.192", "192.0.2.1", "192.88.99.1", "192.168.1.1", "198.18.0.1",
        "198.19.255.255", "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.255.255.255", "240.0.0.1",
        "255.255.255.255",
        "::", "::1", "::127.0.0.1", "::ffff:10.0.0.1", "::ffff:8.8.8.8", "::ffff:0:8.8.8.8", "fc00::1",
        "fd00:ec2::254", "fe80::1", "fe80::1%lo", "fec0::1", "ff02::1", "64:ff9b::10.0.0.1",
        "64:ff9b::169.254.169.254", "64:ff9b:1::8.8.8.8", "100::1", "2001::1", "2001:0:4136:e378::",
        "2001:10::1", "2001:20::1", "2001:db8::1", "2002:7f00:1::", "2002:808:808::", "3fff::1", "4000::1",
        "2607:f8b0::1%eth0",
        "", "localhost", "8.8.8.8 ", "08.8.8.8", "1.2.3", "0x8.8.8.8",
    ],
)  # fmt: skip
def test_addresses_off_the_public_internet_are_refused(address: str) -> None:
    assert address_problem(address) is not None


@pytest.mark.parametrize(
    "address",
    [
        "1.1.1.1", "8.8.8.8", "100.63.255.255", "100.128.0.1", "172.15.0.1", "172.32.0.1", "192.0.1.1",
        "198.17.255.255", "223.255.255.255", "2001:4860:4860::8888", "2606:4700::1111", "2a00:1450::1",
        "64:ff9b::8.8.8.8",
    ],
)  # fmt: skip
def test_public_addresses_are_allowed(address: str) -> None:
    assert address_problem(address) is None


@given(st.ip_addresses())
def test_nothing_is_allowed_that_python_knows_to_be_private(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> None:
    if address_problem(str(address)) is None:
        assert address.is_global
        assert not address.is_multicast


# Heads


def test_a_tunnel_names_its_host_and_port() -> None:
    assert read_head(b"CONNECT Example.com:443 HTTP/1.1\r\nHost: other.org:443") == Tunnel("example.com", 443)
    assert read_head(b"CONNECT example.com.:80 HTTP/1.0") == Tunnel("example.com", 80)


def test_a_plain_request_is_written_anew_for_the_host_that_was_checked() -> None:
    head = (
        b"POST http://Example.com/a?b=c HTTP/1.1\r\nHost: evil.org\r\nX-Kept:  v \r\nContent-Length: 3\r\n"
        b"Connection: keep-alive, X-Hop\r\nX-Hop: 1\r\nProxy-Authorization: Basic eA==\r\nUpgrade: h2c"
    )
    assert read_head(head) == Forward(
        "example.com",
        80,
        b"POST /a?b=c HTTP/1.1\r\nHost: example.com\r\nx-kept: v\r\nContent-Length: 3\r\nConnection: close\r\n\r\n",
        3,
    )


@pytest.mark.parametrize(
    ("target", "line", "host"),
    [
        (b"http://example.com", b"GET / HTTP/1.1", b"example.com"),
        (b"http://example.com?x", b"GET /?x HTTP/1.1", b"example.com"),
        (b"HTTP://example.com:443/", b"GET / HTTP/1.1", b"example.com:443"),
    ],
)
def test_urls_are_taken_apart(target: bytes, line: bytes, host: bytes) -> None:
    request = read_head(b"GET " + target + b" HTTP/1.0")
    assert isinstance(request, Forward)
    assert request.head == line + b"\r\nHost: " + host + b"\r\nConnection: close\r\n\r\n"
    assert request.body == 0


def test_a_chunked_body_is_told_by_its_field() -> None:
    request = read_head(b"POST http://example.com/ HTTP/1.1\r\nTransfer-Encoding: Chunked\r\nTE: trailers")
    assert isinstance(request, Forward)
    assert request.body == CHUNKED
    assert b"\r\nTransfer-Encoding: chunked\r\n" in request.head
    assert b"te:" not in request.head


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"", 400),
        (b"GET / HTTP/1.1", 400),
        (b"GET http://example.com/ HTTP/2", 400),
        (b"GET  http://example.com/ HTTP/1.1", 400),
        (b"GET http://example.com/ HTTP/1.1 ", 400),
        (b"GET http://example.com/a b HTTP/1.1", 400),
        (b"GET https://example.com/ HTTP/1.1", 400),
        (b"GET ftp://example.com/ HTTP/1.1", 400),
        (b"GET http://user@example.com/ HTTP/1.1", 400),
        (b"GET http://example.com:80@127.0.0.1/ HTTP/1.1", 400),
        (b"GET http://example.com\\@127.0.0.1/ HTTP/1.1", 400),
        (b"GET http://example.com/#f HTTP/1.1", 400),
        (b"GET http://[::1]/ HTTP/1.1", 400),
        (b"GET http://127.0.0.1/ HTTP/1.1", 403),
        (b"GET http://localhost/ HTTP/1.1", 403),
        (b"GET http://example.com:8080/ HTTP/1.1", 403),
        (b"GET http://example.com:/ HTTP/1.1", 400),
        (b"TRACE http://example.com/ HTTP/1.1", 405),
        (b"CONNECT example.com HTTP/1.1", 400),
        (b"CONNECT example.com:22 HTTP/1.1", 403),
        (b"CONNECT example.com:443@127.0.0.1:443 HTTP/1.1", 400),
        (b"CONNECT http://example.com:443 HTTP/1.1", 400),
        (b"CONNECT [::1]:443 HTTP/1.1", 400),
        (b"CONNECT 127.0.0.1:443 HTTP/1.1", 403),
        (b"CONNECT 0x7f000001:443 HTTP/1.1", 403),
        (b"CONNECT example.com:99999 HTTP/1.1", 403),
        (b"CONNECT example.com\xff:443 HTTP/1.1", 400),
        (b"GET http://example.com/ HTTP/1.1\r\nHost : a", 400),
        (b"GET http://example.com/ HTTP/1.1\r\n folded: a", 400),
        (b"GET http://example.com/ HTTP/1.1\r\nA: b\r\n c", 400),
        (b"GET http://example.com/ HTTP/1.1\r\nA: b\nHost: evil.org", 400),
        (b"GET http://example.com/ HTTP/1.1\r\nA: b\rHost: evil.org", 400),
        (b"GET http://example.com/ HTTP/1.1\r\nA: b\0", 400),
        (b"GET http://example.com/ HTTP/1.1\r\nno colon", 400),
        (b"POST http://example.com/ HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2", 400),
        (b"POST http://example.com/ HTTP/1.1\r\nContent-Length: 1, 1", 400),
        (b"POST http://example.com/ HTTP/1.1\r\nContent-Length: +1", 400),
        (b"POST http://example.com/ HTTP/1.1\r\nContent-Length: 0x1", 400),
        (b"POST http://example.com/ HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked", 400),
        (b"POST http://example.com/ HTTP/1.1\r\nTransfer-Encoding: gzip, chunked", 400),
        (b"POST http://example.com/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked", 400),
        (b"POST http://example.com/ HTTP/1.1\r\nTransfer-Encoding: xchunked", 400),
        (b"POST http://example.com/ HTTP/1.0\r\nTransfer-Encoding: chunked", 400),
    ],
)  # fmt: skip
def test_what_can_be_read_in_two_ways_is_refused(head: bytes, status: int) -> None:
    with pytest.raises(BadRequest) as refused:
        read_head(head)
    assert refused.value.status == status
    assert refusal(refused.value).startswith(b"HTTP/1.1 %d " % status)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_request_to_a_name_or_refused(head: bytes) -> None:
    try:
        request = read_head(head)
    except BadRequest:
        return
    assert plain_host(request.host) == request.host


# Bodies


async def _passed(body: int, early: bytes, pieces: list[bytes]) -> bytes:
    passed = bytearray()

    async def read(most: int) -> bytes:
        if not pieces:
            return b""
        data, rest = pieces[0][:most], pieces[0][most:]
        if rest:
            pieces[0] = rest
        else:
            pieces.pop(0)
        return data

    async def write(data: bytes) -> None:
        passed.extend(data)

    await BodyReader(early, read).pass_on(body, write)
    return bytes(passed)


async def test_exactly_the_body_is_passed_on() -> None:
    assert await _passed(5, b"ab", [b"cd", b"efgh"]) == b"abcde"
    assert await _passed(0, b"GET http://evil.org/ HTTP/1.1\r\n\r\n", []) == b""


async def test_chunks_are_written_anew_and_nothing_after_them() -> None:
    chunked = b'3;x="y"\r\nabc\r\n00a\r\n0123456789\r\n0\r\nTrailer: t\r\n\r\nGET / HTTP/1.1\r\n\r\n'
    expected = b"3\r\nabc\r\na\r\n0123456789\r\n0\r\n\r\n"
    assert await _passed(CHUNKED, chunked, []) == expected
    assert await _passed(CHUNKED, b"", [chunked[at : at + 1] for at in range(len(chunked))]) == expected


@pytest.mark.parametrize(
    "chunked",
    [
        b"", b"3\r\nab", b"3\r\nabcd\r\n0\r\n\r\n", b"-1\r\n", b"0x3\r\nabc\r\n0\r\n\r\n", b" 3\r\nabc\r\n0\r\n\r\n",
        b"3\nabc\n0\n\n", b"3 \r\nabc\r\n0\r\n\r\n", b"ffffffffffffffff\r\n", b"x\r\n", b"3;\x01\r\nabc\r\n0\r\n\r\n",
        b"0\r\n" + b"a: b\r\n" * 101, b"0" * 2000,
    ],
)  # fmt: skip
async def test_chunks_that_can_t_be_read_end_the_request(chunked: bytes) -> None:
    with pytest.raises(BadRequest):
        await _passed(CHUNKED, chunked, [])
