from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

import gateway.engine.agent.step
from cli.main import run
from cli.recordings.find import files_below
from cli.recordings.serve import MAX_REQUEST_BYTES, serve_recordings
from protocol import jsjson
from protocol.canonical import manifest_hash, request_hash
from tests.engine.support import delegate
from tests.gateway.recorded import (
    BEHAVIOURS,
    EFFECTS,
    FIRST_MODEL,
    FIRST_TOOL,
    LAST_MODEL,
    MANIFEST,
    SECOND_TOOL,
    lines_of,
    record_turn,
    says,
    turn,
    write_lines,
)
from tests.gateway.support import until_aborted

ABORTED = {"kind": "cancel", "message": "enough"}
VECTORS = Path(__file__).parents[1] / "vectors" / "data"


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record_turn(tmp_path_factory.mktemp("original"))


@pytest.fixture
def recording(original: Path, tmp_path: Path) -> Path:
    copy = tmp_path / original.name
    copy.write_bytes(original.read_bytes())
    return copy


def replayed(capsys: Any, *argv: str | Path) -> tuple[int, str]:
    """Exit code and everything printed."""
    code = run(["replay", *map(str, argv)])
    printed = capsys.readouterr()
    return code, printed.out + printed.err


def changed(path: Path, change: Any, *, where: str) -> Path:
    """Lets `change` edit the line of an effect, an answer (`answer:ID`), or the `start` or `end`."""
    lines = lines_of(path)
    kind, _, effect_id = where.partition(":") if where.startswith("answer:") else (where, "", "")
    for line in lines:
        if (line["type"] == "effect" and line["effectId"] == where) or (
            line["type"] == kind and line.get("effectId", "") == effect_id
        ):
            change(line)
    return write_lines(path, lines)


# Replaying


def test_a_recording_of_this_build_is_the_same_effect_by_effect(recording, capsys):
    code, text = replayed(capsys, recording)
    assert code == 0
    lines = text.splitlines()
    assert "agent clerk, turn t1, segment 0, recorded by whippletree 9.9.9" in lines[0]
    assert [line.split()[:4] for line in lines[1:5]] == [
        [str(number), "same", effect_id.split(":")[2], effect_id]
        for number, effect_id in enumerate(EFFECTS, 1)
    ]
    assert lines[2].endswith(f"{FIRST_TOOL}  note")
    assert lines[5] == 'same: 4 effects and the end (completed, output "Noted.")'


def test_a_build_that_writes_prompts_otherwise_drifts_and_the_place_is_named(recording, capsys, monkeypatch):
    real = gateway.engine.agent.step.instructions_item
    monkeypatch.setattr(
        gateway.engine.agent.step, "instructions_item", lambda text: real(text.replace("terse", "brief"))
    )
    code, text = replayed(capsys, recording)
    assert code == 1
    assert text.splitlines()[1:] == [
        f"   1  DRIFT  model      {FIRST_MODEL}",
        "      another request",
        "      at input.prompt[0].content[0].text",
        '        recorded: "Be terse."',
        '        now:      "Be brief."',
    ]


def test_a_drift_planted_in_the_recording_is_found_and_named(recording, capsys):
    def plant(line: dict[str, Any]) -> None:
        line["document"]["input"]["text"] = "mulk"
        line["requestHash"] = request_hash(line["document"])

    code, text = replayed(capsys, changed(recording, plant, where=FIRST_TOOL))
    assert code == 1
    assert f"   1  same   model      {FIRST_MODEL}" in text
    assert f"   2  DRIFT  tool       {FIRST_TOOL}" in text
    assert 'at input.text\n        recorded: "mulk"\n        now:      "milk"' in text


def test_a_drift_deep_in_a_prompt_that_goes_on_is_found(recording, capsys):
    def plant(line: dict[str, Any]) -> None:
        line["more"]["prompt"][1]["status"] = "failed"

    code, text = replayed(capsys, changed(recording, plant, where=LAST_MODEL))
    assert code == 1
    assert "at input.prompt[3].status" in text
    assert "although the recorded hash fits it" in text


