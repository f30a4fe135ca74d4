"""The watch over keys and tokens finds what it must, wherever it is cut, and a run that leaks fails."""

import subprocess
import sys
from pathlib import Path

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from tests.leaks.hooks import look_at_files
from tests.leaks.watch import Watch

VALUE = "a-value-that-nobody-may-see"
ROOT = Path(__file__).resolve().parents[2]


def watch():
    made = Watch()
    made.learn(VALUE, "the value")
    return made


def test_a_registered_secret_is_found_and_named_but_not_shown():
    it = watch()
    it.test = "test_x"
    it.said("a log", f"before {VALUE} after")
    assert [str(hit) for hit in it.hits] == ["the value in a log (test_x)"]
    it.said("a log", "nothing of interest")
    assert len(it.hits) == 1


@pytest.mark.parametrize("cut", range(1, len(VALUE)))
def test_a_secret_that_is_cut_between_two_pieces_of_one_source_is_found(cut):
    it = watch()
    it.said("a", VALUE[:cut])
    it.said("b", VALUE[cut:])
    assert it.hits == []
    it.said("a", VALUE[cut:])
    assert len(it.hits) == 1


def test_a_run_token_of_a_core_is_found_by_its_shape():
    it = Watch()
    token = jwt.encode({"sub": "s" * 20}, ec.generate_private_key(ec.SECP256R1()), "ES256")
    it.said("a log", f'{{"token":"{token}"}}')
    it.said("another", f"{token.split('.')[0]}.{token.split('.')[1]}")  # not signed: no token
    assert [hit.what for hit in it.hits] == ["a signed JWT"]


def test_what_a_test_shows_on_purpose_is_not_looked_at():
    it = watch()
    it.allowed = True
    it.said("a log", VALUE)
    assert it.hits == []


def test_logs_and_recordings_are_looked_at_and_other_files_are_not(tmp_path):
    it = watch()
    (tmp_path / "recordings").mkdir()
    (tmp_path / "tokens").mkdir()
    (tmp_path / "tokens" / "core").write_text(VALUE)
    assert look_at_files(it, tmp_path) == 0
    (tmp_path / "recordings" / "run").write_text(VALUE)
    (tmp_path / "gateway.log").write_text(VALUE)
    assert look_at_files(it, tmp_path) == 2
    assert {hit.source for hit in it.hits} == {"the file gateway.log", "the file recordings/run"}


LEAKS = {
    "printed": "print(KEY)",
    "logged": "from services.common.logs import get_logger; get_logger().info('x', error=KEY)",
    "child": "import subprocess, sys; subprocess.run([sys.executable, '-c', f'print({KEY!r})'], capture_output=True)",
    "async child": (
        "import asyncio, sys\n"
        "    async def run():\n"
        "        p = await asyncio.create_subprocess_exec(sys.executable, '-c', f'print({KEY!r})', stdout=-1)\n"
        "        await p.communicate()\n"
        "    asyncio.run(run())"
    ),
    "file": "(tmp_path / 'x.log').write_text(KEY)",
    "span": (
        "from opentelemetry.sdk.trace import TracerProvider\n"
        "    span = TracerProvider().get_tracer('x').start_span('x')\n"
        "    span.set_attribute('error', KEY)\n"
        "    span.end()"
    ),
    "call": (
        "import services.common.grpc_env, grpc\n"
        "    grpc.aio.AioRpcError(grpc.StatusCode.INTERNAL, grpc.aio.Metadata(), grpc.aio.Metadata(), details=KEY)"
    ),
}


def run_with(folder, body, *more):
    """A pytest of its own over a test file; its exit code and what it said."""
    folder.mkdir()
    (folder / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    # Put together, so that this very run does not find it in the file.
    head = "from tests.leaks.watch import secret\nKEY = secret('no-' + 'body-may-' + 'say-this')\n\n"
    (folder / "test_leak.py").write_text(head + body)
    options = [
        "-c",
        "/dev/null",
        f"--rootdir={folder}",
        f"--basetemp={folder}/base",
        "-p",
        "no:cacheprovider",
        *more,
    ]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *options, str(folder)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=90,
        check=False,
    )
    return done.returncode, done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), ("-n", "2")], ids=["one process", "two workers"])
def test_a_run_in_which_a_key_is_said_fails_whichever_way_it_was_said(tmp_path, more):
    tests = [f"def test_{name.replace(' ', '_')}(tmp_path):\n    {line}\n" for name, line in LEAKS.items()]
    code, said = run_with(tmp_path / "leaking", "\n\n".join(tests), *more)
    assert code == 1, said
    summary = said.split("keys and tokens that were said")[-1]
    assert f"{len(LEAKS)} passed" in summary, said
    for name in LEAKS:
        wanted = "x.log" if name == "file" else f"test_{name.replace(' ', '_')}"
        assert any("a registered secret in" in line and wanted in line for line in summary.splitlines()), (
            name,
            said,
        )
    assert ("no-" + "body-may-say-this") not in summary


@pytest.mark.slow
def test_a_run_that_says_nothing_passes_and_so_does_one_that_shows_it_on_purpose(tmp_path):
    shown = "import pytest\n\n@pytest.mark.shows_secrets\ndef test_it():\n    print(KEY)\n"
    code, said = run_with(tmp_path / "quiet", shown)
    assert code == 0, said
    assert "No key or token" in said
