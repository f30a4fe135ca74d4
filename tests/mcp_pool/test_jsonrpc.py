"""Lines and messages, however their bytes arrive."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.mcp_pool.jsonrpc import (
    TOOLS_LIST_CHANGED,
    Answer,
    ErrorAnswer,
    LineSplitter,
    LineTooLong,
    ServerRequest,
    TooDeep,
    read_message,
    write_notification,
    write_reply,
    write_request,
)


def lines_of(pieces, limit=100):
    splitter = LineSplitter(limit)
    return [line for piece in pieces for line in splitter.feed(piece)]


@given(
    st.lists(st.binary(max_size=30).filter(lambda line: b"\n" not in line)), st.binary(max_size=9), st.data()
)
def test_lines_do_not_depend_on_how_output_is_cut(lines, tail, data):
    tail = tail.replace(b"\n", b"")
    output = b"".join(line + b"\n" for line in lines) + tail
    cuts = sorted(data.draw(st.lists(st.integers(0, len(output)), max_size=8)))
    pieces = [output[a:b] for a, b in zip([0, *cuts], [*cuts, len(output)], strict=True)]
    assert lines_of(pieces) == lines
    assert lines_of([output]) == lines
    assert lines_of([bytes([byte]) for byte in output]) == lines


@pytest.mark.parametrize("cut", [1, 7, 10_000])
def test_a_line_of_the_limit_passes_and_one_byte_more_does_not(cut):
    def fed(output):
        return lines_of([output[at : at + cut] for at in range(0, len(output), cut)])

    assert fed(b"x" * 100 + b"\n") == [b"x" * 100]
    with pytest.raises(LineTooLong):
        fed(b"x" * 101)
    with pytest.raises(LineTooLong):
        fed(b"ok\n" + b"x" * 101 + b"\n")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"jsonrpc":"2.0","id":3,"result":{"a":1}}', Answer(3, {"a": 1}, True, 41)),
        ('{"jsonrpc":"2.0","id":"3","result":{}}\r', Answer(3, {}, True, 39)),
        ('{"jsonrpc":"2.0","id":1.0,"result":{}}', Answer(1, {}, True, 38)),
        ('{"jsonrpc":"2.0","\\u0069d":1,"result":{}}', Answer(1, {}, True, 41)),
        ('{"jsonrpc":"2.0","id":1,"result":null}', Answer(1, None, True, 38)),
        ('{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"m"}}', ErrorAnswer(1, -1, "m")),
        ('{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"m","data":{}}}', ErrorAnswer(1, -1, "m")),
        ('{"jsonrpc":"2.0","id":"x","method":"ping"}', ServerRequest("x", "ping")),
        ('{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}', TOOLS_LIST_CHANGED),
        ('{"jsonrpc":"2.0","method":"notifications\\/tools\\/list_changed"}', TOOLS_LIST_CHANGED),
        ('{"jsonrpc":"2.0","method":"notifications/prompts/list_changed"}', None),
        ('{"method":"notifications\\/tools\\/list_changed"}', None),
    ],
)
def test_messages_are_read(line, message):
    assert read_message(line.encode()) == message


@pytest.mark.parametrize(
    "line",
    [
        "",
        "log line",
        "[]",
        "1",
        '{"jsonrpc":"2.0","method":"notifications/message","params":{}}',
        '{"jsonrpc":"2.0","id":null,"method":"ping"}',
        '{"jsonrpc":"2.0","id":true,"method":"ping"}',
        '{"jsonrpc":"1.0","id":1,"result":{}}',
        '{"id":1,"result":{}}',
        '{"jsonrpc":"2.0","id":1}',
        '{"jsonrpc":"2.0","id":1,"result":{},"error":{"code":1,"message":"m"}}',
        '{"jsonrpc":"2.0","id":1,"error":{"code":"1","message":"m"}}',
        '{"jsonrpc":"2.0","id":1,"error":{"code":1}}',
        '{"jsonrpc":"2.0","id":1,"error":null}',
        '{"jsonrpc":"2.0","id":"abc","result":{}}',
        '{"jsonrpc":"2.0","id":1.5,"result":{}}',
        '{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"parse"}}',
        '[{"jsonrpc":"2.0","id":1,"result":{}}]',
        '{"jsonrpc":"2.0","id":1,"result":{}} tail',
        '\ufeff{"jsonrpc":"2.0","id":1,"result":{}}',
    ],
)
def test_what_is_no_message_is_dropped(line):
    assert read_message(line.encode()) is None


@given(st.binary(max_size=60))
def test_any_line_is_a_message_or_dropped(line):
    read_message(line)
    read_message(b'{"jsonrpc":"2.0","id":1,' + line + b"}")


def test_numbers_are_read_as_javascript_reads_them():
    message = read_message(b'{"jsonrpc":"2.0","id":1,"result":{"b":1.0,"2":9007199254740993,"1":0}}')
    assert list(message.result.items()) == [("1", 0), ("2", 9007199254740992.0), ("b", 1)]


def test_bytes_that_are_not_utf8_are_replaced():
    message = read_message(b'{"jsonrpc":"2.0","id":1,"result":{"a":"\xff"}}')
    assert message.result == {"a": "\ufffd"}


def test_an_answer_that_nests_too_deep_keeps_its_id():
    deep = "[" * 5000 + "]" * 5000
    line = f'{{"jsonrpc":"2.0","id":4,"result":{{"a":{deep}}}}}'
    assert read_message(line.encode()) == TooDeep(4)


def test_written_messages_are_one_line_of_json():
    request = write_request(7, "tools/call", {"name": "n\n", "arguments": {}}, True)
    assert json.loads(request) == {
        "jsonrpc": "2.0",
        "id": 7,
        "method": "tools/call",
        "params": {"name": "n\n", "arguments": {}},
    }
    assert request.count(b"\n") == 1
    assert request.endswith(b"\n")
    assert json.loads(write_request(0, "tools/list", None, True)) == {
        "jsonrpc": "2.0",
        "id": 0,
        "method": "tools/list",
    }
    assert json.loads(write_notification("notifications/initialized")) == {
        "jsonrpc": "2.0",
        "method": "notifications/initialized",
    }


def test_ping_is_answered_and_everything_else_is_not_found():
    assert json.loads(write_reply(ServerRequest("a", "ping"))) == {"jsonrpc": "2.0", "id": "a", "result": {}}
    assert json.loads(write_reply(ServerRequest(1, "roots/list")))["error"]["code"] == -32601