def test_another_hash_of_the_same_request_is_drift(recording, capsys):
    code, text = replayed(
        capsys, changed(recording, lambda line: line.update(requestHash="0" * 64), where=SECOND_TOOL)
    )
    assert code == 1
    assert "the same request has another hash" in text
    assert f"recorded: {json.dumps('0' * 64)}" in text


def test_an_effect_of_another_id_in_the_place_is_drift(recording, capsys):
    def plant(line: dict[str, Any]) -> None:
        line["effectId"] = line["document"]["effectId"] = "t1:0:tool:other"

    code, text = replayed(capsys, changed(recording, plant, where=FIRST_TOOL))
    assert code == 1
    assert f"another effect is asked for: {FIRST_TOOL} in the place of t1:0:tool:other" in text


def test_an_effect_that_is_missing_or_added_is_drift(recording, capsys):
    lines = lines_of(recording)
    without = [line for line in lines if line.get("effectId") != SECOND_TOOL]
    code, text = replayed(capsys, write_lines(recording, without))
    assert code == 1
    assert f"{SECOND_TOOL} is asked for in addition" in text
    index = next(i for i, line in enumerate(lines) if line.get("effectId") == SECOND_TOOL)
    added = {**lines[index], "effectId": "t1:0:tool:more"}
    code, text = replayed(capsys, write_lines(recording, [*lines[: index + 1], added, *lines[index + 1 :]]))
    assert code == 1
    assert "nothing comes in the place of t1:0:tool:more" in text


def test_a_turn_that_ends_otherwise_is_drift(recording, capsys):
    code, text = replayed(
        capsys, changed(recording, lambda line: line["params"].update(output="Done."), where="end")
    )
    assert code == 1
    assert "DRIFT: the turn ends otherwise" in text
    assert 'at output\n        recorded: "Done."\n        now:      "Noted."' in text


def test_a_turn_that_ends_earlier_than_recorded_is_drift(recording, capsys):
    def plant(line: dict[str, Any]) -> None:
        line["answer"]["outcome"]["value"] = says("That was it.")

    code, text = replayed(capsys, changed(recording, plant, where=f"answer:{FIRST_MODEL}"))
    assert code == 1
    assert f"the end (turn.completed) comes in the place of {FIRST_TOOL}" in text


def test_a_run_that_this_build_refuses_says_why(recording, capsys):
    def plant(line: dict[str, Any]) -> None:
        line["input"]["checkpoint"]["manifestHash"] = "0" * 64

    code, text = replayed(capsys, changed(recording, plant, where="start"))
    assert code == 1
    assert f"a refusal (The checkpoint is of another manifest) comes in the place of {FIRST_MODEL}" in text


def test_a_fault_of_the_engine_is_shown_and_not_raised(recording, capsys, monkeypatch):
    def broken(text: str) -> Any:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(gateway.engine.agent.step, "instructions_item", broken)
    code, text = replayed(capsys, recording)
    assert code == 1
    assert "a fault of this build's engine (ZeroDivisionError: oh)" in text


def test_aborts_and_answers_without_an_outcome_replay_as_they_came(tmp_path, capsys):
    def prepare(gw: Any) -> None:
        def intent(params: Any) -> Any:
            return {"status": "pending" if params["effect"]["effectId"] == FIRST_TOOL else "execute"}

        gw.core.auto["effect.intent"] = intent

    record_turn(tmp_path, behaviours=BEHAVIOURS, prepare=prepare, ends_with="turn.waiting")

    def cancelled(gw: Any) -> None:
        async def cancel(effect: Any, run: Any, signal: Any, rejoin: bool) -> Any:
            gw.core.ends[0].tell("cancel", runId="r1", reason="cancel", message="enough")
            return await until_aborted(effect, run, signal, rejoin)

        gw.fake.behaviours[SECOND_TOOL] = cancel

    record_turn(tmp_path, behaviours=BEHAVIOURS, prepare=cancelled, ends_with="turn.waiting")
    code, text = replayed(capsys, tmp_path)
    assert code == 0, text
    assert text.splitlines()[-1] == "2 recordings: 2 the same, 0 with drift"


