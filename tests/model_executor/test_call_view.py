import json

import pytest

from services.model_executor.call_view import CallInvalid, view_call
from tests.model_executor.support import document, tool_result, user


def seen(call):
    view = view_call(call)
    return [(item.kind, item.role, list(item.texts())) for item in view.prompt], [
        tool.name for tool in view.tools
    ]


@pytest.mark.parametrize("extra", ["plain", "😀", "\ud800", "1e400"])
def test_both_readers_see_the_same(extra):
    call = json.loads(document(user("hi", extra), tool_result("r"), tools=("a", "b")))
    call["odd"] = float("inf") if extra == "1e400" else extra
    text = json.dumps(call).replace("Infinity", "1e400")
    items, tools = seen(text)
    assert items == [("message", "user", ["hi", extra]), ("tool-result", "", ["r"])]
    assert tools == ["a", "b"]


@pytest.mark.parametrize(
    "call",
    [
        "",
        "{",
        "[]",
        "null",
        "{}",
        '{"prompt":1,"tools":[]}',
        '{"prompt":[1],"tools":[]}',
        '{"prompt":[{"kind":1}],"tools":[]}',
        '{"prompt":[],"tools":[{}]}',
        '{"prompt":[],"tools":1}',
        '{"prompt":[],"tools":[]}x',
        "[" * 2000,
        '{"a":' * 5000,
    ],
)
def test_what_is_no_call_is_refused_without_quoting_it(call):
    with pytest.raises(CallInvalid):
        view_call(call)


@pytest.mark.parametrize("content", ["1", '"x"', "null", "[1]", '{"a":1}'])
def test_content_that_is_no_list_of_parts_is_refused(content):
    with pytest.raises(CallInvalid):
        list(
            view_call(f'{{"prompt":[{{"kind":"message","content":{content}}}],"tools":[]}}').prompt[0].texts()
        )
