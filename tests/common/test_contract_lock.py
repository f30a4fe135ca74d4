"""The gRPC contract only grows, and every part of it is explained where it stands."""

import re

import pytest

from tests.common.contract_text import PATH, ROOT, contract_lines

PROTOS = sorted((ROOT / "protos" / "whippletree" / "v1").glob("*.proto"))
NAMED = re.compile(
    r"^\s*(?:(?:service|message|enum|rpc)\s+(\w+)|(?:repeated |optional )?(?:map<[^>]+>|[\w.]+)\s+(\w+)\s*=\s*\d+;"
    r"|([A-Z][A-Z0-9_]*)\s*=\s*\d+;)"
)


def test_nothing_of_the_contract_was_removed_renumbered_or_retyped():
    now = set(contract_lines())
    gone = [line for line in PATH.read_text().splitlines() if line not in now]
    assert not gone, "these parts of protos/contract.txt are gone or changed:\n" + "\n".join(gone)


def test_what_was_added_to_the_contract_is_locked_too():
    locked = set(PATH.read_text().splitlines())
    new = [line for line in contract_lines() if line not in locked]
    assert not new, "run `python -m tests.common.contract_text` to lock:\n" + "\n".join(new)


def test_numbers_and_names_are_never_used_twice():
    fields = [line.split() for line in contract_lines() if line.startswith("field ")]
    numbers = [(message, number) for _, message, number, *_ in fields]
    assert len(numbers) == len(set(numbers))


@pytest.mark.parametrize("path", PROTOS, ids=lambda path: path.name)
def test_every_service_rpc_message_field_and_value_has_a_comment(path):
    lines = path.read_text().splitlines()
    bare = [
        line.strip()
        for before, line in zip(["", *lines], lines, strict=False)
        if NAMED.match(line) and not before.strip().startswith("//")
    ]
    assert not bare


def test_the_comment_check_sees_every_named_part():
    named = sum(1 for path in PROTOS for line in path.read_text().splitlines() if NAMED.match(line))
    assert named == len(contract_lines())