def test_a_recording_without_its_secrets_replays(tmp_path, capsys):
    server = {"name": "db", "type": "stdio", "command": "db", "env": {"KEY": "s3cret"}}
    manifest = {**MANIFEST, "capabilities": [{**MANIFEST["capabilities"][0], "mcpServers": {"db": server}}]}

    def prepare(gw: Any) -> None:
        gw.core.auto["session.mcp"] = {"snapshot": {}, "sessionTools": []}

    path = record_turn(tmp_path, turn("go", manifest), prepare=prepare)
    assert "s3cret" not in path.read_text()
    code, text = replayed(capsys, path)
    assert code == 0, text


def test_a_known_outcome_of_an_earlier_run_replays(recording, tmp_path, capsys):
    first = next(line for line in lines_of(recording) if line.get("n") == 1)
    outcome = {"value": BEHAVIOURS[FIRST_MODEL]}
    known = {"effectId": FIRST_MODEL, "requestHash": first["requestHash"], "outcome": outcome}
    path = record_turn(tmp_path / "later", turn(outcomes=[known]))
    code, text = replayed(capsys, path)
    assert code == 0
    assert "4 effects and the end" in text


# Folders


def test_a_folder_of_recordings_is_a_regression_suite(original, tmp_path, capsys):
    for name in ("a", "b", "sub/c"):
        path = tmp_path / f"{name}.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(original.read_bytes())
    (tmp_path / "notes.json").write_text("{}")
    (tmp_path / "other.jsonl").write_text("not json\n")
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "d.jsonl").write_bytes(b"")
    (tmp_path / "e.jsonl.part").write_bytes(original.read_bytes()[:100])
    code, text = replayed(capsys, tmp_path)
    assert code == 0
    assert text.splitlines()[-1] == ("3 recordings: 3 the same, 0 with drift, 2 other files left alone")
    changed(tmp_path / "b.jsonl", lambda line: line.update(requestHash="0" * 64), where=LAST_MODEL)
    code, text = replayed(capsys, tmp_path)
    assert code == 1
    assert f"DRIFT {tmp_path / 'b.jsonl'}: 3 effects the same, then" in text
    assert f"   4  DRIFT  model      {LAST_MODEL}" in text
    assert "3 recordings: 2 the same, 1 with drift" in text


def test_an_empty_folder_is_no_success(tmp_path, capsys):
    code, text = replayed(capsys, tmp_path)
    assert code == 2
    assert "0 recordings" in text


def test_a_file_that_breaks_off_is_compared_up_to_there_and_is_no_success(recording, capsys):
    recording.write_bytes(recording.read_bytes()[:-40])
    code, text = replayed(capsys, recording)
    assert code == 2
    assert "4 effects the same, then the recording breaks off: line 12, the last one, is not whole" in text
    recording.write_bytes(b"".join(recording.read_bytes().splitlines(keepends=True)[:5]))
    code, text = replayed(capsys, recording)
    assert code == 2
    assert "1 effect the same, then the recording breaks off: it stops before the end of its run" in text


def test_a_recording_that_was_cut_by_a_limit_counts_as_far_as_it_goes(recording, capsys):
    lines = lines_of(recording)[:6]
    code, text = replayed(capsys, write_lines(recording, [*lines, {"type": "cut", "reason": "it was full"}]))
    assert code == 0
    assert "2 effects, then the recording was cut: it was full" in text


@pytest.mark.parametrize(
    ("content", "says_"),
    [
        (b"", "is not a recording"),
        (b'{"type":"recording","format":7,"made":"whippletree 8"}\n{"type":"start"}\n', "has the format 7"),
        (b'{"type":"recording","format":1}\n', "breaks off"),
    ],
)
def test_what_can_not_be_read_is_one_sentence(tmp_path, capsys, content, says_):
    path = tmp_path / "x.jsonl"
    path.write_bytes(content)
    code, text = replayed(capsys, path)
    assert code == 2
    assert says_ in text
    assert len(text.splitlines()) == 1


def test_a_run_of_another_engine_version_says_so(recording, capsys):
    def plant(line: dict[str, Any]) -> None:
        line["input"]["checkpoint"]["engineVersion"] = "hosted-12"

    code, text = replayed(capsys, changed(recording, plant, where="start"))
    assert code == 2
    assert "is of engine version 'hosted-12', which this build does not have" in text


