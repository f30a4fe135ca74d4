from __future__ import annotations

import pytest

from protocol.steps import MAX_NESTING, NestingError, Steps, run_steps


def count(levels: int) -> Steps[int]:
    return 0 if levels == 0 else 1 + (yield count(levels - 1))


def fail() -> Steps[int]:
    yield count(1)
    raise KeyError("kettle")


def test_calls_return_to_their_callers() -> None:
    assert run_steps(count(0)) == 0
    assert run_steps(count(5_000)) == 5_000


def test_an_error_comes_out_as_it_is() -> None:
    with pytest.raises(KeyError, match="kettle"):
        run_steps(fail())


def test_too_many_waiting_calls_are_an_error_of_their_own() -> None:
    assert run_steps(count(MAX_NESTING)) == MAX_NESTING
    with pytest.raises(NestingError):
        run_steps(count(MAX_NESTING + 1))
