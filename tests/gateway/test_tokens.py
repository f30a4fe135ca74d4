import pytest

from gateway.tokens import MAX_SESSIONS, RunTokens


def test_the_latest_token_of_a_session_counts():
    tokens = RunTokens()
    tokens.grant("s1", 1, "one", None)
    tokens.grant("s1", 1, "two", "2030-01-01T00:00:00.000Z")
    tokens.grant("s2", 1, "other", None)
    assert tokens.current("s1") == "two"
    assert tokens.current("s2") == "other"
    assert tokens.current("s3") is None


@pytest.mark.spec("model-executor:15.21")
def test_a_grant_without_a_token_changes_nothing():
    tokens = RunTokens()
    tokens.grant("s1", 1, "one", None)
    tokens.grant("s1", 2, None, None)
    tokens.grant("s1", 2, "", None)
    assert tokens.current("s1") == "one"


def test_an_older_epoch_never_replaces_a_newer_one():
    tokens = RunTokens()
    tokens.grant("s1", 2, "new", None)
    tokens.grant("s1", 1, "old", None)
    assert tokens.current("s1") == "new"


def test_the_least_recently_granted_session_goes_first():
    tokens = RunTokens(max_sessions=2)
    tokens.grant("s1", 1, "one", None)
    tokens.grant("s2", 1, "two", None)
    tokens.grant("s1", 2, "one again", None)
    assert tokens.current("s2") == "two"  # asking is not granting
    tokens.grant("s3", 1, "three", None)
    assert [tokens.current(session) for session in ("s1", "s2", "s3")] == ["one again", None, "three"]
    assert len(tokens) == 2


@pytest.mark.spec("model-executor:15.21")
def test_ten_thousand_sessions_are_kept_and_a_new_grant_saves_an_old_one():
    tokens = RunTokens()
    for number in range(MAX_SESSIONS // 2):
        tokens.grant(f"s{number}", 1, "t", None)
    tokens.grant("s0", 1, "again", None)
    for number in range(MAX_SESSIONS // 2, MAX_SESSIONS + 1):
        tokens.grant(f"s{number}", 1, "t", None)
    assert len(tokens) == MAX_SESSIONS == 10_000
    assert tokens.current("s0") == "again"
    assert tokens.current("s1") is None
    assert tokens.current("s2") == "t"


def test_tokens_are_not_shown():
    tokens = RunTokens()
    tokens.grant("s1", 1, "secret", None)
    assert "secret" not in repr(tokens._tokens)
