"""The commands of `whippletree`, for its command line's library: words, flags and help texts."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter
from cyclopts.exceptions import CycloptsError

from cli.people_commands import PEOPLE, ModelOption


def _version() -> str:
    from services.common.version import version

    return version()


app = App(
    name="whippletree",
    help=(
        "An agent harness in services. A gateway takes work from a Nylorun core, runs the agent, and sends "
        "each model call, MCP call and sandbox command to a service that scales and restarts on its own.\n\n"
        "New here? 'whippletree demo' runs one agent turn through all processes and shows what happened; "
        "'whippletree chat' lets you talk to an agent."
    ),
    help_on_error=False,
    version_flags=["--version"],
    version=_version,
    help_format="plaintext",
)


@app.command
def demo(
    *,
    flow: Annotated[
        bool, Parameter(negative="", help="Run the example flow instead: agents, functions, a loop.")
    ] = False,
    kill: Annotated[
        bool,
        Parameter(negative="", help="Kill processes around tool calls, and count how often the tools ran."),
    ] = False,
    stay: Annotated[bool, Parameter(negative="", help="Stay up after the turn until Ctrl-C.")] = False,
    model: ModelOption = None,
) -> int:
    """Run one real agent turn on this machine and show what happened.

    Starts all five processes on free ports with a temporary folder, lets an agent call a model (scripted
    answers, no key needed), a tool of an MCP server, and a sandbox; prints each step and the answer; stops
    everything. Exit code 0 when the turn completed, else 1 with the reason in one line.
    """
    from cli.demo import run_demo

    if kill and (flow or model is not None):
        print("--kill has an agent and answers of its own: leave --flow and --model out.", file=sys.stderr)
        return 1
    return run_demo(stay=stay, model=model, flow=flow, kill=kill)


@app.command
def up(*, model: ModelOption = None) -> int:
    """Start the processes of a stack on this machine and keep them running.

    They are the development core, the gateway, the three services and the Tool Gate, all on 127.0.0.1. A process that
    dies is started again. Ctrl-C stops them cleanly, a second Ctrl-C at once. What they keep (database,
    workspaces, tokens) is in ./.whippletree, or in the folder that WHIPPLETREE_STATE_DIR names.

    Agents may use remote MCP servers (type streamable-http or sse). Those on this machine or in its networks,
    and headers with credentials, must be allowed in tool-gate.toml in that folder, or in the file that
    WHIPPLETREE_TOOL_GATE_CONFIG names; `whippletree tool-gate --help` shows one. With NYLORUN_GATES_URL no
    Tool Gate is started, and that gates service is used.

    Ports: 4000 HTTP API, 4100 Tool Gate, 4200 Harness API, 4300 health, 4410, 4420 and 4430 services; each
    can be moved with a setting that the error message names when the port is taken.
    """
    from cli.up import run_up

    return run_up(model)


@app.command
def gateway() -> int:
    """Start the gateway: it connects to a core, takes runs and calls the three services.

    Settings (environment): NYLORUN_HARNESS_URL, NYLORUN_HARNESS_TOKEN or NYLORUN_HARNESS_TOKEN_FILE,
    NYLORUN_MODEL_EXECUTOR_TARGET, NYLORUN_MCP_POOL_TARGET, NYLORUN_SANDBOX_MANAGER_TARGET, and a bearer for
    each service (NYLORUN_MODEL_EXECUTOR_GRPC_TOKEN and so on, or NYLORUN_GRPC_TOKEN for all).
    """
    from cli.services import run_gateway

    return run_gateway()


@app.command(name="model-executor")
def model_executor() -> int:
    """Start the service that makes model calls (gRPC, port 4410).

    Settings (environment): NYLORUN_GRPC_TOKEN or NYLORUN_GRPC_TOKEN_FILE, NYLORUN_GRPC_LISTEN,
    WHIPPLETREE_MODEL_ROUTE (gate, direct or scripted), WHIPPLETREE_MODEL_SCRIPT.
    """
    from cli.services import run_service

    return run_service("model-executor")


@app.command(name="mcp-pool")
def mcp_pool() -> int:
    """Start the service that holds connections to MCP servers and calls their tools (gRPC, port 4420).

    Settings (environment): NYLORUN_GRPC_TOKEN or NYLORUN_GRPC_TOKEN_FILE, NYLORUN_GRPC_LISTEN,
    NYLORUN_HARNESS_ROOT (its folder, default /harness).
    """
    from cli.services import run_service

    return run_service("mcp-pool")


@app.command(name="sandbox-manager")
def sandbox_manager() -> int:
    """Start the service that owns workspaces and runs commands in sandboxes (gRPC, port 4430).

    Settings (environment): NYLORUN_GRPC_TOKEN or NYLORUN_GRPC_TOKEN_FILE, NYLORUN_GRPC_LISTEN,
    NYLORUN_HARNESS_ROOT (its folder, default /harness), WHIPPLETREE_SANDBOX_DRIVER (auto, bwrap or emulated).
    """
    from cli.services import run_service

    return run_service("sandbox-manager")


@app.command(name="dev-core")
def dev_core() -> int:
    """Start the development core: sessions, journal and an HTTP API, for use without a Nylorun core.

    Settings (environment): NYLORUN_HARNESS_TOKEN or NYLORUN_HARNESS_TOKEN_FILE (what gateways present),
    WHIPPLETREE_CORE_HTTP_LISTEN (127.0.0.1:4000), WHIPPLETREE_CORE_HARNESS_LISTEN (127.0.0.1:4200),
    WHIPPLETREE_CORE_DB (a file, or :memory:).
    """
    from cli.services import run_service

    return run_service("dev-core")


@app.command(name="tool-gate")
def tool_gate() -> int:
    """Start a Tool Gate: it holds the connections to remote MCP servers, for use without a Nylorun stack.

    An mcp-pool whose NYLORUN_GATES_URL names it (default http://127.0.0.1:4100) reaches the streamable-HTTP and
    SSE servers that an agent's manifest declares. `up` starts one by itself. The development core says which
    sessions live (WHIPPLETREE_TOOL_GATE_CORE_URL, default http://127.0.0.1:4000, with WHIPPLETREE_CORE_TOKEN
    where it wants one) and signs the run tokens that the gate asks for.

    Without WHIPPLETREE_TOOL_GATE_CONFIG no server gets a credential, and only servers on the public Internet
    are reached. Such a file may say, by the server's name in the manifest:

        [servers.github]
        origin = "https://api.githubcopilot.com"
        [servers.github.headers]
        Authorization = {env = "GITHUB_TOKEN", prefix = "Bearer "}

        [servers.local]
        allow_private = true

    A value may also come from a file: {file = "/run/secrets/token"}. Headers go to the named origin alone.
    Signing in with OAuth is not built: a server that wants it answers 401.
    """
    from cli.services import run_service

    return run_service("tool-gate")


@app.command(name="all-in-one")
def all_in_one() -> int:
    """Start the gateway and the three services in one process.

    Takes exactly the environment of Nylorun's own harness process: NYLORUN_HARNESS_URL,
    NYLORUN_HARNESS_TOKEN, NYLORUN_GATES_URL, NYLORUN_HARNESS_ROOT.
    """
    from cli.services import run_all_in_one

    return run_all_in_one()


@app.command
def tokens(folder: Path, /) -> int:
    """Make the tokens that the processes of a stack share, one file each, in FOLDER.

    Files that are there already stay as they are. `up` does this by itself; containers need it.
    """
    from cli.tokens import run_tokens

    return run_tokens(folder)


@app.command(name="dev-ca")
def dev_ca(
    folder: Path,
    /,
    *,
    host: Annotated[
        list[str] | None,
        Parameter(negative="", consume_multiple=False, help="One more host name or address of the services."),
    ] = None,
    days: Annotated[int, Parameter(help="How long the certificates are good.")] = 90,
) -> int:
    """Make a development certificate authority and a certificate for each process, in FOLDER.

    For NYLORUN_GRPC_TLS=tls or mtls where no other authority is at hand; not for production. Run it again to
    renew the certificates: running processes take them over. The certificates are for localhost and for the
    names of the compose file.
    """
    from cli.dev_ca import run_dev_ca

    return run_dev_ca(folder, host or (), days)


@app.command
def healthcheck(
    *,
    service: Annotated[
        str | None,
        Parameter(
            help=(
                "harness, model-executor, mcp-pool, sandbox-manager, dev-core or tool-gate; "
                "default: what runs here."
            )
        ),
    ] = None,
    alive: Annotated[
        bool,
        Parameter(
            help="Of harness: it is enough that it answers, connected to its core or not.", negative=()
        ),
    ] = False,
) -> int:
    """Ask a process on this machine whether it works: exit code 0 when it does, else 1 with the reason.

    Reads the same settings as the process itself, so that one line serves as a container's health check.
    """
    from cli.healthcheck import run_healthcheck

    return run_healthcheck(service, alive=alive)


mcp = App(name="mcp", help="Look at MCP servers.", help_format="markdown")
app.command(mcp)


@mcp.command(name="list")
def mcp_list(
    *,
    manifest: Annotated[
        Path, Parameter(help="An agent's manifest as JSON, or the body that puts it into a development core.")
    ],
    plugin_root: Annotated[
        list[str] | None,
        Parameter(
            negative="",
            consume_multiple=False,
            help="CAPABILITY=/PATH (AGENT/CAPABILITY for an agent used as a tool): where its plugin lies.",
        ),
    ] = None,
    root: Annotated[
        Path | None,
        Parameter(help="The folder for servers (NYLORUN_HARNESS_ROOT of the mcp-pool); default: a new one."),
    ] = None,
    json: Annotated[bool, Parameter(negative="", help="Print snapshot and diagnostics as JSON.")] = False,
) -> int:
    """Open the MCP servers of an agent and show which tools a model would see.

    Needs no core and no other process. The servers are started as the mcp-pool starts them, asked for their
    tools, and stopped; no tool is called. Remote servers are reached from here as the Tool Gate of `up` reaches
    them, with the headers of the file that WHIPPLETREE_TOOL_GATE_CONFIG names, or of tool-gate.toml in the state
    folder; with NYLORUN_GATES_URL they are not asked. Settings that begin with WHIPPLETREE_MCP_ count here, too.

    Exit code 0: all servers are connected; 1: some are not; 2: the manifest can't be used.
    """
    from cli.mcp_list import run_mcp_list

    return run_mcp_list(manifest, plugin_root or (), root, as_json=json, environ=os.environ)


@app.command
def replay(
    *paths: Annotated[Path, Parameter(help="Recordings, and folders of them.")],
    until: Annotated[
        str | None,
        Parameter(help="Stop when this effect is asked for, and show it and the session's state."),
    ] = None,
    set_: Annotated[
        list[str] | None,
        Parameter(
            name="--set",
            negative="",
            consume_multiple=False,
            help="EFFECT=FILE: give this effect the outcome in FILE and go on from there.",
        ),
    ] = None,
    script: Annotated[
        Path | None,
        Parameter(
            help="After --set: answer model calls that the recording does not from this file, in the format of "
            "WHIPPLETREE_MODEL_SCRIPT."
        ),
    ] = None,
    live: Annotated[
        bool,
        Parameter(
            negative="",
            help="After --set: ask real models and run real tools for what nothing else answers. It finds the "
            "services by NYLORUN_MODEL_EXECUTOR_TARGET, NYLORUN_MCP_POOL_TARGET, "
            "NYLORUN_SANDBOX_MANAGER_TARGET and their tokens, like a gateway.",
        ),
    ] = False,
    manifest: Annotated[
        Path | None,
        Parameter(
            help="With --live: the agent's whole manifest; recordings leave out what starts MCP servers."
        ),
    ] = None,
    serve: Annotated[
        bool,
        Parameter(negative="", help="Run agents on the recording for a program on stdin and stdout."),
    ] = False,
) -> int:
    """Run recorded turns again, offline, and say whether this build asks for the same.

    The gateway records every run when WHIPPLETREE_RECORD_DIR names a folder. A replay runs the engine of
    this build on such a file: no model, no tool and no network is touched. It says of each effect (a model
    call, a tool call) whether it is asked for as it was, and shows the first difference. A folder of
    recordings tests an upgrade.

    EFFECT is an effect's number, its id, or the end of its id. With --set the run goes on from another
    outcome: a request that the recording has gets its recorded answer, any other is answered by --script or
    --live; without them it stops there and is shown. Only --live does anything for real, and never what was
    recorded: model calls may cost money, MCP tools do what they do, and commands run in a new workspace.

    Exit code 0: all the same, or gone on to the end; 1: something drifted; 2: something could not be
    replayed, or went no further.
    """
    from cli.recordings.explore import Exploration
    from cli.replay import run_replay

    wanted = Exploration(until, set_ or (), script, live, manifest, os.environ)
    return run_replay(paths, wanted, serve=serve)


@app.command
def diff(a: Path, b: Path, /) -> int:
    """Name the first effect in which two recorded runs part, and where in its document.

    Ids of session and turn that differ count as equal, so that two turns of one agent can be compared.
    Exit code 0: no difference; 1: a difference; 2: a file could not be read.
    """
    from cli.diff import run_diff

    return run_diff(a, b)


for _command in PEOPLE:
    app.command(_command)

# The overview is asked most and needs no reader of Markdown, which takes longer to load than the rest.
for _name in app:
    app[_name].help_format = "markdown"


def run_command(argv: Sequence[str]) -> int:
    """Runs a command line; the exit code. A wrong one is one line on stderr and exit code 1."""
    try:
        result = app(list(argv), exit_on_error=False, print_error=False, result_action="return_value")
    except CycloptsError as error:
        text = " ".join(str(error).split())
        command = " ".join(("whippletree", *(error.command_chain or ())))
        print(f"{text} Try `{command} --help`.", file=sys.stderr)
        return 1
    return result if isinstance(result, int) else 0
