import pytest

from gateway.backoff import Backoff


def backoff(*chances: float) -> Backoff:
    numbers = iter(chances)
    return Backoff(0.5, 10.0, lambda: next(numbers, 0.999999))


def test_first_wait_is_exactly_the_minimum_whatever_chance_says():
    assert backoff(0.99).next_wait_s(0.0) == 0.5


def test_ceilings_double_up_to_the_maximum():
    highest = backoff()
    waits = [highest.next_wait_s(0.0) for _ in range(8)]
    assert waits == pytest.approx([0.5, 1, 2, 4, 8, 10, 10, 10], rel=1e-4)


def test_lowest_wait_stays_the_minimum():
    lowest = Backoff(0.5, 10.0, lambda: 0.0)
    assert [lowest.next_wait_s(0.0) for _ in range(6)] == [0.5] * 6


@pytest.mark.spec("harness-api:10.2")
def test_an_attempt_longer_than_the_maximum_starts_again():
    waits = backoff(*[0.9] * 9)
    for _ in range(5):
        waits.next_wait_s(0.1)
    assert waits.next_wait_s(11.0) == 0.5
    assert 0.5 < waits.next_wait_s(10.0) < 1.0


def test_a_thousand_failures_stay_in_bounds():
    waits = Backoff(0.5, 10.0)
    assert all(0.5 <= waits.next_wait_s(0.0) < 10.0 for _ in range(1000))
