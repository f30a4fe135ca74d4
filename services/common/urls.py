"""Which texts are URLs: the WHATWG parser's rules of validity, and its host (operations 2.1)."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*):(.*)", re.DOTALL)
_SPECIAL = {"http": 80, "https": 443, "ws": 80, "wss": 443, "ftp": 21}
_FORBIDDEN_IN_HOST = re.compile("[\x00-\x20#%/:<>?@\\[\\\\\\]^|\x7f]")
_MAX_PORT = 65535


@dataclass(frozen=True, slots=True)
class UrlParts:
    """What a URL names. `port` is None when it is the scheme's own or absent."""

    scheme: str
    host: str
    port: int | None
    rest: str


def parse_url(text: str) -> UrlParts | None:
    """The parts of an absolute URL, or None when the text is none.

    Schemes other than http, https, ws, wss and ftp give an empty host: nothing here uses them.
    """
    trimmed = text.strip("".join(chr(code) for code in range(0x21)))
    match = _SCHEME.fullmatch(re.sub(r"[\t\n\r]", "", trimmed))
    if match is None:
        return None
    scheme = match.group(1).lower()
    if scheme not in _SPECIAL:
        return UrlParts(scheme, "", None, match.group(2))
    after = match.group(2).lstrip("/\\")
    end = re.search(r"[/\\?#]", after)
    authority = after[: end.start()] if end else after
    rest = after[end.start() :] if end else ""
    hostport = authority.rpartition("@")[2]
    host_text, port_text = _split_port(hostport)
    host = _host(host_text)
    if host is None or (port_text and re.fullmatch(r"[0-9]+", port_text) is None):
        return None
    port = int(port_text[-10:]) if port_text else None
    if port is not None and (port > _MAX_PORT or len(port_text.lstrip("0")) > 5):
        return None
    return UrlParts(scheme, host, None if port == _SPECIAL[scheme] else port, rest)


def _split_port(hostport: str) -> tuple[str, str]:
    if hostport.startswith("["):
        host, closed, after = hostport.partition("]")
        if not closed or (after and not after.startswith(":")):
            return "", ""
        return host + closed, after[1:]
    host, _, port = hostport.partition(":")
    return host, port


def _host(text: str) -> str | None:
    if text.startswith("["):
        try:
            return f"[{ipaddress.IPv6Address(text[1:-1]).compressed}]" if "%" not in text else None
        except ValueError:
            return None
    try:
        host = unquote_to_bytes(text).decode("utf-8").lower()
    except UnicodeDecodeError:
        return None
    if not host or _FORBIDDEN_IN_HOST.search(host):
        return None
    return _ipv4(host) if _ends_in_number(host) else host


def _ends_in_number(host: str) -> bool:
    labels = host.split(".")
    last = labels[-2] if labels[-1] == "" and len(labels) > 1 else labels[-1]
    return re.fullmatch(r"[0-9]+|0x[0-9a-f]*", last) is not None


def _ipv4(host: str) -> str | None:
    labels = host.removesuffix(".").split(".")
    if len(labels) > 4:
        return None
    numbers = [_number(label) for label in labels]
    if any(number is None for number in numbers):
        return None
    values = [number for number in numbers if number is not None]
    if any(value > 255 for value in values[:-1]) or values[-1] >= 256 ** (5 - len(values)):
        return None
    address = values[-1] + sum(value << (8 * (3 - index)) for index, value in enumerate(values[:-1]))
    return str(ipaddress.IPv4Address(address))


def _number(label: str) -> int | None:
    try:
        if label.startswith("0x"):
            return int(label[2:] or "0", 16)
        if len(label) > 1 and label.startswith("0"):
            return int(label, 8)
        return int(label) if label.isascii() and label.isdigit() else None
    except ValueError:
        return None


def without_password(url: str) -> str:
    """A URL as messages may show it: without user, password, query and fragment."""
    scheme, separator, rest = url.partition("://")
    authority, slash, path = re.split(r"[?#]", rest, maxsplit=1)[0].partition("/")
    return f"{scheme}{separator}{authority.rpartition('@')[2]}{slash}{path}"
