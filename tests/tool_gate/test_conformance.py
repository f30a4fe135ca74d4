"""The scenarios of the MCP conformance suite that the Tool Gate's client must pass, and why the others are not run."""

from __future__ import annotations

import pytest

from tests.docs.pages import DOCS
from tests.tool_gate.conformance import LEFT_OUT, SCENARIOS, NotThere, client_scenarios, reason, run

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def scenarios():
    """All scenarios for clients; skips where the suite is not installed."""
    try:
        return client_scenarios()
    except NotThere as missing:
        pytest.skip(str(missing))


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_client_passes(scenarios, scenario):
    assert scenario in scenarios
    ended = run(scenario)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_the_page_on_compatibility_gives_a_reason_for_every_other_scenario(scenarios):
    page = (DOCS / "compatibility.md").read_text("utf-8")
    others = [name for name in scenarios if name not in SCENARIOS]
    assert all(reason(name) for name in others)
    for beginning in LEFT_OUT:
        assert any(name.startswith(beginning) for name in others)
        assert f"`{beginning}" in page
    for scenario in SCENARIOS:
        assert f"`{scenario}`" in page