def test_a_huge_file_is_refused_before_it_is_read(recording, capsys, monkeypatch):
    monkeypatch.setattr("gateway.recording.reader.MAX_FILE_BYTES", 100)
    code, text = replayed(capsys, recording)
    assert code == 2
    assert "is larger than 100 bytes" in text


def test_a_missing_file_and_a_missing_name_are_said(tmp_path, capsys):
    assert replayed(capsys, tmp_path / "no.jsonl") == (2, f"{tmp_path / 'no.jsonl'} is not there.\n")
    code, text = replayed(capsys)
    assert code == 2
    assert "Name a recording" in text


def test_an_answer_that_nobody_asked_for_makes_a_recording_unusable(recording, capsys):
    path = changed(recording, lambda line: line.update(effectId="t1:0:tool:x"), where=f"answer:{SECOND_TOOL}")
    code, text = replayed(capsys, path)
    assert code == 2
    assert "answers t1:0:tool:x, for which nothing asks at that point" in text


def test_nothing_in_a_recording_commands_the_terminal(recording, capsys):
    def plant(line: dict[str, Any]) -> None:
        line["input"]["checkpoint"]["engineVersion"] = "\x1b[2J"
        line["input"]["manifest"]["id"] = "\x1b[31mred"

    _, text = replayed(capsys, changed(recording, plant, where="start"))
    assert "\x1b" not in text


# Cases of another format


def test_recorded_segments_of_the_vectors_replay(capsys):
    code, text = replayed(capsys, VECTORS / "segments" / "yield-steps.json")
    assert code == 0
    assert "and the end" in text


def test_a_drift_in_a_recorded_segment_is_named(tmp_path, capsys):
    case: Any = jsjson.loads((VECTORS / "segments" / "yield-steps.json").read_bytes())
    effect = case["steps"][0]["expect"]["effects"][0]
    effect["input"]["prompt"][0]["content"][0]["text"] = "Never use tools."
    path = tmp_path / "case.json"
    path.write_text(jsjson.dumps(case))
    code, text = replayed(capsys, path)
    assert code == 1
    assert "DRIFT: segment 0: another request" in text
    assert "at input.prompt[0].content[0].text" in text


# Stopping at an effect


@pytest.mark.parametrize("name", ["2", FIRST_TOOL, "invocation_t1_0_2"])
def test_until_stops_before_the_answer_and_shows_the_state(recording, capsys, name):
    code, text = replayed(capsys, recording, "--until", name)
    assert code == 0
    assert f"Stopped at effect 2, {FIRST_TOOL}, before its answer." in text
    assert f"Waiting for answers beside it: {SECOND_TOOL}" in text
    assert 'input: {"text":"milk"}' in text
    assert (
        "Agent clerk runs the calls of its plan: step 1 (step_t1_0_1), turn turn_t1_0_1, "
        "0 steps of this segment done"
    ) in text
    assert 'status: "active"' in text
    assert "plan of step 1 (step_t1_0_1):" in text
    assert 'c1 note (invocation_t1_0_2): active\n         args: {"text":"milk"}' in text
    assert "ids taken: run 1, turn 1, step 1, invocation 3" in text
    assert "transcript: 2 entries" in text


def test_until_shows_the_end_of_a_long_transcript(tmp_path, capsys):
    entries = [
        {"kind": "input", "turnId": f"turn_{n}", "event": {"kind": "user-message", "text": f"message {n}"}}
        for n in range(30)
    ]
    state = {
        "version": 1,
        "agentId": "clerk",
        "manifestHash": manifest_hash(MANIFEST),
        "executionId": "s1",
        "revision": 7,
        "turnCount": 30,
        "transcript": [],
        "status": "completed",
        "state": {"mood": "good"},
    }

    def prepare(gw: Any) -> None:
        gw.core.auto["transcript.read"] = {"cursor": 1, "entries": entries}

    path = record_turn(tmp_path, turn(checkpoint={"state": state}), prepare=prepare)
    code, text = replayed(capsys, path, "--until", "1")
    assert code == 0
    assert "Agent clerk asks the model: step 1" in text
    assert 'state: {"mood":"good"}' in text
    assert "transcript: 31 entries, the last 20 of them" in text
    shown = text.partition("the last 20 of them")[2]
    assert "[10]" not in shown
    assert '[11] {"kind":"input","turnId":"turn_11"' in shown


