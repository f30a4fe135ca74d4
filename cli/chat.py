"""`whippletree chat`: a conversation with an agent in the terminal."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from cli.chat_agent import ASSISTANT, assistant
from cli.chat_turn import Abandoned, Talk
from cli.core_client import CoreClient, CoreError, Document, core_token
from cli.event_lines import Said
from cli.input_files import InputError, agent_body
from cli.own_stack import OwnStackFailed, answers, own_stack
from cli.plain_text import plain
from cli.screen import Screen
from cli.timeline import timeline

ENDED: Final = 0
REFUSED: Final = 2
INTERRUPTED: Final = 130
HELP: Final = """\
Write a message and press Enter. A line that ends with \\ goes on in the next one.
  /show   what the last turn did, with times
  /new    begin a new session
  /quit   end (Ctrl-D does the same)
  //text  a message that begins with /
Ctrl-C cancels the turn that is running; pressed twice, it ends the chat at once."""


class _Leave(Exception):
    """The person ends the chat."""


def run_chat(
    agent: str | None,
    *,
    session: str | None,
    put: Path | None,
    core: str | None,
    model: str | None,
    environ: Mapping[str, str],
) -> int:
    """The exit code: 0 when the person ended the chat, 2 when it could not begin, 130 after two Ctrl-C."""
    screen = Screen()
    try:
        body = None if put is None else agent_body(put)
        token = core_token(environ)
        with asyncio.Runner() as runner:
            return _Chat(runner, screen, core, token, environ).run(agent, session, body, model)
    except (InputError, CoreError, OwnStackFailed) as error:
        print(error, file=sys.stderr)
        return REFUSED
    except Abandoned:
        return INTERRUPTED


class _Chat:
    """Asks in the foreground and works in the loop: between turns the terminal's own line editing works."""

    def __init__(
        self,
        runner: asyncio.Runner,
        screen: Screen,
        core: str | None,
        token: str | None,
        environ: Mapping[str, str],
    ) -> None:
        self._runner = runner
        self._screen = screen
        self._url = core
        self._token = token
        self._environ = environ

    def run(self, agent: str | None, session: str | None, body: Document | None, model: str | None) -> int:
        url = self._url or default_core(self._environ)
        core = CoreClient(url, token=self._token)
        with contextlib.ExitStack() as ends:
            self._enter(ends, core)
            if not self._runner.run(answers(core)):
                if self._url is not None:
                    raise CoreError(f"No development core answers at {url}. Start one: whippletree up")
                self._screen.line("No development core answers: starting one for this chat ...")
                self._screen.line(
                    "Model: scripted answers; --model names a real one."
                    if model is None
                    else f"Model: {model}"
                )
                self._enter(ends, own_stack(core, model, self._environ))
            elif model is not None:
                raise InputError(
                    f"A development core runs at {url} already, with the model it was started with: leave --model out, "
                    "or stop it and start `whippletree up --model` or this chat again."
                )
            talk = self._runner.run(self._begin(core, agent, session, body))
            self._loop(talk, agent)
        return ENDED

    def _enter(self, ends: contextlib.ExitStack, manager: Any) -> None:
        self._runner.run(manager.__aenter__())

        def leave(*error: Any) -> None:
            self._runner.run(manager.__aexit__(*error))

        ends.push(leave)

    async def _begin(
        self, core: CoreClient, agent: str | None, session: str | None, body: Document | None
    ) -> Talk:
        if session is not None:
            view = await core.session(session)
            self._screen.line(
                f"Session {session} of the agent {view['agentId']}. /help says what you can type."
            )
            return Talk(core, self._screen, session, seen=int(view["lastSeq"]))
        if body is not None:
            agent = agent or str(body["manifest"].get("id"))
            await core.put(agent, body)
        chosen = agent or await self._only_agent(core)
        made = await core.create_session(chosen)
        self._screen.line(f"Session {made} of the agent {chosen}. /help says what you can type.")
        return Talk(core, self._screen, made)

    async def _only_agent(self, core: CoreClient) -> str:
        known = [str(one["id"]) for one in await core.agents()]
        if not known:
            await core.put(ASSISTANT, {"manifest": assistant()})
            return ASSISTANT
        if len(known) > 1 and ASSISTANT not in known:
            raise InputError(
                f"Which agent? Name one: whippletree chat AGENT, with one of {', '.join(known)}."
            )
        return ASSISTANT if ASSISTANT in known else known[0]

    def _loop(self, talk: Talk, agent: str | None) -> None:
        try:
            while True:
                text = self._asked("You: ")
                match text.strip():
                    case "":
                        continue
                    case "/help":
                        self._screen.line(HELP)
                    case "/quit" | "/exit":
                        return
                    case "/show":
                        self._runner.run(self._show(talk))
                    case "/new":
                        view = self._runner.run(talk.core.session(talk.session_id))
                        talk = self._runner.run(self._begin(talk.core, view["agentId"], None, None))
                    case word if word.startswith("/") and not word.startswith("//"):
                        self._screen.line(f"There is no {word.split()[0]}; /help says what you can type.")
                    case _:
                        self._turn(talk, text[1:] if text.startswith("//") else text)
        except _Leave:
            self._screen.line()

    def _turn(self, talk: Talk, text: str) -> None:
        try:
            end = self._runner.run(talk.say({"text": text}))
            while end in ("turn.paused", "agent.paused", "turn.uncertain", "agent.uncertain"):
                view = self._runner.run(talk.core.session(talk.session_id))
                if end.endswith(".uncertain"):
                    if not self._uncertain(talk):
                        return
                elif not self._answered(talk, view):
                    return
                end = self._runner.run(talk.follow())
        except CoreError as error:
            self._screen.show(Said("problem", plain(str(error))))

    def _uncertain(self, talk: Talk) -> bool:
        """Whether the turn was cancelled, which lets the session go on."""
        self._screen.show(
            Said("problem", "A step may have run and nobody knows its outcome; it is not run again.")
        )
        if not self._yes("Cancel this turn, so that the session can go on? [y/n] "):
            self._screen.line("The session takes no message until the turn is cancelled.")
            return False
        self._runner.run(talk.core.cancel(talk.session_id))
        return True

    def _answered(self, talk: Talk, view: Document) -> bool:
        """Asks the person what the turn asks; False when there is nothing to answer."""
        asked = view.get("interactions") or ()
        for one in asked:
            session = str(one.get("sessionId") or talk.session_id)
            self._screen.line(f"? {plain(str(one.get('prompt')))}")
            if one.get("kind") == "approval":
                approved = self._yes("Approve? [y/n] ")
                self._runner.run(talk.core.answer(session, str(one["id"]), approved=approved))
            else:
                value = response(self._asked("Your answer: "))
                self._runner.run(talk.core.respond(session, str(one["id"]), value))
            return True
        self._screen.line(plain(str(view.get("hint") or "The turn waits.")))
        return False

    def _yes(self, question: str) -> bool:
        while True:
            match self._asked(question).strip().lower():
                case "y" | "yes":
                    return True
                case "n" | "no":
                    return False

    def _asked(self, question: str) -> str:
        """A line, or several where they end with a backslash. Raises _Leave at the end of input."""
        lines: list[str] = []
        while True:
            try:
                line = input("...  " if lines else question)
            except EOFError:
                raise _Leave from None
            except KeyboardInterrupt:
                if not lines and self._screen_hint():
                    raise _Leave from None
                lines.clear()
                continue
            self._interrupted = False
            if not line.endswith("\\"):
                return "\n".join((*lines, line))
            lines.append(line[:-1])

    _interrupted = False

    def _screen_hint(self) -> bool:
        """True at the second Ctrl-C in a row at a prompt."""
        if self._interrupted:
            return True
        self._interrupted = True
        self._screen.line("\n(Ctrl-C again or Ctrl-D ends the chat)")
        return False

    async def _show(self, talk: Talk) -> None:
        if talk.turn_id is None:
            self._screen.line("There was no turn yet.")
            return
        for line in timeline(await talk.core.effects(talk.session_id, talk.turn_id)):
            self._screen.line(line)


def response(text: str) -> Any:
    """A person's answer: JSON where the line begins like an object, an array or a quoted text, else the text."""
    stripped = text.strip()
    if stripped[:1] in ("{", "[", '"'):
        try:
            return json.loads(stripped)
        except ValueError:
            return text
    return text


def default_core(environ: Mapping[str, str]) -> str:
    """Where `up` started with this environment serves its HTTP API."""
    from cli.ports import ports_from
    from cli.stack import core_url

    return core_url(ports_from(environ))
