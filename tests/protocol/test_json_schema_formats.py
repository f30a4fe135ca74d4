from __future__ import annotations

import time

import pytest

from protocol.json_schema import compile_schema
from protocol.json_schema.formats import FORMATS
from tests.protocol.json_schema_checks import fits, messages

CASES = [
    ("email", ["a.b+c@d.example.com", "A@B.CO"], ["a@b", ".a@b.co", "é@b.co"], "Invalid email address"),
    ("uri", ["a:b", "https://a"], ["http://", "//x", "https://a b"], "Invalid URL"),
    ("uri-reference", ["https://münchen.de"], ["../x", "http://[::1"], "Invalid URL"),
    (
        "uuid",
        ["550e8400-e29b-41d4-a716-446655440000"],
        ["550e8400-e29b-01d4-a716-446655440000"],
        "Invalid UUID",
    ),
    ("guid", ["ffffffff-ffff-ffff-ffff-ffffffffffff"], ["x"], "Invalid UUID"),
    (
        "date-time",
        ["2026-01-02T03:04:05+02:00"],
        ["2026-01-02T03:04Z", "2026-02-30T00:00:00Z"],
        "Invalid ISO datetime",
    ),
    ("date", ["2024-02-29"], ["2026-02-29", "2024-02-29\n"], "Invalid ISO date"),
    (
        "time",
        ["10:11:12.5Z"],
        ["10:11:12", "24:00:00Z"],
        r"Invalid string: must match pattern /^(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d+)?"
        r"(?:Z|[+-](?:[01]\d|2[0-3]):[0-5]\d)$/",
    ),
    ("duration", ["P1Y2M3DT4H5M6.7S", "P3W"], ["P", "P1W2D", "P1.5D"], "Invalid ISO duration"),
    ("hostname", ["a", "1.2.3.4", "a.b."], ["-a.b", "a_b.c", ""], "Invalid hostname"),
    ("ipv4", ["1.2.3.4"], ["1.2.3.256", "01.2.3.4"], "Invalid IPv4 address"),
    ("ipv6", ["::1", "::ffff:1.2.3.4"], ["::1%eth0", "1::2::3", "::1\n"], "Invalid IPv6 address"),
    ("mac", ["00:1a:2b:3c:4d:5e"], ["00:1a:2B:3c:4d:5e"], "Invalid MAC address"),
    ("cidr", ["10.0.0.0/8"], ["10.0.0.0/33"], "Invalid IPv4 range"),
    ("cidr-v6", ["::/0"], ["::1/129", "::1"], "Invalid IPv6 range"),
    ("base64", ["aGk=", ""], ["aGk", "A==="], "Invalid base64-encoded string"),
    ("base64url", ["a-_b", "aGk"], ["aGk=", "A"], "Invalid base64url-encoded string"),
    ("e164", ["+1234567"], ["1234567", "+123456"], "Invalid E.164 number"),
    ("credit_card", ["4111 1111 1111 1111"], ["4111111111111112"], "Invalid credit card number"),
    ("iban", ["DE89370400440532013000"], ["DE88370400440532013000"], "Invalid IBAN"),
    ("jwt", ["eyJhbGciOiJub25lIn0.a.b"], ["e30.a.b", "a.b.c", "W10.a.b"], "Invalid JWT"),
    ("emoji", ["😀", "🇩🇪", "1️⃣"], ["1", "a😀", "\ud83d"], "Invalid emoji"),
    ("nanoid", ["V1StGXR8_Z5jdHi6B-myT"], ["x"], "Invalid nanoid"),
    ("cuid", ["Cabcdef"], ["cABCDEF"], "Invalid cuid"),
    ("cuid2", ["abc1"], ["A"], "Invalid cuid2"),
    ("ulid", ["01ARZ3NDEKTSV4RRFFQ69G5FAV"], ["81ARZ3NDEKTSV4RRFFQ69G5FAV"], "Invalid ULID"),
    ("xid", ["9m4e2mr0ui3e8a215n4g"], ["9m4e2mr0ui3e8a215n4w"], "Invalid XID"),
    ("ksuid", ["a" * 27], ["a" * 28], "Invalid KSUID"),
]


@pytest.mark.parametrize(("name", "good", "bad", "message"), CASES)
def test_a_format_takes_its_own_and_names_itself_otherwise(
    name: str, good: list[str], bad: list[str], message: str
) -> None:
    schema = {"type": "string", "format": name}
    fits(schema, *good)
    for text in bad:
        assert messages(schema, text) == [message]


def test_every_format_is_tried() -> None:
    assert {name for name, *_ in CASES} == set(FORMATS)


@pytest.mark.parametrize("name", ["regex", "cidrv4", "json-string", "odd", "", 5, None])
def test_other_formats_are_ignored(name: object) -> None:
    fits({"type": "string", "format": name}, "### x")


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_a_format_reads_a_huge_text_in_no_time(name: str) -> None:
    schema = compile_schema({"type": "string", "format": name})
    begun = time.monotonic()
    for text in ("a" * 2_000_000, "a." * 1_000_000, "a@" + "a." * 1_000_000, "P" + "1" * 2_000_000):
        schema.validate(text)
    assert time.monotonic() - begun < 30
