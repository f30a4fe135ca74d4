"""The seven codes and how any exception becomes one."""

from __future__ import annotations

import pytest

from protocol.errors import ERROR_CODES, HarnessApiError, is_error_code, to_harness_api_error


def test_there_are_seven_codes() -> None:
    assert len(ERROR_CODES) == 7
    assert all(map(is_error_code, ERROR_CODES))
    assert not any(map(is_error_code, ["odd", "", None, 1, ["invalid"]]))


class Coded(Exception):
    def __init__(self, code: object) -> None:
        super().__init__("text")
        self.code = code


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Coded("ownership_lost"), "ownership_lost"),
        (Coded("model.failed"), "internal"),
        (Coded(404), "internal"),
        (ValueError("text"), "internal"),
    ],
)
def test_an_exception_keeps_a_code_of_the_seven_and_is_internal_otherwise(
    error: Exception, code: str
) -> None:
    refusal = to_harness_api_error(error)
    assert (refusal.code, refusal.message) == (code, "text")


def test_a_refusal_stays_itself() -> None:
    refusal = HarnessApiError("effect_drift", "other request")
    assert to_harness_api_error(refusal) is refusal
    assert str(refusal) == "other request"
