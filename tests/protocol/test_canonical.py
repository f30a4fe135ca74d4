"""Canonical forms and hashes, with the worked examples of the wire's specification."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given

from protocol import jsjson
from protocol.canonical import (
    canonical_manifest,
    canonical_request,
    hash_pieces,
    manifest_hash,
    request_hash,
)
from protocol.jsjson import RawJson
from tests.protocol.json_values import nested, values

C = '"sessionId":"ses-1","turnId":"turn-9","agentId":"clerk","manifestHash":"mh-1"'
TOOL = '"kind":"tool","capabilityId":"text","toolName":"echo"'
SCALE = '"kind":"tool","capabilityId":"math","toolName":"scale"'
CALL_7 = f'{{"effectId":"turn-9:0:tool:call-7",{C},{SCALE}'
DELEGATION = (
    f'{{"effectId":"turn-9:0:delegation:call-3:started",{C},'
    '"agent":{"id":"scout","path":"clerk/scout","delegationId":"call-3"},'
    '"kind":"delegation","input":{"task":"look"},"context":'
)
MODEL = (
    f'{{"effectId":"turn-9:0:model:inv-1",{C},"kind":"model",'
    '"input":{"prompt":%s},"context":{"invocationId":"inv-1"}}'
)

WORKED_EXAMPLES = {
    "H1": (
        MODEL % '[{"role":"user","content":"ping"}]',
        217,
        "f815209bcf36102d9aec04531d13a9c0ea2fd9e82e9571e3042654c81bb7a813",
    ),
    "H2": (MODEL % "[]", 185, "31babc79c36846632fb9ba9ea20a2dac6bba0374d1551fdecc98d4c9507816b3"),
    "H3": (
        f'{CALL_7},"input":{{"b":2,"a":1,"B":3,"10":4,"9":5}},'
        '"context":{"callId":"call-7","invocationId":"inv-1"}}',
        262,
        "8fc8e57166a18d0c06f610036e1ee4b00d01c6473912223b50989a6cdd43d36e",
    ),
    "H4": (
        f'{{"effectId":"turn-9:0:tool:call-8",{C},{SCALE},"input":[1.0,-0.0,0.000001,1e-7,1e21,'
        '123456789012345678901,1E+2,0.1,5e-324,9007199254740993,1e400],"context":{}}',
        274,
        "736bf4b0e2cb6d51b4b5317f66886e21ffe981c3449d937703c9c74217c07ef3",
    ),
    "H5": (
        f'{{"effectId":"turn-9:0:tool:call-9",{C},{TOOL},"input":{{"s":"caf\\u00e9 \\u2028 \\u0001 \\u007f '
        '\\"q\\" \\\\ / \\ud83d\\ude00 \\ud800 \\t"},"context":{}}',
        241,
        "c6c2d6d4cdca9ee3eddfe55c656a9b68e2eee1ccce9d6183a379a53b6d4f13ae",
    ),
    "H6": (
        f'{{"effectId":"turn-9:0:tool:call-10",{C},{TOOL},"input":{{"\\uffff":1,"\\ud83d\\ude00":2,'
        '"\\ue000":3,"z":[null,true,false,[],{}]},"context":{}}',
        244,
        "774140c7b36c0c476604b33ceca09d85598bd1e69d41922e6a0df9e0995b6815",
    ),
    "H7": (
        DELEGATION + '{"callId":"call-3"}}',
        239,
        "e54f4c4330b37fa34202f1daca344da489e86a9c0c4f4c1a3db53ee3ce93693b",
    ),
    "H8": (DELEGATION + "{}}", 239, "e54f4c4330b37fa34202f1daca344da489e86a9c0c4f4c1a3db53ee3ce93693b"),
    "H9": (
        f'{CALL_7},"input":null,"context":{{}}}}',
        194,
        "b5ed0fb864750efbe4d02c886761bd7e8e02a4e958c6942b548bf1509bb5953a",
    ),
    "H10": (
        f'{CALL_7},"context":{{}}}}',
        181,
        "8adea28b339e24677bef4e0c9baa10bd14736d9d3c29d3d0d147f79c872cb7a6",
    ),
}


@pytest.mark.spec("harness-api:10.34")
@pytest.mark.parametrize("name", WORKED_EXAMPLES)
def test_the_worked_examples_have_their_length_and_hash(name: str) -> None:
    text, length, digest = WORKED_EXAMPLES[name]
    effect = jsjson.loads(text)
    assert isinstance(effect, dict)
    assert request_hash(effect) == digest
    identity = dict(effect)
    if effect["kind"] == "delegation":
        del identity["context"]
    assert len(canonical_request(identity)) == length


@pytest.mark.spec("harness-api:10.34")
def test_only_a_delegation_s_hash_leaves_its_context_out() -> None:
    effect: dict[str, Any] = {"effectId": "e", "kind": "delegation", "input": 1, "context": {"a": 1}}
    assert request_hash(effect) == request_hash({**effect, "context": {"a": 2}})
    assert effect["context"] == {"a": 1}
    for kind in ("model", "tool", "hook", "agent", "fn", "verify"):
        other = {**effect, "kind": kind}
        assert request_hash(other) != request_hash({**other, "context": {"a": 2}})


def test_the_canonical_text_of_the_first_example_is_the_printed_one() -> None:
    assert canonical_request(jsjson.loads(WORKED_EXAMPLES["H1"][0])).decode() == (
        '{"agentId":"clerk","context":{"invocationId":"inv-1"},"effectId":"turn-9:0:model:inv-1",'
        '"input":{"prompt":[{"content":"ping","role":"user"}]},"kind":"model","manifestHash":"mh-1",'
        '"sessionId":"ses-1","turnId":"turn-9"}'
    )


@given(values)
def test_the_request_form_is_sorted_by_code_unit_and_the_same_from_both_writers(value: Any) -> None:
    text = canonical_request(value)
    again = jsjson.parse(text)
    assert canonical_request(again.value, plain=again.plain) == text

    def check(pairs: list[tuple[str, Any]]) -> None:
        names = [key.encode("utf-16-be", "surrogatepass") for key, _ in pairs]
        assert names == sorted(names)

    json.loads(text, object_pairs_hook=check)


@given(values, values)
def test_canonical_texts_may_stand_inside_a_value(first: Any, second: Any) -> None:
    whole = {"z": [first, {"b": second}], "a": second}
    known = {
        "z": [RawJson(canonical_request(first).decode()), {"b": second}],
        "a": RawJson(canonical_request(second).decode()),
    }
    assert canonical_request(known) == canonical_request(whole)


def test_a_hash_is_that_of_the_pieces_in_a_row() -> None:
    assert hash_pieces([b"ab", b"", b"c"]) == sha256(b"abc").hexdigest()


def test_any_depth_has_a_canonical_form() -> None:
    value = jsjson.loads(nested(900))
    assert canonical_request(value, plain=True) == canonical_manifest(value) == nested(900).encode()


PLAIN_MANIFEST = (
    '{"manifestSchemaVersion":4,"id":"plain","capabilities":'
    '[{"type":"agent","id":"base","instructions":["You are terse."]}]}'
)
V_KEYS = {"_c": 4, "$d": 5, "10": 6, "9": 7, "a": 2, "A": 3, "a-b": 8, "ab": 9, "B": 1}


def test_a_manifest_s_form_and_hash_are_the_printed_ones() -> None:
    manifest = jsjson.loads(PLAIN_MANIFEST)
    assert isinstance(manifest, dict)
    assert canonical_manifest(manifest).decode() == (
        '{"capabilities":[{"id":"base","instructions":["You are terse."],"type":"agent"}],'
        '"id":"plain","manifestSchemaVersion":4}'
    )
    assert manifest_hash(manifest) == "54425a9da63648fd8d1044a815ee0049ca7a36c2aeea0706941fcefc44cb3298"


@pytest.mark.spec("agent-engine:23.2")
def test_a_manifest_s_hash_does_not_depend_on_the_order_of_its_keys() -> None:
    digest = "ec226a7bae99f5a9ed7e1f43ad1cb7c9db435171686f5ab5706f998c43bb5d46"
    for metadata in (V_KEYS, dict(reversed(V_KEYS.items())), dict(sorted(V_KEYS.items()))):
        manifest = {"manifestSchemaVersion": 4, "id": "v", "metadata": metadata, "capabilities": []}
        assert manifest_hash(manifest) == digest


def test_ten_thousand_tools_and_five_megabytes_are_hashed() -> None:
    tool = {"name": "t", "description": "d" * 400, "inputSchema": {"type": "object", "properties": {}}}
    manifest = {"capabilities": [{"id": "c", "tools": [{**tool, "name": f"t{i}"} for i in range(10_000)]}]}
    text = canonical_manifest(manifest)
    assert len(text) > 4_500_000
    assert manifest_hash(manifest) == sha256(text).hexdigest()
