from __future__ import annotations

from pathlib import Path
from typing import Any

from cli.main import run
from tests.gateway.recorded import (
    BEHAVIOURS,
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


def diffed(capsys: Any, one: Path, other: Path) -> tuple[int, str]:
    code = run(["diff", str(one), str(other)])
    printed = capsys.readouterr()
    return code, printed.out + printed.err


def of_turn(behaviours: dict[str, Any], turn_id: str) -> dict[str, Any]:
    return {name.replace("t1", turn_id): value for name, value in behaviours.items()}


def test_two_recordings_of_one_run_do_not_differ(tmp_path, capsys):
    one, other = record_turn(tmp_path / "a"), record_turn(tmp_path / "b")
    code, text = diffed(capsys, one, other)
    assert code == 0
    assert text.splitlines()[0].startswith(f"A  {one}: agent clerk")
    assert text.splitlines()[-1] == "They ask for the same 4 effects and end the same."


def test_the_first_effect_that_differs_is_named_with_the_answer_that_led_there(tmp_path, capsys):
    one = record_turn(tmp_path / "a")
    other = record_turn(
        tmp_path / "b", behaviours={**BEHAVIOURS, SECOND_TOOL: {"kind": "completed", "output": "lost"}}
    )
    code, text = diffed(capsys, one, other)
    assert code == 1
    assert text.splitlines()[2:] == [
        "They part at effect 4:",
        f"      model {LAST_MODEL}",
        "      at input.prompt[4].content[0].text",
        '        A: "\\"kept \\\\ud800\\""',
        '        B: "\\"lost\\""',
        f"Before that, the answers to effect 3 differ (tool {SECOND_TOOL}):",
        "      at outcome.value.output",
        '        A: "kept \\ud800"',
        '        B: "lost"',
    ]


def test_two_turns_of_one_agent_are_compared_without_their_ids(tmp_path, capsys):
    one = record_turn(
        tmp_path / "a", turn(session_id="monday", turn_id="turn-aaaa"), of_turn(BEHAVIOURS, "turn-aaaa")
    )
    given = turn(session_id="tuesday", turn_id="turn-bb")
    other = record_turn(tmp_path / "b", given, of_turn(BEHAVIOURS, "turn-bb"))
    code, text = diffed(capsys, one, other)
    assert code == 0, text
    other = record_turn(
        tmp_path / "c",
        given,
        of_turn({**BEHAVIOURS, FIRST_TOOL: {"kind": "completed", "output": 0}}, "turn-bb"),
    )
    code, text = diffed(capsys, one, other)
    assert code == 1
    assert "They part at effect 4:" in text
    assert "A  model turn-aaaa:0:model:invocation_turn-aaaa_0_4" in text
    assert "B  model turn-bb:0:model:invocation_turn-bb_0_4" in text


def test_another_manifest_is_said_and_its_effect_on_the_prompt_is_shown(tmp_path, capsys):
    desk = MANIFEST["capabilities"][0]
    manifest = {**MANIFEST, "capabilities": [{**desk, "instructions": ["Be brief."]}]}
    one, other = record_turn(tmp_path / "a"), record_turn(tmp_path / "b", turn("go", manifest))
    code, text = diffed(capsys, one, other)
    assert code == 1
    assert "They start from something else:\n      at manifest.capabilities[0].instructions[0]" in text
    assert "They part at effect 1:" in text
    assert "at input.prompt[0].content[0].text" in text
    assert "manifestHash" not in text


def test_a_run_that_goes_on_longer_is_named(tmp_path, capsys):
    one = record_turn(tmp_path / "a")
    other = record_turn(tmp_path / "b", behaviours={FIRST_MODEL: says("Done.")})
    for a, b, name in ((one, other, "A"), (other, one, "B")):
        code, text = diffed(capsys, a, b)
        assert code == 1
        assert f"They part at effect 2: only {name} asks for tool {FIRST_TOOL}." in text
        assert "Before that, the answers to effect 1 differ" in text


def test_the_same_effects_may_end_differently(tmp_path, capsys):
    one = record_turn(tmp_path / "a")
    other = record_turn(tmp_path / "b", behaviours={**BEHAVIOURS, LAST_MODEL: says("Later.")})
    code, text = diffed(capsys, one, other)
    assert code == 1
    assert "They ask for the same 4 effects and end differently:" in text
    assert "Before that, the answers to effect 4 differ" in text


def test_what_can_not_be_read_is_one_sentence(tmp_path, capsys):
    one = record_turn(tmp_path / "a")
    bad = tmp_path / "bad.jsonl"
    bad.write_text("{}\n{}\n")
    for path, says_ in ((bad, "is not a recording"), (tmp_path / "no", "is not there")):
        code, text = diffed(capsys, one, path)
        assert code == 2
        assert says_ in text
        assert len(text.splitlines()) == 1


def test_recordings_that_break_off_are_compared_as_far_as_they_go(tmp_path, capsys):
    one = record_turn(tmp_path / "a")
    cut = write_lines(tmp_path / "cut.jsonl", lines_of(one)[:4])
    code, text = diffed(capsys, one, cut)
    assert code == 1
    assert f"only A asks for tool {FIRST_TOOL}" in text
    assert "B has no end: the recording breaks off: it stops before the end of its run" in text