def test_until_a_model_call_shows_its_prompt_item_by_item(recording, capsys):
    code, text = replayed(capsys, recording, "--until", "4")
    assert code == 0
    assert "input.prompt: 5 items" in text
    assert '[1] {"content":[{"text":"go","type":"text"}],"kind":"message","role":"user"}' in text


def test_until_an_effect_that_is_not_there_is_refused(recording, capsys):
    for name, says_ in (
        ("9", "has 4"),
        ("nowhere", "no effect nowhere"),
        ("_1_0_", "no effect"),
        ("", "Several effects"),
    ):
        code, text = replayed(capsys, recording, "--until", name)
        assert code == 2
        assert says_ in text
    changed(recording, lambda line: line.update(requestHash="0" * 64), where=FIRST_MODEL)
    code, text = replayed(capsys, recording, "--until", "3")
    assert code == 1
    assert "another hash" in text


def test_until_and_set_take_one_recording(recording, tmp_path, capsys):
    for paths in ([recording, recording], [tmp_path]):
        code, text = replayed(capsys, *paths, "--until", "1")
        assert code == 2
        assert "name one file" in text


# Another outcome


def outcome(folder: Path, document: Any, name: str = "outcome.json") -> Path:
    path = folder / name
    path.write_text(jsjson.dumps(document))
    return path


LOST: dict[str, Any] = {"value": {"kind": "completed", "output": "lost"}}


def test_after_another_outcome_a_recorded_request_gets_its_recorded_answer(recording, tmp_path, capsys):
    same = outcome(tmp_path, {"value": BEHAVIOURS[FIRST_TOOL]})
    code, text = replayed(capsys, recording, "--set", f"2={same}")
    assert code == 0
    lines = text.splitlines()
    assert [line.split()[1] for line in lines[1:-1] if line[3].isdigit()] == ["same"] * 4
    assert lines[3] == '      set: {"kind":"completed","output":{"kept":1.5}}'
    assert lines[-1] == 'the end: completed, output "Noted."'


def test_another_request_is_not_answered_with_the_recorded_outcome_but_shown(recording, tmp_path, capsys):
    path = outcome(tmp_path, LOST)
    code, text = replayed(capsys, recording, "--set", f"3={path}")
    assert code == 2
    lines = text.splitlines()
    assert [line.split()[1] for line in lines[1:7] if line[3].isdigit()] == ["same", "same", "same", "other"]
    assert "at input.prompt[4].content[0].text" in text
    assert f"Stopped at effect 4, {LAST_MODEL}, before its answer." in text
    assert "input.prompt: 5 items" in text
    assert "Agent clerk asks the model: step 2" in text
    assert lines[-2:] == [
        f"It stops here: nothing answers {LAST_MODEL}.",
        "To go on, give another --set EFFECT=FILE or --script FILE for model calls or --live, which asks real "
        "models and tools.",
    ]


def test_a_script_answers_model_calls_that_the_recording_does_not(recording, tmp_path, capsys):
    path = outcome(tmp_path, LOST)
    entries = [{"step": 0, "answer": "never asked"}, {"text": "lost", "answer": "It is lost."}]
    script = outcome(tmp_path, {"answers": entries}, "script.json")
    code, text = replayed(capsys, recording, "--set", f"3={path}", "--script", script)
    assert code == 0
    assert text.splitlines()[-2:] == [
        '      script: "It is lost."',
        'the end: completed, output "It is lost."',
    ]


def test_a_script_answers_no_tools_and_another_outcome_may(recording, tmp_path, capsys):
    path = outcome(tmp_path, LOST)
    again = {"output": [{"type": "tool-call", "id": "c9", "name": "note", "args": {}}]}
    script = outcome(
        tmp_path, {"answers": [{"step": 1, "answer": again}, {"answer": "Done."}]}, "script.json"
    )
    code, text = replayed(capsys, recording, "--set", f"3={path}", "--script", script)
    assert code == 2
    asked = "t1:0:tool:invocation_t1_0_5"
    assert f"   5  new    tool       {asked}" in text
    assert text.splitlines()[-2:] == [
        f"It stops here: nothing answers {asked}.",
        "To go on, give another --set EFFECT=FILE or --live, which asks real models and tools.",
    ]
    tool = outcome(tmp_path, {"value": 1}, "odd=name.json")
    given = ("--set", f"3={path}", "--set", f"{asked}={tool}", "--script", script)
    code, text = replayed(capsys, recording, *given)
    assert code == 0, text
    assert text.splitlines()[-1] == 'the end: completed, output "Done."'


