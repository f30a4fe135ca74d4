"""The runner itself: what it takes, what it prints, how it exits."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.vectors.__main__ import main
from tests.vectors.checks import DATA
from tests.vectors.files import kind_of


def last_lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("frames.jsonl", "frames"),
        ("random/agents-07.jsonl", "agents"),
        ("json_schema_details.jsonl", "json_schema_details"),
        ("segments/pause-approval.json", "segments"),
        ("README.md", None),
    ],
)
def test_a_file_s_kind_is_in_its_name_or_folder(path: str, kind: str | None) -> None:
    assert kind_of(DATA / path) == kind


def test_a_single_file_is_counted_by_kind_and_in_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(DATA / "frames.jsonl")]) == 0
    assert last_lines(capsys)[-2:] == [
        "frames: 196 passed, 0 failed, 0 not built",
        "total: 196 passed, 0 failed, 0 not built",
    ]


def test_any_folder_of_the_format_is_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(DATA / "request_hash.jsonl", tmp_path / "request_hash-03.jsonl")
    (tmp_path / "deeper").mkdir()
    shutil.copy(DATA / "random" / "frames.jsonl", tmp_path / "deeper")
    assert main([str(tmp_path)]) == 0
    assert last_lines(capsys)[-3:] == [
        "frames: 100 passed, 0 failed, 0 not built",
        "request_hash: 23 passed, 0 failed, 0 not built",
        "total: 123 passed, 0 failed, 0 not built",
    ]


def test_a_failure_is_named_and_makes_the_exit_status_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "frames.jsonl").write_text(
        '{"kind":"frame","value":{"t":"ping"},"ok":true}\n{"kind":"frame","value":{"t":"ping"},"ok":false}\n'
    )
    assert main([str(tmp_path)]) == 1
    failed, *counts = last_lines(capsys)
    assert failed.startswith("failed: frames: frames.jsonl:2 frame: ")
    assert counts == ["frames: 1 passed, 1 failed, 0 not built", "total: 1 passed, 1 failed, 0 not built"]


def test_unknown_files_are_named_and_do_not_fail_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "pudding.jsonl").write_text("{}\n")
    assert main([str(tmp_path)]) == 0
    first, second, total = last_lines(capsys)
    assert first == f"not known: {tmp_path / 'notes.txt'}"
    assert second == f"not known: {tmp_path / 'pudding.jsonl'}"
    assert total == "total: 0 passed, 0 failed, 0 not built"


def test_a_file_that_is_not_json_is_a_failed_case(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "frames.jsonl").write_text("{nonsense}\n")
    assert main([str(tmp_path)]) == 1
    assert "the runner broke down: JsonError" in last_lines(capsys)[0]


def test_a_path_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "nowhere")]) == 2
    assert "no such file or folder" in capsys.readouterr().err
