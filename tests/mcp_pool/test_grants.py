"""Run tokens of sessions."""

from __future__ import annotations

from services.mcp_pool.grants import Grants


def test_the_newest_epoch_wins_and_the_same_epoch_renews():
    grants = Grants()
    assert grants.put("t", "s", 2, "two", "")
    assert not grants.put("t", "s", 1, "one", "")
    assert grants.token("t", "s") == "two"
    assert grants.put("t", "s", 2, "renewed", "")
    assert grants.put("t", "s", 3, "three", "")
    assert grants.token("t", "s") == "three"


def test_a_grant_without_a_token_changes_nothing():
    grants = Grants()
    assert grants.put("t", "s", 1, None, "")
    assert grants.token("t", "s") is None
    grants.put("t", "s", 1, "one", "")
    assert grants.put("t", "s", 5, "", "")
    assert grants.token("t", "s") == "one"


def test_the_least_recently_granted_session_is_dropped_first():
    grants = Grants(limit=2)
    grants.put("t", "a", 1, "a", "")
    grants.put("t", "b", 1, "b", "")
    grants.put("t", "a", 1, "a2", "")
    grants.put("t", "c", 1, "c", "")
    assert [grants.token("t", session) for session in "abc"] == ["a2", None, "c"]
    assert len(grants) == 2


def test_tenants_do_not_share_and_tokens_do_not_show():
    grants = Grants()
    grants.put("t1", "s", 1, "secret-token", "2026-01-01T00:00:00Z")
    assert grants.token("t2", "s") is None
    assert "secret-token" not in repr(vars(grants))
