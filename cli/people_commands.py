"""The commands with which people talk to agents and look at what happens: words, flags and help texts."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Final, Literal

from cyclopts import Parameter

ModelOption = Annotated[
    str | None,
    Parameter(
        help=(
            "provider/name of a real model. Uses OPENAI_API_KEY and OPENAI_BASE_URL, or ANTHROPIC_API_KEY. "
            "A local OpenAI-compatible server needs OPENAI_BASE_URL only. Without it, answers are scripted."
        )
    ),
]
CoreOption = Annotated[
    str | None,
    Parameter(help="The development core's HTTP API. Default: where `up` puts it, http://127.0.0.1:4000."),
]
JsonFlag = Annotated[bool, Parameter(negative="", help="Print JSON, for scripts.")]
PutOption = Annotated[
    Path | None,
    Parameter(
        help="Put the agent or workflow first: a JSON file with its manifest, or {manifest, actions?}."
    ),
]


def chat(
    agent: Annotated[
        str | None, Parameter(help="The agent's id. Default: the only one, or an assistant.")
    ] = None,
    /,
    *,
    session: Annotated[str | None, Parameter(help="Go on with this session.")] = None,
    put: PutOption = None,
    core: CoreOption = None,
    model: ModelOption = None,
) -> int:
    """Talk to an agent in the terminal: its tool calls as they happen, approvals, Ctrl-C to cancel a turn.

    Where no development core answers, one is started for as long as the chat lasts, with its state in
    ./.whippletree (or WHIPPLETREE_STATE_DIR). Nobody has put an agent there? Then you talk to an assistant
    with a workspace of its own.

    The first Ctrl-C cancels the turn that is running, the second ends the chat at once. Ctrl-D ends it in order.
    Exit code 0: ended by you; 2: it could not begin; 130: ended by two Ctrl-C.
    """
    from cli.chat import run_chat

    return run_chat(agent, session=session, put=put, core=_trimmed(core), model=model, environ=os.environ)


def run(
    agent: str,
    text: Annotated[
        str | None, Parameter(allow_leading_hyphen=True, help="The message; - takes it from stdin.")
    ] = None,
    /,
    *,
    file: Annotated[Path | None, Parameter(help="The message is the text of this file.")] = None,
    data: Annotated[
        Path | None, Parameter(help="The message is the JSON of this file; a workflow takes any value.")
    ] = None,
    put: PutOption = None,
    session: Annotated[str | None, Parameter(help="Go on with this session instead of a new one.")] = None,
    core: CoreOption = None,
    effects: Annotated[bool, Parameter(negative="", help="Show what the turn did, too.")] = False,
    json: Annotated[
        bool,
        Parameter(negative="", help="Print each event of the turn as a line of JSON instead of the answer."),
    ] = False,
) -> int:
    """Ask an agent, or start a workflow, at a running development core, and print the answer.

    Makes a new session, sends the message and waits for the end of the turn. The answer goes to stdout, all
    else to stderr. WHIPPLETREE_CORE_TOKEN is presented where it is set.

    Exit code 0: the turn completed; 1: it ended otherwise, or waits for a person; 2: it could not begin;
    130: cancelled by Ctrl-C.
    """
    from cli.run import run_turn

    url = _core(core)
    if url is None:
        return 2
    return run_turn(
        agent,
        text,
        file=file,
        data=data,
        put=put,
        session=session,
        core=url,
        effects=effects,
        as_json=json,
        environ=os.environ,
    )


def sessions(
    *,
    agent: Annotated[str | None, Parameter(help="Only those of this agent.")] = None,
    limit: Annotated[int, Parameter(help="At most so many, 1 to 1000.")] = 20,
    core: CoreOption = None,
    json: JsonFlag = False,
) -> int:
    """List the newest sessions of a running development core."""
    from cli.sessions import run_sessions

    url = _core(core)
    if url is None:
        return 2
    return run_sessions(url, agent=agent, limit=limit, as_json=json, environ=os.environ)


def show(
    session: Annotated[str, Parameter(help="A session's id; `last` is the newest one.")] = "last",
    /,
    *,
    core: CoreOption = None,
    json: JsonFlag = False,
) -> int:
    """Show a session turn by turn: what was said, each tool call, and the timeline of each turn."""
    from cli.sessions import run_show

    url = _core(core)
    return 2 if url is None else run_show(url, session, as_json=json, environ=os.environ)


def status(
    *,
    core: CoreOption = None,
    gateway: Annotated[
        str | None,
        Parameter(help="Ask this gateway instead of a core: the URL of its health port, on its own machine."),
    ] = None,
    json: JsonFlag = False,
) -> int:
    """Show the fleet: gateways, their runs, and each replica of the services with its calls and times.

    Exit code 0: every gateway answers and every service serves; 1: not so; 2: nobody could be asked.
    """
    from cli.status import run_status

    url = _core(core)
    return 2 if url is None else run_status(url, gateway, as_json=json, environ=os.environ)


def drain(
    service: Annotated[
        str, Parameter(help="harness (the gateway itself), model-executor, mcp-pool or sandbox-manager.")
    ] = "harness",
    /,
    *,
    target: Annotated[
        str | None, Parameter(help="Only the replica at this address, or the shard of this name.")
    ] = None,
    gateway: Annotated[
        str | None, Parameter(help="The gateway to ask: the URL of its health port, on its own machine.")
    ] = None,
    wait: Annotated[bool, Parameter(negative="", help="Wait until nothing runs there any more.")] = False,
    within: Annotated[float | None, Parameter(help="With --wait: give up after so many seconds.")] = None,
    json: JsonFlag = False,
) -> int:
    """Let a gateway, or replicas of a service, take no more work, and show what still runs there.

    Each run or call is named with its session and since when it runs. Work that runs goes on to its end. There
    is no way back but a restart of that process. Without --wait the first replica alone is asked: name one with
    --target, or wait, and all are drained one after another.

    Exit code 0: it drains (with --wait: nothing runs any more); 1: something still runs after --within, or a
    replica could not be asked; 2: no gateway answered, or it refused.
    """
    from cli.drain import run_drain

    return run_drain(
        service,
        target,
        gateway,
        wait=wait,
        within_s=within,
        as_json=json,
        environ=os.environ,
    )


def doctor(*, json: JsonFlag = False) -> int:
    """Look at this machine and say what will work, what will not, and what to do about it.

    Looks at Python, bubblewrap and namespaces, ripgrep and grep, container engines, limits, disk, clock, ports,
    tokens, the targets and the core of a gateway with this environment, and keys of models. Changes nothing.

    Exit code 0: no problem (there may be notes); 1: a problem.
    """
    from cli.doctor.run import run_doctor

    return run_doctor(as_json=json, environ=os.environ)


def completion(shell: Literal["bash", "zsh", "fish"], /) -> int:
    """Print a script that completes whippletree's words in a shell.

    bash: whippletree completion bash > ~/.local/share/bash-completion/completions/whippletree;
    zsh: whippletree completion zsh > a file _whippletree in a folder of $fpath;
    fish: whippletree completion fish > ~/.config/fish/completions/whippletree.fish.
    """
    from cli.commands import app

    print(app.generate_completion(shell=shell))
    return 0


PEOPLE: Final = (chat, run, sessions, show, status, drain, doctor, completion)


def _trimmed(url: str | None) -> str | None:
    return None if url is None else url.rstrip("/")


def _core(url: str | None) -> str | None:
    """The core's URL; None after a word on stderr when the settings of `up` can't be read."""
    from cli.chat import default_core
    from cli.ports import PortError

    try:
        return _trimmed(url) or default_core(os.environ)
    except PortError as error:
        print(error, file=sys.stderr)
        return None
