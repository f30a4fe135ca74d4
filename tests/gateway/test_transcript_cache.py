import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.runs.transcript_cache import TranscriptCache, estimated_size
from protocol.transcript import Entry, Update, list_size, updates


def entries(*sizes: int) -> list[Entry]:
    return [Entry.from_value("x" * (size - 2)) for size in sizes]


def test_only_the_same_cursor_hits():
    cache = TranscriptCache(1000)
    kept = entries(10)
    cache.put("s1", 4, kept, 12)
    assert cache.get("s1", 3) is None
    assert cache.get("s2", 4) is None
    hit = cache.get("s1", 4)
    assert hit is not None
    assert hit.entries is kept


def test_putting_replaces_the_session_and_counts_once():
    cache = TranscriptCache(100)
    cache.put("s1", 1, [], 60)
    cache.put("s1", 2, [], 70)
    assert cache.total_size == 70
    assert cache.get("s1", 1) is None


def test_least_recently_used_goes_first_and_a_miss_is_no_use():
    cache = TranscriptCache(100)
    cache.put("a", 1, [], 40)
    cache.put("b", 1, [], 40)
    assert cache.get("a", 1) is not None
    assert cache.get("b", 2) is None
    cache.put("c", 1, [], 40)
    assert cache.get("b", 1) is None
    assert cache.get("a", 1) is not None
    assert cache.get("c", 1) is not None


def test_an_entry_that_fills_the_budget_fits_and_a_larger_one_only_forgets():
    cache = TranscriptCache(100)
    cache.put("a", 1, [], 100)
    assert len(cache) == 1
    cache.put("a", 2, [], 101)
    assert len(cache) == 0
    assert cache.total_size == 0


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("put"), st.sampled_from("abcd"), st.integers(0, 60)),
            st.tuples(st.just("get"), st.sampled_from("abcd"), st.just(0)),
            st.tuples(st.just("drop"), st.sampled_from("abcd"), st.just(0)),
        )
    )
)
def test_the_total_is_the_sum_of_what_is_kept_and_within_the_budget(steps):
    cache = TranscriptCache(100)
    for step, session, size in steps:
        if step == "put":
            cache.put(session, 0, [], size)
        elif step == "get":
            cache.get(session, 0)
        else:
            cache.drop(session)
        assert cache.total_size == sum(kept.size for kept in cache._cached.values()) <= 100


def test_estimate_adds_what_is_new_to_what_was_known():
    before = entries(10, 10)
    after = [*before, *entries(20)]
    edits = updates(before, after)
    assert estimated_size(list_size(before), before, after, edits) == 23 + 22
    assert list_size(after) == 44


def test_estimate_scales_what_is_kept():
    before = entries(10, 10, 10)
    after = before[:1]
    edits = updates(before, after)
    assert edits == [Update(1, (), 1)]
    assert estimated_size(50, before, after, edits) == 17 + 2  # 16.67 rounds up


@pytest.mark.parametrize(("base", "rounded"), [(1, 1), (3, 2), (5, 3)])
def test_a_half_rounds_up(base, rounded):
    before = entries(10, 10)
    edits = [Update(1, (), 1)]
    assert estimated_size(base, before, before[:1], edits) == rounded + 2


def test_without_a_known_size_the_new_transcript_is_measured():
    before = entries(10)
    assert estimated_size(None, before, before, []) == 12
    assert estimated_size(7, before, before, []) == 7
    assert estimated_size(None, [], before, updates([], before)) == 12
