"""Run tokens of sessions."""

from __future__ import annotations

from services.mcp_pool.grants import Grants
from services.mcp_pool.session import Session


def test_the_newest_epoch_wins_and_the_same_epoch_renews():
    grants = Grants()
    assert grants.put(Session("t", "s"), 2, "two", "")
    assert not grants.put(Session("t", "s"), 1, "one", "")
    assert grants.token(Session("t", "s")) == "two"
    assert grants.put(Session("t", "s"), 2, "renewed", "")
    assert grants.put(Session("t", "s"), 3, "three", "")
    assert grants.token(Session("t", "s")) == "three"


def test_a_grant_without_a_token_changes_nothing():
    grants = Grants()
    assert grants.put(Session("t", "s"), 1, None, "")
    assert grants.token(Session("t", "s")) is None
    grants.put(Session("t", "s"), 1, "one", "")
    assert grants.put(Session("t", "s"), 5, "", "")
    assert grants.token(Session("t", "s")) == "one"


def test_the_least_recently_granted_session_is_dropped_first():
    grants = Grants(limit=2)
    grants.put(Session("t", "a"), 1, "a", "")
    grants.put(Session("t", "b"), 1, "b", "")
    grants.put(Session("t", "a"), 1, "a2", "")
    grants.put(Session("t", "c"), 1, "c", "")
    assert [grants.token(Session("t", session)) for session in "abc"] == ["a2", None, "c"]
    assert len(grants) == 2


def test_tenants_do_not_share_and_tokens_do_not_show():
    grants = Grants()
    grants.put(Session("t1", "s"), 1, "secret-token", "2026-01-01T00:00:00Z")
    assert grants.token(Session("t2", "s")) is None
    assert "secret-token" not in repr(vars(grants))


def test_a_token_of_unknown_epoch_only_fills_a_gap():
    grants, session = Grants(), Session("t", "s")
    grants.offer(session, "first")
    grants.offer(session, "second")
    assert grants.token(session) == "first"
    assert grants.put(session, 1, "granted", "")
    grants.offer(session, "third")
    assert grants.token(session) == "granted"
