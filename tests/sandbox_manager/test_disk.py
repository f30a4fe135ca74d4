import contextlib
import errno
import itertools
import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.sandbox_manager.contract import BackendError, FileTooLarge
from services.sandbox_manager.disk import lines as disk_lines
from services.sandbox_manager.disk.files import WorkspaceFiles
from services.sandbox_manager.disk.identity import file_pool
from services.sandbox_manager.disk.layout import Layout, Place
from services.sandbox_manager.disk.openat2 import openat2, openat2_problem
from services.sandbox_manager.disk.opening import InFolder
from services.sandbox_manager.disk.tree import empty_folder
from tests.sandbox_manager.support import identity

KEY = "nylorun-tn_a-0000000000000001"


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path, None)


@pytest.fixture
def place(layout: Layout) -> Iterator[Place]:
    opened = layout.open(KEY)
    yield opened
    opened.close()


@pytest.fixture
def workspace(place: Place) -> Path:
    return place.path / "workspace"


@pytest.fixture
def files(place: Place) -> WorkspaceFiles:
    return WorkspaceFiles(InFolder(place.folder))


def test_the_kernel_has_openat2() -> None:
    assert openat2_problem() is None


def test_a_path_with_a_nul_byte_is_refused(place: Place) -> None:
    with pytest.raises(OSError, match="NUL"):
        openat2(place.folder, b"/workspace/a\0b", os.O_RDONLY)


@pytest.mark.spec("sandbox-manager:19.25")
@pytest.mark.parametrize(
    "target",
    [
        "/etc/passwd",
        "../../../../../../etc/passwd",
        "/proc/self/root/etc/passwd",
        "/proc/self/environ",
        "/dev/zero",
        "inner/../../../../../etc/passwd",
    ],
)
def test_a_link_never_leads_out(files: WorkspaceFiles, workspace: Path, target: str) -> None:
    (workspace / "inner").mkdir()
    (workspace / "x").symlink_to(target)
    assert files.read_text("/workspace/x") is None
    assert files.read_bytes("/workspace/x", 10**6) is None
    assert files.read_lines("/workspace/x", 0, 10) is None
    listing = files.list_files("/workspace", 10)
    assert listing is not None
    assert listing.entries == []


def test_links_inside_the_workspace_lead_where_they_say(files: WorkspaceFiles, workspace: Path) -> None:
    (workspace / "real").write_text("here")
    (workspace / "absolute").symlink_to("/workspace/real")
    (workspace / "relative").symlink_to("real")
    (workspace / "folder").symlink_to("/workspace")
    for name in ("absolute", "relative", "folder/real"):
        assert files.read_text(f"/workspace/{name}") == "here"


