"""deploy/node.sh: what stands at /usr/local/bin/node in the image."""

import os
import subprocess
from pathlib import Path

import pytest

SHIM = Path(__file__).parents[2] / "deploy" / "node.sh"
SAYS = '#!/bin/sh\necho "$NAME $NYLORUN_HARNESS_HEALTH_PORT $*"\n'
HEALTH = "fetch('http://127.0.0.1:{port}/health').then(r => r.json()).then(b => process.exit(+!b.connected))"


@pytest.fixture
def image(tmp_path):
    """A folder with the image's files; every program says its name, the health port and its arguments."""
    for name in ("app/bin/whippletree", "bin/whippletree", "usr/bin/node"):
        program = tmp_path / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(SAYS.replace("$NAME", name))
        program.chmod(0o755)
    (tmp_path / "node").write_text(SHIM.read_text().replace("/usr/bin/node", f"{tmp_path}/usr/bin/node"))
    return tmp_path


def node(image, *arguments):
    return subprocess.run(
        ["/bin/sh", str(image / "node"), *arguments],
        env={"PATH": f"{image}/bin:{os.defpath}"},
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )


@pytest.mark.parametrize("entry", ["runtime/dist/host/main.js", "runtime/server/dist/host/main.js"])
def test_the_entry_path_is_the_command_of_the_same_folder(image, entry):
    said = node(image, f"{image}/app/{entry}", "--service", "harness").stdout
    assert said == "app/bin/whippletree  --service harness\n"


@pytest.mark.parametrize("option", ["-e", "--eval"])
def test_the_health_line_is_the_health_check_on_its_port(image, option):
    said = node(image, option, HEALTH.format(port=4301)).stdout
    assert said == "bin/whippletree 4301 healthcheck --service harness\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ("server.js", "--service", "harness"),
        ("/elsewhere/runtime/dist/host/main.js",),
        ("-e", "console.log(1)"),
        ("-e", "fetch('http://127.0.0.1:4000/ready')"),
        ("-e", HEALTH.format(port="${process.env.PORT}")),
        ("-e", HEALTH.format(port=4300), "more"),
        ("--version",),
        (),
    ],
)
def test_everything_else_is_for_node(image, arguments):
    assert node(image, *arguments).stdout == f"usr/bin/node  {' '.join(arguments)}\n"


def test_without_node_that_is_said(image):
    (image / "usr/bin/node").unlink()
    done = node(image, "server.js")
    assert (done.returncode, done.stdout) == (127, "")
    assert "SLIM=1" in done.stderr