def test_what_the_recorded_run_asked_for_without_an_answer_is_asked_of_nobody(tmp_path, capsys):
    def cut(gw: Any) -> None:
        async def cancel(effect: Any, run: Any, signal: Any, rejoin: bool) -> Any:
            gw.core.ends[0].tell("cancel", runId="r1", reason="cancel", message="enough")
            return await until_aborted(effect, run, signal, rejoin)

        gw.fake.behaviours[LAST_MODEL] = cancel

    path = record_turn(tmp_path, prepare=cut, ends_with="turn.waiting")
    same = outcome(tmp_path, {"value": BEHAVIOURS[SECOND_TOOL]})
    script = outcome(tmp_path, {"answers": [{"answer": "From the script."}]}, "script.json")
    lines = [
        line for line in lines_of(path) if (line["type"], line.get("effectId")) != ("answer", LAST_MODEL)
    ]
    aborted = {"type": "answer", "effectId": LAST_MODEL, "now": 9, "answer": {"status": "aborted", **ABORTED}}
    end = lines.pop()
    write_lines(path, [*lines, aborted, end])
    code, text = replayed(capsys, path, "--set", f"3={same}", "--script", script)
    assert code == 2
    assert f"   4  same   model      {LAST_MODEL}" in text
    assert "It may have happened, so it is not done again." in text


def test_a_journal_entry_of_a_delegation_needs_no_answer_of_anybody(tmp_path, capsys):
    child = {
        "manifestSchemaVersion": 4,
        "id": "scout",
        "description": "Finds.",
        "capabilities": [{"id": "core", "type": "agent"}],
    }
    manifest = {**MANIFEST, "capabilities": [{"id": "team", "type": "agent", "tools": [delegate(child)]}]}
    path = record_turn(tmp_path, turn(manifest=manifest), {FIRST_MODEL: says("Hello.")})
    delegates = {"output": [{"type": "tool-call", "id": "d1", "name": "scout", "args": {"task": "look"}}]}
    first = outcome(tmp_path, {"value": delegates})
    entries = [{"text": "look", "answer": "Found."}, {"text": "Found.", "answer": "All done."}]
    script = outcome(tmp_path, {"answers": entries}, "script.json")
    code, text = replayed(capsys, path, "--set", f"1={first}", "--script", script)
    assert code == 0, text
    assert "t1:0:delegation:invocation_t1_0_2:settled" in text
    assert text.splitlines()[-1] == 'the end: completed, output "All done."'


def test_an_outcome_that_came_with_the_run_can_be_changed(tmp_path, capsys):
    whole = record_turn(tmp_path)
    first = next(line for line in lines_of(whole) if line.get("effectId") == FIRST_MODEL)
    known = {
        "effectId": FIRST_MODEL,
        "requestHash": first["requestHash"],
        "outcome": {"value": BEHAVIOURS[FIRST_MODEL]},
    }
    path = record_turn(tmp_path, turn(outcomes=[known]))
    code, text = replayed(capsys, path)
    assert code == 0, text
    words = outcome(tmp_path, {"value": says("At once.")})
    code, text = replayed(capsys, path, "--set", f"1={words}")
    assert code == 0, text
    assert text.splitlines()[-1] == 'the end: completed, output "At once."'


def test_a_changed_run_can_be_looked_into(recording, tmp_path, capsys):
    path = outcome(tmp_path, {"value": {"kind": "completed", "output": "lost"}})
    code, text = replayed(capsys, recording, "--set", f"2={path}", "--until", "4")
    assert code == 0
    assert '\\"lost\\"' in text
    assert "Stopped at effect 4" in text


