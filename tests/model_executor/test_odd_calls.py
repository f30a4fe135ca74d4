"""Documents of calls with something odd anywhere (model-executor 13.3)."""

import copy
import functools
import json
import operator

import pytest

from services.model_executor.direct.anthropic_request import anthropic_request
from services.model_executor.direct.config_file import read_config
from services.model_executor.direct.failures import CallRefused
from services.model_executor.direct.openai_request import openai_request
from services.model_executor.direct.prompt import read_call
from tests.model_executor.support import text, user

WHOLE = {
    "executionId": "x",
    "prompt": [
        {"kind": "instructions", "role": "system", "content": [text("be")]},
        user("hi"),
        {
            "kind": "message",
            "role": "assistant",
            "producer": {"provider": "p", "api": "a", "model": "m"},
            "content": [
                {"type": "reasoning", "text": "r", "providerMetadata": {"pi": {"signature": "s"}}},
                text("t"),
                {"type": "tool-call", "id": "c", "name": "t", "args": {"a": 1}},
            ],
        },
        {
            "kind": "tool-result",
            "toolCallId": "c",
            "toolName": "t",
            "status": "failed",
            "content": [text("r")],
        },
    ],
    "tools": [{"name": "t", "description": "d", "inputSchema": {"type": "object"}}],
    "model": {"id": "p/m", "controls": {"temperature": 1, "maxOutputTokens": 5}, "config": {"top_p": 1}},
    "outputSchema": {"type": "object"},
}
GONE = object()
ODD = (GONE, None, True, 0, -1, 1e308, "", "\ud800", "a" * 300, [], [[]], {}, {"a": []}, [{}])


def places(value, path=()):
    yield path
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, member in pairs:
        yield from places(member, (*path, name))


def with_odd(path, odd):
    document = copy.deepcopy(WHOLE)
    place = functools.reduce(operator.getitem, path[:-1], document)
    if odd is GONE:
        del place[path[-1]]
    else:
        place[path[-1]] = odd
    return json.dumps(document)


@pytest.mark.parametrize(
    ("api", "build", "compat"),
    [
        ("openai-completions", openai_request, "native_schema=true, prompt_cache_key=true"),
        ("anthropic-messages", anthropic_request, 'native_schema=true, thinking="budget"'),
    ],
)
def test_whatever_stands_anywhere_in_a_call_makes_a_request_or_a_refusal(api, build, compat):
    config = read_config(f'default="p/m"\n[providers.p]\napi="{api}"\ncompat={{{compat}}}', {})
    made = refused = 0
    for path in list(places(WHOLE))[1:]:
        for odd in ODD:
            try:
                call = read_call(with_odd(path, odd), "e", config.select)
                call.references()
                json.dumps(build(call), ensure_ascii=False).encode()
                made += 1
            except CallRefused:
                refused += 1
    assert made > refused > 0
