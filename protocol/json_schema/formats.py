"""The `format`s that are checked, with the texts of their issues.

Most are one pattern, written so that it never goes back over a text twice (`++`, `*+`): a text of ten megabytes
costs milliseconds. `ada_url` is the URL parser of the peer's own runtime; no other agrees with it on host names.
"""

from __future__ import annotations

import math
import re
from base64 import b64decode
from collections.abc import Callable
from typing import Final

import ada_url
import regress

from protocol.jsjson import JsonError, loads, stringify_number
from protocol.json_schema.js_values import JS_WHITESPACE, to_number, truthy

Format = Callable[[str], str | None]
"""The text to go on with, or None where the text does not have the format."""

_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_TAB_OR_NEWLINE: Final = str.maketrans("", "", "\t\n\r")


def _matches(pattern: str) -> Format:
    find = re.compile(pattern, re.ASCII).fullmatch
    return lambda text: text if find(text) else None


def _passes(check: Callable[[str], bool]) -> Format:
    return lambda text: text if check(text) else None


def is_url(text: str) -> bool:
    """Whether the URL standard's parser takes the text as an absolute URL."""
    return bool(ada_url.check_url(_SURROGATE.sub("\ufffd", text)))


def _url(text: str) -> str | None:
    """The text goes on without white space around it and without tabs and line ends inside."""
    trimmed = text.strip(JS_WHITESPACE)
    return trimmed.translate(_TAB_OR_NEWLINE) if is_url(trimmed) else None


_LABEL: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?")


def _is_hostname(text: str) -> bool:
    name = text.removesuffix(".")
    return len(name) <= 253 and all(_LABEL.fullmatch(label) for label in name.split("."))


_IPV6_CHARACTERS: Final = re.compile(r"[0-9a-fA-F:.]{1,60}")


def _is_ipv6(text: str) -> bool:
    return _IPV6_CHARACTERS.fullmatch(text) is not None and is_url(f"http://[{text}]")


def _is_ipv6_range(text: str) -> bool:
    """The length is any number that prints as it is written; the peer takes `0.5` and `NaN` for lengths."""
    address, _, length = text.partition("/")
    if length != "NaN":
        number = to_number(length[:30]) if length else math.nan
        if not 0 <= number <= 128 or stringify_number(number) != length:
            return False
    return _is_ipv6(address)


_BASE64: Final = re.compile(r"[A-Za-z0-9+/]*+={0,2}")
_BASE64URL: Final = re.compile(r"[A-Za-z0-9_-]*+")


def _is_base64(text: str) -> bool:
    return len(text) % 4 == 0 and _BASE64.fullmatch(text) is not None


def _is_base64url(text: str) -> bool:
    return len(text) % 4 != 1 and _BASE64URL.fullmatch(text) is not None


_ASCII_WHITESPACE: Final = str.maketrans("", "", "\t\n\f\r ")


def _forgiving_base64(text: str) -> str | None:
    """What the runtime's `atob` makes of a text: one character for each byte; None where it refuses."""
    data = text.translate(_ASCII_WHITESPACE)
    if len(data) % 4 == 0:
        data = data.removesuffix("=").removesuffix("=") if data.endswith("=") else data
    if len(data) % 4 == 1 or "=" in data or not _BASE64.fullmatch(data):
        return None
    return b64decode(data + "=" * (-len(data) % 4)).decode("latin-1")


def _is_jwt(text: str) -> bool:
    """Three parts, the first of which is an object with an `alg` and, if it has a `typ`, the one `JWT`."""
    parts = text.split(".")
    if len(parts) != 3 or not parts[0]:
        return False
    header_text = _forgiving_base64(parts[0])
    if header_text is None:
        return False
    try:
        header = loads(header_text)
    except JsonError:
        return False
    return isinstance(header, dict) and header.get("typ", "JWT") == "JWT" and truthy(header.get("alg"))


_CARD: Final = re.compile(r"[0-9](?:[ -]?[0-9]){11,18}")
_DOUBLED: Final = (0, 2, 4, 6, 8, 1, 3, 5, 7, 9)


def _is_credit_card(text: str) -> bool:
    if _CARD.fullmatch(text) is None:
        return False
    digits = [int(char) for char in reversed(text) if char not in "- "]
    return sum(_DOUBLED[d] if at % 2 else d for at, d in enumerate(digits)) % 10 == 0


_IBAN: Final = re.compile(r"[A-Z]{2}(?!00|01|99)[0-9]{2}[A-Z0-9]{11,30}")


def _is_iban(text: str) -> bool:
    if _IBAN.fullmatch(text) is None:
        return False
    return int("".join(str(int(char, 36)) for char in text[4:] + text[:4])) % 97 == 1


# One class and an anchor that has to occur, as the peer has it: digits and joiners alone are no emoji.
_EMOJI: Final = regress.Regex(r"^[\p{Extended_Pictographic}\p{Emoji_Component}]+$", "u")
_EMOJI_ANCHOR: Final = regress.Regex(r"[\p{Extended_Pictographic}\p{Regional_Indicator}\u20E3]", "u")