def test_a_write_through_a_link_stays_inside(files: WorkspaceFiles, workspace: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("safe")
    (workspace / "x").symlink_to(outside)
    with pytest.raises(BackendError):
        files.write("/workspace/x", b"taken")
    assert outside.read_text() == "safe"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write into sealed folders; see the identity test")
def test_nothing_is_made_beside_the_two_folders(files: WorkspaceFiles, place: Place) -> None:
    with pytest.raises(BackendError):
        files.write("/beside", b"x")
    assert sorted(os.listdir(place.path)) == ["tmp", "workspace"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give its rights up")
def test_file_threads_have_only_the_rights_of_the_workspaces_user(tmp_path: Path) -> None:
    owner = identity()
    opened = Layout(tmp_path, owner).open(KEY)
    files = WorkspaceFiles(InFolder(opened.folder))
    secret = opened.path / "workspace" / "secret"
    secret.write_text("root's")
    secret.chmod(0o600)
    (opened.path / "workspace" / "link").symlink_to("/made")
    with file_pool(owner) as pool:
        files_of = pool.submit(files.write, "/workspace/a", b"x")
        files_of.result()
        for path in ("/beside", "/workspace/link"):
            with pytest.raises(BackendError, match="Permission denied"):
                pool.submit(files.write, path, b"x").result()
        with pytest.raises(BackendError, match="Permission denied"):
            pool.submit(files.read_text, "/workspace/secret").result()
    assert owner is not None
    assert (opened.path / "workspace" / "a").stat().st_uid == owner.uid
    assert sorted(os.listdir(opened.path)) == ["tmp", "workspace"]
    assert secret.read_text() == "root's"  # this thread is still root
    opened.close()


@pytest.mark.spec("sandbox-manager:19.20")
def test_what_is_no_regular_file_is_an_error_at_once(files: WorkspaceFiles, workspace: Path) -> None:
    (workspace / "folder").mkdir()
    os.mkfifo(workspace / "fifo")
    for name in ("folder", "fifo"):
        for read in (files.read_text, lambda path: files.read_lines(path, 0, 1)):
            with pytest.raises(BackendError, match=f"/workspace/{name} can't be read"):
                read(f"/workspace/{name}")
        with pytest.raises(BackendError, match="can't be written"):
            files.write(f"/workspace/{name}", b"x")


def test_missing_files_and_files_below_files_are_absent(files: WorkspaceFiles, workspace: Path) -> None:
    (workspace / "file").write_text("")
    for path in (
        "/workspace/none",
        "/workspace/file/below",
        "/workspace/file/",
        "/etc/passwd",
        "/usr/bin/env",
    ):
        assert files.read_bytes(path, 10) is None


def _long_ago(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a file count as one that was changed long before it is read."""
    later = max(os.stat(file).st_ctime_ns, os.stat(file).st_mtime_ns) + 10**9
    monkeypatch.setattr(disk_lines.time, "time_ns", lambda: later)


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"a", ["a"]),
        (b"a\n", ["a"]),
        (b"a\nb", ["a", "b"]),
        (b"a\n\nb\n\n", ["a", "", "b", ""]),
        (b"\xef\xbb\xbfa\r\n\xff\n", ["\ufeffa\r", "\ufffd"]),
        (b"\xe2\x82\n\xac\n", ["\ufffd", "\ufffd"]),
    ],
)
@pytest.mark.parametrize("chunk", [1, 2, 3, 1 << 20])
def test_lines_are_those_of_the_decoded_text(
    place: Place, data: bytes, lines: list[str], chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_lines, "CHUNK_BYTES", chunk)
    (place.path / "workspace" / "f").write_bytes(data)
    _long_ago(place.path / "workspace" / "f", monkeypatch)
    for start in range(4):
        for stop in range(5):
            opened = WorkspaceFiles(InFolder(place.folder))
            for _ in range(2):  # the second time from what was remembered
                page = opened.read_lines("/workspace/f", start, stop)
                assert page is not None
                assert (list(page.lines), page.total) == (lines[start:stop], len(lines))


def test_a_huge_line_costs_no_memory(files: WorkspaceFiles, workspace: Path) -> None:
    with (workspace / "f").open("wb") as file:
        file.truncate(40 * 1024 * 1024)
        file.seek(0, os.SEEK_END)
        file.write(b"\nend")
    page = files.read_lines("/workspace/f", 0, 5)
    assert page is not None
    assert page.total == 2
    assert len(page.lines[0]) == disk_lines.LINE_BYTES
    assert page.lines[1] == "end"


@settings(max_examples=200, deadline=None)
@given(
    pieces=st.lists(st.sampled_from([b"\n", b"a", b"bb\n", b"x" * 30, b"\n\n"]), max_size=20),
    chunk=st.integers(1, 9),
    pages=st.lists(st.tuples(st.integers(0, 25), st.integers(0, 25)), max_size=5),
)
def test_every_page_is_the_same_from_what_was_remembered(
    pieces: list[bytes], chunk: int, pages: list[tuple[int, int]]
) -> None:
    data = b"".join(pieces)
    lines = data.split(b"\n")
    if not lines[-1]:
        lines.pop()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(disk_lines, "CHUNK_BYTES", chunk)
        patched.setattr(disk_lines, "LINE_BYTES", 10)

        def read(size: int, offset: int) -> bytes:
            return data[offset : offset + size]

        index, _ = disk_lines._scan(read, 0, 0)
        assert index.total == len(lines)
        for start, stop in pages:
            expected = [line[:10].decode() for line in lines[start:stop]]
            assert disk_lines._scan(read, start, stop)[1] == expected
            assert disk_lines._page(index, read, start, stop) == expected


def test_a_page_of_a_file_that_was_counted_is_read_without_the_rest(
    files: WorkspaceFiles, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (workspace / "f").open("wb") as file:
        for number in range(200_000):
            file.write(b"%0100d\n" % number)
    _long_ago(workspace / "f", monkeypatch)
    reads: list[int] = []
    real = os.pread
    monkeypatch.setattr(os, "pread", lambda *args: (reads.append(args[2]), real(*args))[1])
    first = files.read_lines("/workspace/f", 150_000, 150_002)
    assert first is not None
    assert len(reads) > 15
    reads.clear()
    second = files.read_lines("/workspace/f", 150_002, 150_004)
    assert second is not None
    assert second.lines == [f"{number:0100d}" for number in (150_002, 150_003)]
    assert second.total == first.total == 200_000
    assert len(reads) <= 2
    (workspace / "f").write_bytes(b"other\n")
    third = files.read_lines("/workspace/f", 0, 1)
    assert third is not None
    assert (third.lines, third.total) == (["other"], 1)


def test_a_file_that_was_changed_just_now_is_not_remembered(files: WorkspaceFiles, workspace: Path) -> None:
    for content in (b"1\n2\n", b"123\n"):
        (workspace / "f").write_bytes(content)
        page = files.read_lines("/workspace/f", 0, 9)
        assert page is not None
        assert page.total == content.count(b"\n")


def test_so_many_files_are_remembered(
    files: WorkspaceFiles, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_lines, "KEPT_INDEXES", 3)
    for number in range(6):
        (workspace / str(number)).write_bytes(b"a\n")
        _long_ago(workspace / str(number), monkeypatch)
        files.read_lines(f"/workspace/{number}", 0, 1)
    assert len(files._indexes._kept) == 3


def test_files_over_the_limit_are_not_read(files: WorkspaceFiles, workspace: Path) -> None:
    (workspace / "f").write_bytes(b"12345")
    assert files.read_bytes("/workspace/f", 5) == b"12345"
    with pytest.raises(FileTooLarge) as raised:
        files.read_bytes("/workspace/f", 4)
    assert (raised.value.path, raised.value.size, raised.value.max_bytes) == ("/workspace/f", 5, 4)


def test_overwriting_leaves_nothing_of_the_old_content(files: WorkspaceFiles, workspace: Path) -> None:
    files.write("/workspace/f", b"long content")
    files.write("/workspace/f", b"short")
    files.write("/tmp/f", b"elsewhere")
    assert (workspace / "f").read_bytes() == b"short"
    assert stat.S_IMODE((workspace / "f").stat().st_mode) & 0o077 == 0o044


@pytest.mark.parametrize(
    ("path", "complaint"),
    [
        ("/workspace/a/b/c", None),
        ("/workspace", None),
        ("/", None),
        ("/workspace/file/below", "mkdir: cannot create directory ‘/workspace/file’: Not a directory"),
        ("/workspace/file", "mkdir: cannot create directory ‘/workspace/file’: File exists"),
        ("/workspace/dangling/x", "mkdir: cannot create directory ‘/workspace/dangling’: File exists"),
        ("/workspace/folder/x", None),
        ("/elsewhere/x", "mkdir: cannot create directory ‘/elsewhere’: Read-only file system"),
    ],
)
def test_folders_are_made_as_mkdir_makes_them(
    files: WorkspaceFiles, workspace: Path, path: str, complaint: str | None
) -> None:
    (workspace / "file").write_text("")
    (workspace / "dangling").symlink_to("nowhere")
    (workspace / "target").mkdir()
    (workspace / "folder").symlink_to("/workspace/target")
    assert files.make_folders(path) == complaint
    if complaint is None and path.startswith("/workspace/"):
        assert files.make_folders(path) is None


@pytest.mark.spec("sandbox-manager:19.28")
def test_a_listing_has_regular_files_in_order_and_one_more_than_asked_for(
    files: WorkspaceFiles, workspace: Path
) -> None:
    for name in ("b/z", "b/a", "a.txt", ".hidden", "c/.git/x", "é"):
        (workspace / name).parent.mkdir(parents=True, exist_ok=True)
        (workspace / name).write_text(name)
    (workspace / "empty").mkdir()
    (workspace / "link").symlink_to("a.txt")
    (workspace / "links").symlink_to("b")
    os.mkfifo(workspace / "fifo")
    whole = files.list_files("/workspace", 100)
    assert whole is not None
    assert [(entry.path, entry.size) for entry in whole.entries] == [
        (".hidden", 7), ("a.txt", 5), ("b/a", 3), ("b/z", 3), ("c/.git/x", 8), ("é", 2),
    ]  # fmt: skip
    assert not whole.truncated
    part = files.list_files("/workspace/", 2)
    assert part is not None
    assert ([entry.path for entry in part.entries], part.truncated) == ([".hidden", "a.txt", "b/a"], True)
    for path in ("/workspace/links", "/workspace/a.txt", "/workspace/none", "/etc"):
        assert files.list_files(path, 10) is None
    inner = files.list_files("/workspace/b", 2)
    assert inner is not None
    assert ([entry.path for entry in inner.entries], inner.truncated) == (["a", "z"], False)


def test_a_deep_tree_is_listed(files: WorkspaceFiles, workspace: Path) -> None:
    deep = workspace.joinpath(*["d"] * 300)
    deep.mkdir(parents=True)
    (deep / "f").write_text("")
    listing = files.list_files("/workspace", 10)
    assert listing is not None
    assert [entry.path for entry in listing.entries] == ["d/" * 300 + "f"]


# Folders of workspaces


def test_opening_keeps_the_workspace_and_empties_tmp(layout: Layout, place: Place, workspace: Path) -> None:
    (workspace / "kept").write_text("x")
    (place.path / "tmp" / "gone").mkdir()
    (place.path / "tmp" / "gone" / "file").write_text("x")
    layout.open(KEY).close()
    assert (workspace / "kept").exists()
    assert os.listdir(place.path / "tmp") == []


def test_stopping_empties_tmp(layout: Layout, place: Place) -> None:
    (place.path / "tmp" / "f").write_text("x")
    layout.empty_tmp(KEY)
    assert os.listdir(place.path / "tmp") == []
    layout.empty_tmp("nylorun-tn_a-00000000000000ff")


def test_removing_deletes_whatever_its_modes_say(
    layout: Layout, place: Place, workspace: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "safe").write_text("x")
    locked = workspace.joinpath(*["d"] * 400)
    locked.mkdir(parents=True)
    (locked / "f").write_text("")
    (workspace / "link").symlink_to(outside)
    (workspace / "closed").mkdir()
    (workspace / "closed" / "f").write_text("")
    (workspace / "closed").chmod(0)
    layout.remove(KEY)
    layout.remove(KEY)
    assert not place.path.exists()
    assert layout.keys("nylorun-tn_a-") == []
    assert os.listdir(tmp_path / ".removed") == []
    assert (outside / "safe").exists()


def test_an_unfinished_deletion_is_ended_later(layout: Layout, tmp_path: Path) -> None:
    left = tmp_path / ".removed" / f"{KEY}.0a"
    (left / "workspace" / "a").mkdir(parents=True)
    layout.prepare()
    assert not left.exists()


def test_only_folders_with_the_prefix_are_keys(layout: Layout, place: Place, tmp_path: Path) -> None:
    (tmp_path / "nylorun-other-1").mkdir()
    (tmp_path / "nylorun-tn_a-file").write_text("")
    (tmp_path / "nylorun-tn_a-link").symlink_to("/")
    assert layout.keys("nylorun-tn_a-") == [KEY]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make files of other users")
def test_a_volume_of_another_user_is_taken_over(tmp_path: Path) -> None:
    folder = tmp_path / KEY / "workspace" / "a"
    folder.mkdir(parents=True)
    (folder / "link").symlink_to("/etc/passwd")
    owner = identity()
    assert owner is not None
    Layout(tmp_path, owner).open(KEY).close()
    assert folder.stat().st_uid == owner.uid
    assert os.lstat(folder / "link").st_uid == owner.uid
    assert os.stat("/etc/passwd").st_uid == 0


def test_a_root_that_is_gone_is_an_error_for_people(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "none", None)
    with pytest.raises(BackendError, match=os.strerror(errno.ENOENT)):
        layout.open(KEY)


# Races


class _Flipping:
    """Makes one name a folder of the workspace, a link out of it and back again, as fast as it can."""

    def __init__(self, workspace: Path, outside: Path) -> None:
        self._workspace = workspace
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.turns = 0
        (workspace / "real").mkdir()
        (workspace / "real" / "f").write_text("inside")
        (workspace / "out").symlink_to(outside)
        (workspace / "round").symlink_to("real/../../../" + str(outside))

    def _run(self) -> None:
        names = itertools.cycle(("real", "out", "round"))
        while not self._stop.is_set():
            name = next(names)
            held, shown = self._workspace / name, self._workspace / "x"
            self.turns += 1
            try:
                held.rename(shown)
                shown.rename(held)
            except OSError:
                # A tool has made a folder of that name meanwhile.
                shown.rename(self._workspace / f"made-{self.turns}")
                if not held.is_symlink() and not held.exists():
                    return

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()


def test_a_name_that_changes_under_the_tools_never_leads_out(
    files: WorkspaceFiles, workspace: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "f").write_text("secret")
    seen: set[bytes | None] = set()
    with _Flipping(workspace, outside) as flipping:
        for number in range(300):
            with contextlib.suppress(BackendError):
                seen.add(files.read_bytes("/workspace/x/f", 100))
            with contextlib.suppress(BackendError):
                files.write("/workspace/x/g", b"w")
            with contextlib.suppress(BackendError):
                files.make_folders(f"/workspace/x/made-{number % 10}/deeper")
            if number % 10 == 0:
                listed = files.list_files("/workspace", 100)
                assert listed is not None
                assert all(entry.size != len("secret") + 1 for entry in listed.entries)
        turns = flipping.turns
    assert turns > 10
    assert seen <= {None, b"inside"}
    assert sorted(path.name for path in outside.iterdir()) == ["f"]
    assert (outside / "f").read_text() == "secret"


def test_removing_while_links_change_takes_nothing_outside(
    layout: Layout, place: Place, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "f").write_text("secret")
    with _Flipping(place.path / "workspace", outside):
        for _ in range(20):
            folder = os.open(place.path / "tmp", os.O_RDONLY | os.O_DIRECTORY)
            for number in range(10):
                os.mkdir(f"d{number}", dir_fd=folder)
                os.symlink(outside, f"d{number}/l", dir_fd=folder)
                os.symlink(outside, f"l{number}", dir_fd=folder)
            empty_folder(folder)
            assert os.listdir(folder) == []
            os.close(folder)
    layout.remove(KEY)
    assert not place.path.exists()
    assert (outside / "f").read_text() == "secret"


def test_a_hard_link_is_a_file_like_any_other_and_a_sparse_one_has_its_size(
    files: WorkspaceFiles, workspace: Path
) -> None:
    (workspace / "a").write_text("one")
    os.link(workspace / "a", workspace / "b")
    files.write("/workspace/b", b"two")
    assert files.read_bytes("/workspace/a", 10) == b"two"
    with open(workspace / "sparse", "wb") as sparse:
        sparse.truncate(2**40)
    with pytest.raises(FileTooLarge):
        files.read_bytes("/workspace/sparse", 10**9)
    with pytest.raises(FileTooLarge):
        files.read_text("/workspace/sparse")
    listed = files.list_files("/workspace", 10)
    assert listed is not None
    assert [(entry.path, entry.size) for entry in listed.entries] == [("a", 3), ("b", 3), ("sparse", 2**40)]
