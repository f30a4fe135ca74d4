"""The console's benchmark in a real browser, with a short session."""

from __future__ import annotations

import pytest

from tests.bench.support import run_bench
from tests.browser.support import why_none

pytestmark = [pytest.mark.browser, pytest.mark.timeout(120)]


def test_the_console_is_painted_opened_and_scrolled() -> None:
    reason = why_none()
    if reason is not None:
        pytest.skip(reason)
    figures = run_bench("console", "--events", "200", "--rounds", "1", "--frames", "20")["figures"]
    assert figures["events"] == 200
    assert 0 < figures["paint_ms"] < 5 * 500
    assert 0 < figures["session_paint_ms"] <= figures["open_worst_ms"]
    assert 0 < figures["scroll_frame_ms_p50"] <= figures["scroll_worst_frame_ms"]
