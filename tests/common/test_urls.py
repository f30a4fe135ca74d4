import pytest

from services.common.urls import parse_url, without_password


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("http://gateway:4100", "gateway", 4100),
        ("HTTP:\\\\Gateway\\x", "gateway", None),
        ("http:gateway/x", "gateway", None),
        ("https://u:p@h:443/", "h", None),
        ("http://[2001:DB8::1]:80/", "[2001:db8::1]", None),
        ("http://0x7f.1/", "127.0.0.1", None),
        ("http://127.0.0.1./", "127.0.0.1", None),
        ("http://%65xample/", "example", None),
        ("ht\ntp://h", "h", None),
        ("http://h:0080/", "h", None),
    ],
)
def test_hosts_and_ports_are_read_as_browsers_read_them(text, host, port):
    parts = parse_url(text)
    assert parts is not None
    assert (parts.host, parts.port) == (host, port)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/x",
        "gateway",
        "http://",
        "http://h:65536",
        "http://h:x",
        "http://a<b",
        "http://256.1.1.1.1.1",
        "http://1.2.3.4.5",
        "http://0xg.1",
        "http://[::g]",
        "http://[::1]x",
    ],
)
def test_texts_that_are_no_url(text):
    parts = parse_url(text)
    assert parts is None or parts.host


def test_other_schemes_are_urls_without_a_host():
    parts = parse_url("runtime:4200/x")
    assert parts is not None
    assert parts.scheme == "runtime"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://h:1/v1", "http://h:1/v1"),
        ("https://user:pass@h/v1/", "https://h/v1/"),
        ("https://a@b:c@h", "https://h"),
        ("http://h/v1?key=secret#x", "http://h/v1"),
        ("http://u:p@h?key=secret", "http://h"),
        ("http://h/a@b", "http://h/a@b"),
    ],
)
def test_messages_show_urls_without_what_may_be_secret(url, shown):
    assert without_password(url) == shown