def _is_emoji(text: str) -> bool:
    sound = _SURROGATE.sub("\ufffd", text)
    return _EMOJI.find(sound) is not None and _EMOJI_ANCHOR.find(sound) is not None


_HOUR: Final = r"(?:[01]\d|2[0-3])"
_DATE: Final = (
    r"(?:(?:\d\d[2468][048]|\d\d[13579][26]|\d\d0[48]|[02468][048]00|[13579][26]00)-02-29|"
    r"\d{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|"
    r"02-(?:0[1-9]|1\d|2[0-8])))"
)
_CLOCK: Final = rf"{_HOUR}:[0-5]\d:[0-5]\d(?:\.\d++)?"
_ZONE: Final = rf"(?:Z|[+-]{_HOUR}:[0-5]\d)"
_CLOCK_PART: Final = r"T(?=\d)(?:\d++H)?(?:\d++M)?(?:\d++(?:[.,]\d++)?S)?"
_DURATION: Final = rf"P(?:\d++W|(?=\d|T\d)(?:\d++Y)?(?:\d++M)?(?:\d++D)?(?:{_CLOCK_PART})?)"
_BYTE: Final = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]\d|\d)"
_IPV4: Final = rf"(?:{_BYTE}\.){{3}}{_BYTE}"
_HEX: Final = "[0-9a-fA-F]"

_TIME_MESSAGE: Final = (
    r"Invalid string: must match pattern /^(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d+)?"
    r"(?:Z|[+-](?:[01]\d|2[0-3]):[0-5]\d)$/"
)

_URL_FORMAT: Final = (_url, "Invalid URL")
_UUID_FORMAT: Final = (
    _matches(
        rf"{_HEX}{{8}}-{_HEX}{{4}}-[1-8]{_HEX}{{3}}-[89abAB]{_HEX}{{3}}-{_HEX}{{12}}"
        r"|0{8}-0{4}-0{4}-0{4}-0{12}|f{8}-f{4}-f{4}-f{4}-f{12}"
    ),
    "Invalid UUID",
)

FORMATS: Final[dict[str, tuple[Format, str]]] = {
    "email": (
        _matches(
            r"(?:[A-Za-z0-9_'+-]++\.)*+[A-Za-z0-9_'+-]++(?<!')@"
            r"(?:[A-Za-z0-9][A-Za-z0-9-]*+\.)++[A-Za-z]{2,}+"
        ),
        "Invalid email address",
    ),
    "uri": _URL_FORMAT,
    "uri-reference": _URL_FORMAT,
    "uuid": _UUID_FORMAT,
    "guid": _UUID_FORMAT,
    "date-time": (_matches(f"{_DATE}T{_CLOCK}{_ZONE}"), "Invalid ISO datetime"),
    "date": (_matches(_DATE), "Invalid ISO date"),
    "time": (_matches(_CLOCK + _ZONE), _TIME_MESSAGE),
    "duration": (_matches(_DURATION), "Invalid ISO duration"),
    "hostname": (_passes(_is_hostname), "Invalid hostname"),
    "ipv4": (_matches(_IPV4), "Invalid IPv4 address"),
    "ipv6": (_passes(_is_ipv6), "Invalid IPv6 address"),
    "mac": (_matches("(?:[0-9A-F]{2}:){5}[0-9A-F]{2}|(?:[0-9a-f]{2}:){5}[0-9a-f]{2}"), "Invalid MAC address"),
    "cidr": (_matches(rf"{_IPV4}/(?:[12]?\d|3[0-2])"), "Invalid IPv4 range"),
    "cidr-v6": (_passes(_is_ipv6_range), "Invalid IPv6 range"),
    "base64": (_passes(_is_base64), "Invalid base64-encoded string"),
    "base64url": (_passes(_is_base64url), "Invalid base64url-encoded string"),
    "e164": (_matches(r"\+[1-9]\d{6,14}"), "Invalid E.164 number"),
    "credit_card": (_passes(_is_credit_card), "Invalid credit card number"),
    "iban": (_passes(_is_iban), "Invalid IBAN"),
    "jwt": (_passes(_is_jwt), "Invalid JWT"),
    "emoji": (_passes(_is_emoji), "Invalid emoji"),
    "nanoid": (_matches("[a-zA-Z0-9_-]{21}"), "Invalid nanoid"),
    "cuid": (_matches("[cC][0-9a-z]{6,}+"), "Invalid cuid"),
    "cuid2": (_matches("[0-9a-z]++"), "Invalid cuid2"),
    "ulid": (_matches("[0-7][0-9A-HJKMNP-TV-Za-hjkmnp-tv-z]{25}"), "Invalid ULID"),
    "xid": (_matches("[0-9a-vA-V]{20}"), "Invalid XID"),
    "ksuid": (_matches("[A-Za-z0-9]{27}"), "Invalid KSUID"),
}
"""By name; every other format is ignored, also `regex`, `cidrv4` and `json-string`."""
