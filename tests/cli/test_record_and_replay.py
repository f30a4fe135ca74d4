"""Whatever an engine did, its recording replays: every recorded segment of the vectors, recorded by us."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from cli.recordings.replaying import replay
from gateway.engine.factory import make_engine
from gateway.recording.reader import read_recording
from gateway.recording.recorder import RecordedEngine, Recorder, UsedRouting
from gateway.runs.manifests import SharedManifest
from gateway.runs.output import thrown_output, turn_output
from protocol import jsjson
from protocol.canonical import request_hash
from protocol.methods import Grant, TurnStart, check_result
from tests.gateway.recorded import CLOSE_BOUND_S, recorder_in
from tests.vectors import segment_host
from tests.vectors.files import records

DATA = Path(__file__).parents[1] / "vectors" / "data"
FILES = [
    *sorted((DATA / "segments").glob("*.json")),
    *sorted((DATA / "flows").glob("*.json")),
    DATA / "random" / "compaction.jsonl",
    DATA / "random" / "agents-01.jsonl",
]


def engine_of(manifest: Any) -> Any:
    return "flow" if manifest.get("kind") == "workflow" else "agent"


def lease_of(manifest: Any, given: Any) -> tuple[Grant, TurnStart]:
    """A lease as core would send it."""
    checkpoint = {"turnId": "t", **given["checkpoint"]}
    limits = {"yieldAfter": given.get("yieldAfter"), "flowLimits": given.get("limits")}
    options = {"fixtureModel": False, **{name: value for name, value in limits.items() if value is not None}}
    lease = {
        "run": {"runId": "r", "sessionId": "s", "turnId": "t", "epoch": 1},
        "input": {
            "type": "turn.start",
            "engine": engine_of(manifest),
            "manifest": manifest,
            "checkpoint": checkpoint,
            "sessionTools": given.get("sessionTools", []),
            "outcomes": given.get("outcomes", []),
            "transcript": {"cursor": -1},
            "options": options,
            "routing": {"rootManifest": manifest, "pluginRoots": {}},
        },
    }
    result: Any = check_result("lease", lease)
    return result.run, result.input


def record_step(recorder: Recorder, monkeypatch: Any, manifest: Any, step: Any) -> None:
    """Plays a step of a case with its engine recorded."""
    grant, start = lease_of(manifest, step["input"])
    recordings = []

    def recorded(kind: Any, segment: Any, definitions: Any = None) -> Any:
        recording = recorder.begin(grant, start, segment, UsedRouting(SharedManifest(segment.manifest, 0)))
        recordings.append(recording)
        seen = segment.observe

        def observe(effect: Any, known: bool) -> None:
            recording.observe(effect, known)
            # An abort that comes while an effect is asked for comes from here, and is recorded after it.
            seen(effect, known)

        observed = dataclasses.replace(segment, observe=observe)
        return RecordedEngine(make_engine(kind, observed), recording)

    monkeypatch.setattr(segment_host, "make_engine", recorded)
    played = segment_host.play(engine_of(manifest), manifest, step["input"], step.get("answers", {}))
    (recording,) = recordings
    if played.refused is not None:
        recording.end(*thrown_output("r", played.refused.code, played.refused.message))
    else:
        assert played.result is not None
        recording.end(*turn_output("r", played.result, played.transcript))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_recorded_segment_replays_the_same(path, tmp_path, monkeypatch):
    cases = (
        [record for _, record in records(path)]
        if path.suffix == ".jsonl"
        else [jsjson.loads(path.read_bytes())]
    )
    recorder = recorder_in(tmp_path, max_file_bytes=1 << 28, max_folder_bytes=1 << 30)
    asked = 0
    for case in cases:
        for step in case["steps"]:
            record_step(recorder, monkeypatch, step["input"].get("manifest", case["manifest"]), step)
    assert recorder.close(CLOSE_BOUND_S)
    files = sorted(tmp_path.iterdir())
    assert len(files) == sum(len(case["steps"]) for case in cases)
    for file in files:
        recording = read_recording(file)
        assert (recording.broken, recording.cut) == (None, None)
        replayed, _ = replay(recording)
        assert replayed.drift is None
        assert [one.effect_id for one in replayed.same] == [one.effect_id for one in recording.effects()]
        for one in recording.effects():
            assert request_hash(one.document) == one.request_hash
        asked += len(replayed.same)
    assert asked or path.stem == "resume-without-pause"
