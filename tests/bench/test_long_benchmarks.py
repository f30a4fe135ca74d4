"""Benchmarks at full length, held to their aims: `make long`."""

from __future__ import annotations

import pytest

from tests.bench.support import run_bench

pytestmark = [pytest.mark.long, pytest.mark.timeout(500)]


def test_a_thousand_model_calls_are_held_for_a_minute_and_cancelled_at_once() -> None:
    figures = run_bench("model_held", bound_s=480)["figures"]
    assert (figures["calls"], figures["seconds"]) == (1000, 60)
    for route in ("gate", "direct"):
        assert figures[f"{route}_failed"] == 0
        assert figures[f"{route}_peak_mib"] < 300
        assert figures[f"{route}_cancel_s"] < 3
