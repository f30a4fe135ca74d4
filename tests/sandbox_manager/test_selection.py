import pytest

from services.sandbox_manager.contract import Probe
from services.sandbox_manager.selection import Probes, Selector, choose
from tests.sandbox_manager.support import FakeBackend


@pytest.mark.parametrize("preference", ["", " AUTO ", "auto", "Virtual"])
async def test_backends_are_probed_once_and_the_usable_one_is_taken(preference: str) -> None:
    backend = FakeBackend()
    selector = Selector(preference, Probes([backend]))
    assert selector.made is None
    first = await selector.select()
    assert first is await selector.select()
    assert first.backend is backend
    assert backend.probes == 1
    assert first.report() == {
        "preference": preference.strip().lower() or "auto",
        "backend": "virtual",
        "isolation": "process",
        "reason": "virtual",
        "probes": [{"name": "virtual", "available": True, "isolation": "process", "version": "1.0"}],
        "defaultImage": "python:3.13-slim",
    }


@pytest.mark.spec("sandbox-manager:19.10")
@pytest.mark.parametrize("preference", ["microsandbox", "local", "docker"])
async def test_an_unknown_preference_takes_no_backend_and_reports_auto(preference: str) -> None:
    selection = await Selector(preference, Probes([FakeBackend()])).select()
    report = selection.report()
    assert (report["preference"], report["backend"], report["isolation"]) == ("auto", None, None)
    assert preference in str(report["reason"])


async def test_auto_passes_over_what_is_broken_and_says_so() -> None:
    first, second = FakeBackend(available=False), FakeBackend("local")
    selection = await Selector("auto", Probes([first, second])).select()
    assert selection.backend is second
    assert selection.reason == "it is broken"


def test_an_explicit_choice_never_falls_back() -> None:
    broken, other = FakeBackend(available=False), FakeBackend("local")
    probes = [Probe("virtual", False, "process", "it is broken"), Probe("local", True, "process")]
    selection = choose("virtual", [broken, other], probes)
    assert selection.backend is None
    assert selection.reason == "it is broken"


def test_without_backends_there_is_a_reason() -> None:
    assert choose("auto", [], []).reason
