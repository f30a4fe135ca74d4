import json

import pytest

from services.model_executor.call_view import view_call
from services.model_executor.script import ScriptInvalid, last_text, load_script, read_script, step_of
from tests.model_executor.support import assistant, document, text, tool_result, user


def script(*answers):
    return read_script(json.dumps({"answers": list(answers)}))


def answered(made, call, agent="agent"):
    delay_ms, outcome = made.answer(agent, view_call(call))
    return delay_ms, json.loads(outcome)


CALL = assistant({"type": "tool-call", "id": "c", "name": "t", "args": {}})


@pytest.mark.parametrize(
    ("prompt", "step"),
    [
        ([], 0),
        ([user("a")], 0),
        ([user("a"), CALL, tool_result("1")], 1),
        ([user("a"), CALL, tool_result("1"), tool_result("2")], 1),
        ([user("a"), CALL, tool_result("1"), CALL, tool_result("2"), tool_result("3")], 2),
        ([user("a"), assistant(text("x")), assistant(text("y"))], 2),
        ([user("a"), CALL, tool_result("1"), user("b")], 0),
        ([user("a"), tool_result("1")], 1),
        ([user("a"), CALL, tool_result("1"), {"kind": "context", "role": "user", "content": []}], 1),
    ],
)
def test_a_step_is_an_assistant_message_with_the_results_after_it(prompt, step):
    assert step_of(view_call(document(*prompt))) == step


def test_the_first_entry_that_fits_wins():
    made = script(
        {"agent": "other", "answer": "never"},
        {"step": 1, "answer": "later"},
        {"text": "needle", "answer": "found"},
        {"answer": "rest"},
    )
    assert answered(made, document(user("hay needle hay"))) == (0, "found")
    assert answered(made, document(user("hay"))) == (0, "rest")
    assert answered(made, document(user("needle"), CALL, tool_result("x"))) == (0, "later")
    assert answered(made, document(user("x")), "other") == (0, "never")


def test_the_same_call_always_gets_the_same_answer():
    made = script({"step": 0, "answer": "a", "delayMs": 5}, {"answer": "b"})
    call = document(user("x"))
    assert {str(answered(made, call)) for _ in range(3)} == {"(5, 'a')"}


def test_the_text_is_that_of_the_last_item_one_part_a_line():
    call = view_call(document(user("first"), user("a", "b")))
    assert last_text(call) == "a\nb"


def test_no_fit_is_a_failure_that_quotes_what_was_asked():
    _, outcome = answered(script({"step": 9, "answer": "x"}), document(user("what\nis " + "x" * 500)))
    assert (outcome["kind"], outcome["code"], outcome["retryable"]) == ("failed", "invalid_request", False)
    assert '"agent"' in outcome["message"]
    assert "step 0" in outcome["message"]
    assert "what\\nis xxx" in outcome["message"]
    assert len(outcome["message"]) < 400


def test_failures_and_candidates_are_given_as_they_are():
    candidate = {
        "output": [{"type": "tool-call", "id": "1", "name": "t", "args": {"b": 1, "a": 2}}],
        "finishReason": "tool-calls",
        "usage": {"inputTokens": 1, "costUsd": 0.00002},
        "evidence": {"extras": {"contextWindow": 1000}},
    }
    made = script(
        {"text": "a", "answer": candidate},
        {"failure": {"code": "rate_limited", "message": "m", "retryable": True, "retryAfterMs": 5}},
    )
    assert answered(made, document(user("a"))) == (0, candidate)
    assert answered(made, document(user("b")))[1] == {
        "kind": "failed",
        "code": "rate_limited",
        "message": "m",
        "retryable": True,
        "retryAfterMs": 5,
    }


@pytest.mark.spec("model-executor:15.46", "model-executor:15.47")
def test_numbers_and_key_order_leave_as_javascript_writes_them():
    made = read_script(
        '{"answers":[{"answer":{"output":[{"type":"tool-call","id":"1","name":"t",'
        '"args":{"b":12345678901234567890,"a":1.0}}],"usage":{"costUsd":2e-05}}}]}'
    )
    _, outcome = made.answer("a", view_call(document(user("x"))))
    assert '"args":{"b":12345678901234567000,"a":1}' in outcome
    assert '"costUsd":0.00002' in outcome


@pytest.mark.parametrize(
    ("document_", "says"),
    [
        ("{", "not JSON"),
        ("[]", "answers"),
        ("{}", "answers"),
        ('{"answers":[],"x":1}', "answers"),
        ('{"answers":{}}', "list"),
        ('{"answers":[1]}', "answers[0] must be an object"),
        ('{"answers":[{}]}', "answers[0] must have either answer or failure"),
        ('{"answers":[{"answer":"a","failure":{}}]}', "either answer or failure"),
        ('{"answers":[{"answer":"a","stpe":1}]}', "answers[0].stpe is not known"),
        ('{"answers":[{"answer":"a"},{"answer":"a","step":-1}]}', "answers[1].step"),
        ('{"answers":[{"answer":"a","step":1.5}]}', "answers[0].step"),
        ('{"answers":[{"answer":"a","step":true}]}', "answers[0].step"),
        ('{"answers":[{"answer":"a","delayMs":600001}]}', "answers[0].delayMs"),
        ('{"answers":[{"answer":"a","agent":1}]}', "answers[0].agent"),
        ('{"answers":[{"answer":"a","text":[]}]}', "answers[0].text"),
        ('{"answers":[{"answer":1}]}', "answers[0].answer"),
        ('{"answers":[{"answer":{"output":[{"type":"text"}]}}]}', "output[0].text is missing"),
        ('{"answers":[{"answer":{"output":[{"type":"x"}]}}]}', "output[0].type"),
        ('{"answers":[{"answer":{"output":[],"finishReason":"error"}}]}', "finishReason"),
        ('{"answers":[{"answer":{"output":[],"usage":{"inputTokens":-1}}}]}', "usage.inputTokens"),
        ('{"answers":[{"answer":{"output":[],"usage":{"costUsd":1e400}}}]}', "usage.costUsd"),
        ('{"answers":[{"answer":{"output":[],"evidence":{"x":1}}}]}', "evidence.x"),
        (
            '{"answers":[{"answer":{"output":[{"type":"tool-call","id":"","name":"","args":[]}]}}]}',
            "output[0].args",
        ),
        ('{"answers":[{"failure":{"code":"x","message":"m"}}]}', "failure.code"),
        ('{"answers":[{"failure":{"code":"auth"}}]}', "failure must have"),
        ('{"answers":[{"failure":{"code":"auth","message":"m","retryable":1}}]}', "failure.retryable"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused_and_the_place_is_named(document_, says):
    with pytest.raises(ScriptInvalid) as caught:
        read_script(document_)
    assert says in str(caught.value)


def test_files_that_cannot_be_read_are_named(tmp_path):
    with pytest.raises(ScriptInvalid, match="nowhere"):
        load_script(str(tmp_path / "nowhere.json"))
    (tmp_path / "latin").write_bytes(b'{"answers":"\xff"}')
    with pytest.raises(ScriptInvalid, match="UTF-8"):
        load_script(str(tmp_path / "latin"))


def test_the_example_of_the_documentation_is_a_script():
    from services.model_executor import script as module

    example = module.__doc__.split("The first entry that fits a call wins:")[1].split("What an entry asks")[0]
    assert len(read_script(example).entries) == 4