def test_an_outcome_may_be_a_failure_or_none(recording, tmp_path, capsys):
    path = outcome(tmp_path, {"status": "failed", "code": "internal", "message": "gone"})
    code, text = replayed(capsys, recording, "--set", f"4={path}")
    assert code == 0
    assert 'error {"code":"model.failed","message":"gone"' in text
    path = outcome(tmp_path, {"status": "pending"})
    code, text = replayed(capsys, recording, "--set", f"3={path}")
    assert code == 0
    assert f'waits for ["{SECOND_TOOL}"]' in text


def test_a_drift_before_the_change_is_said_first(recording, tmp_path, capsys):
    path = outcome(tmp_path, {"value": says("x")})
    changed(recording, lambda line: line.update(requestHash="0" * 64), where=FIRST_TOOL)
    code, text = replayed(capsys, recording, "--set", f"4={path}")
    assert code == 1
    assert "drifts before the change" in text


def test_what_can_not_be_set_is_one_sentence(recording, tmp_path, capsys):
    bad = outcome(tmp_path, {"values": 1})
    (tmp_path / "text").write_text("{")
    for change, says_ in (
        ("4", "must be EFFECT=FILE"),
        ("4=nowhere.json", "nowhere.json can't be read: No such file"),
        (f"4={bad}", "must hold an outcome"),
        (f"4={tmp_path / 'text'}", "is not JSON"),
        (f"77={outcome(tmp_path, {'value': 1}, 'ok.json')}", "There is no effect 77"),
    ):
        code, text = replayed(capsys, recording, "--set", change)
        assert code == 2
        assert says_ in text


