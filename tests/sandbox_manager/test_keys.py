import pytest

from services.sandbox_manager.keys import (
    is_workspace_key,
    resource_key,
    session_key,
    tenant_problem,
    workspace_key,
)


@pytest.mark.spec("sandbox-manager:19.1")
def test_keys_are_those_that_the_peer_computes() -> None:
    assert session_key("tn_a", "s1") == "nylorun-tn_a-e8bc163c82eee187"
    assert resource_key("tn_a", "team-a/proj-42") == "nylorun-tn_a-sbx-98138bc3c1848a88"


def test_a_sandbox_id_wins_over_the_owner() -> None:
    assert workspace_key("tn_a", "s1", "team-a/proj-42") == resource_key("tn_a", "team-a/proj-42")
    assert workspace_key("tn_a", "s1", None) == session_key("tn_a", "s1")
    assert workspace_key("tn_a", "s1", "") == resource_key("tn_a", "")


@pytest.mark.parametrize(
    "key",
    [
        "nylorun-tn_a-e8bc163c82eee187",
        "nylorun-tn_a-sbx-98138bc3c1848a88",
    ],
)
def test_own_keys_are_known(key: str) -> None:
    assert is_workspace_key("tn_a", key)


@pytest.mark.spec("sandbox-manager:19.29")
@pytest.mark.parametrize(
    "key",
    [
        "nylorun-other-e8bc163c82eee187",
        "nylorun-tn_a-/../x",
        "nylorun-tn_a-e8bc163c82eee187/../x",
        "nylorun-tn_a-e8bc163c82eee187\n",
        "nylorun-tn_a-E8BC163C82EEE187",
        "nylorun-tn_a-sbx-sbx-98138bc3c1848a88",
        "nylorun-tn_a-e8bc163c82eee18",
        "nylorun-tnxa-e8bc163c82eee187",
        "records.json",
        "",
    ],
)
def test_keys_of_another_form_are_refused(key: str) -> None:
    assert not is_workspace_key("tn_a", key)


def test_a_tenant_is_no_pattern() -> None:
    assert not is_workspace_key("t.", "nylorun-tx-e8bc163c82eee187")


@pytest.mark.parametrize("tenant", ["", "a/b", "a\0b", "x" * 300, "\ud800"])
def test_tenants_that_no_folder_can_be_named_after_are_refused(tenant: str) -> None:
    assert tenant_problem(tenant) is not None


def test_ordinary_tenants_are_taken() -> None:
    assert tenant_problem("tn_a") is None
