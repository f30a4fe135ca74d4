import pytest

from services.sandbox_manager.paths import dirname, resolve


@pytest.mark.parametrize(
    ("path", "resolved"),
    [
        ("a/b", "/workspace/a/b"),
        ("./a//b/../c", "/workspace/a/c"),
        ("/etc/passwd", "/etc/passwd"),
        ("../../../etc", "/etc"),
        ("/..", "/"),
        ("a/", "/workspace/a/"),
        ("", "/workspace"),
        (".", "/workspace"),
        ("/", "/"),
        ("/workspace", "/workspace"),
    ],
)
def test_paths_are_made_absolute_and_plain(path: str, resolved: str) -> None:
    assert resolve(path) == resolved


@pytest.mark.parametrize(
    ("path", "resolved"),
    [
        ("/workspace", "/sandbox"),
        ("/workspace/a", "/sandbox/a"),
        ("/workspaces/a", "/workspaces/a"),
        ("a", "/sandbox/a"),
    ],
)
def test_the_usual_name_leads_to_another_workspace_folder(path: str, resolved: str) -> None:
    assert resolve(path, "/sandbox") == resolved


@pytest.mark.parametrize(("path", "above"), [("/a/b", "/a"), ("/a", "/"), ("/", "/"), ("/a/b/", "/a")])
def test_the_folder_of_a_path(path: str, above: str) -> None:
    assert dirname(path) == above