def test_ctrl_c_is_one_word(recording, tmp_path, capsys, monkeypatch):
    def interrupted(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("cli.recordings.what_if.play", interrupted)
    code, text = replayed(capsys, recording, "--set", f"3={outcome(tmp_path, LOST)}")
    assert code == 2
    assert text.splitlines()[-1] == "Stopped."


def test_options_that_make_no_sense_are_one_sentence(recording, tmp_path, capsys, monkeypatch):
    for name in ("MODEL_EXECUTOR", "MCP_POOL", "SANDBOX_MANAGER"):
        monkeypatch.delenv(f"NYLORUN_{name}_TARGET", raising=False)
    path = outcome(tmp_path, LOST)
    script = outcome(tmp_path, {"answers": [{"answer": 5}]}, "script.json")
    for argv, says_ in (
        (["--live"], "give one with --set EFFECT=FILE"),
        (["--script", str(script)], "give one with --set EFFECT=FILE"),
        (["--until", "1", "--live"], "give one with --set EFFECT=FILE"),
        (["--set", f"3={path}", "--manifest", str(path)], "--manifest is for --live"),
        (["--set", f"3={path}", "--script", "nowhere"], "--script nowhere: nowhere can't be read"),
        (["--set", f"3={path}", "--script", str(script)], "answers[0].answer"),
        (["--set", f"3={path}", "--live"], "NYLORUN_MODEL_EXECUTOR_TARGET"),
    ):
        code, text = replayed(capsys, recording, *argv)
        assert code == 2, argv
        assert says_ in text
        assert len(text.splitlines()) == 1


# Serving


def served(paths: list[Path], *requests: Any) -> list[dict[str, Any]]:
    lines = b"".join(
        (request if isinstance(request, bytes) else jsjson.dumps_bytes(request)) + b"\n"
        for request in requests
    )
    answers = io.BytesIO()
    assert serve_recordings(list(files_below(paths)), io.BytesIO(lines), answers) == 0
    return [jsjson.loads(line) for line in answers.getvalue().splitlines()]  # type: ignore[misc]


def test_a_served_recording_runs_its_agent(recording):
    ready, *effects, end = served([recording], {"id": 1, "method": "run"})
    assert (ready["type"], ready["protocol"], ready["agentId"], ready["input"]) == ("ready", 1, "clerk", "go")
    assert [(line["type"], line["n"], line["effectId"]) for line in effects] == [
        ("effect", number, effect_id) for number, effect_id in enumerate(EFFECTS, 1)
    ]
    assert effects[0]["document"]["input"]["prompt"][1]["content"][0]["text"] == "go"
    assert (end["id"], end["type"], end["params"]["output"]) == (1, "end", "Noted.")


def test_a_manifest_that_asks_for_the_same_fits_and_one_that_does_not_misses(recording):
    same = {**MANIFEST, "description": "Shown to nobody."}
    desk = MANIFEST["capabilities"][0]
    other = {**MANIFEST, "capabilities": [{**desk, "instructions": ["Be verbose."]}]}
    lines = served(
        [recording],
        {"id": 1, "method": "run", "manifest": same},
        {"id": 2, "method": "run", "manifest": other},
        {"id": 3, "method": "run", "input": "stop"},
    )
    ends = {line["id"]: line for line in lines if line["type"] in ("end", "miss")}
    assert ends[1]["type"] == "end"
    assert ends[2]["effectId"] == FIRST_MODEL
    assert ends[2]["difference"] == {
        "path": "input.prompt[0].content[0].text",
        "before": "Be terse.",
        "after": "Be verbose.",
    }
    assert f"does not fit effect {FIRST_MODEL}: it is another request" in ends[2]["text"]
    assert ends[3]["difference"]["path"] == "input.prompt[1].content[0].text"


def test_an_effect_that_the_recording_does_not_answer_is_a_miss(recording):
    lines = [
        line
        for line in lines_of(recording)
        if not (line["type"] == "answer" and line["effectId"] == LAST_MODEL)
    ]
    *_, miss = served([write_lines(recording, lines)], {"id": 1, "method": "run"})
    assert (miss["type"], miss["effectId"], miss["difference"]) == ("miss", LAST_MODEL, None)
    assert "it has no outcome in the recording" in miss["text"]
    lines = [line for line in lines if line.get("effectId") != LAST_MODEL]
    *_, miss = served([write_lines(recording, lines)], {"id": 1, "method": "run"})
    assert "it is not in the recording" in miss["text"]


def test_the_runs_of_a_turn_that_waited_are_one_cassette(tmp_path):
    def prepare(gw: Any) -> None:
        gw.core.auto["effect.intent"] = lambda params: {
            "status": "pending" if params["effect"]["effectId"] == SECOND_TOOL else "execute"
        }

    first = record_turn(tmp_path, prepare=prepare, ends_with="turn.waiting")
    hashes = {line["effectId"]: line["requestHash"] for line in lines_of(first) if line["type"] == "effect"}
    outcomes = [
        {"effectId": effect_id, "requestHash": hashes[effect_id], "outcome": {"value": BEHAVIOURS[effect_id]}}
        for effect_id in EFFECTS[:3]
    ]
    second = record_turn(tmp_path, turn(run_id="r2", outcomes=outcomes))
    for paths in ([first, second], [second]):
        *effects, end = served(paths, {"id": 1, "method": "run"})[1:]
        assert len(effects) == 4
        assert end["params"]["output"] == "Noted."
    *_, end = served([first], {"id": 1, "method": "run"})
    assert end["params"] == {"status": "waiting", "effectIds": [SECOND_TOOL]}


def test_recordings_of_two_turns_are_no_cassette(recording, tmp_path, capsys):
    other = record_turn(tmp_path / "other", turn(turn_id="t2"), {})
    code, text = replayed(capsys, recording, other, "--serve")
    assert code == 2
    assert "serve one at a time" in text


def test_odd_requests_are_answered_with_an_error(recording):
    lines = served(
        [recording],
        b"nonsense",
        [],
        {"method": "run"},
        {"id": True, "method": "run"},
        {"id": 1, "method": "walk"},
        {"id": 2, "method": "run", "model": "x"},
        {"id": 3, "method": "run", "manifest": None},
        b"",
        {"id": 4, "method": "run", "manifest": {}},
    )
    assert [(line.get("id"), line["type"]) for line in lines[1:]] == [
        (None, "error"),
        (None, "error"),
        (None, "error"),
        (True, "error"),
        (1, "error"),
        (2, "error"),
        (3, "error"),
        (4, "end"),
    ]
    assert lines[6]["message"] == "a request has no model"
    assert "Invalid manifest" in lines[8]["params"]["thrown"]["message"]


def test_serve_stands_alone(recording, capsys, monkeypatch):
    code, text = replayed(capsys, recording, "--serve", "--until", "1")
    assert code == 2
    assert "--serve goes with neither" in text
    assert MAX_REQUEST_BYTES == 64 * 1024 * 1024
