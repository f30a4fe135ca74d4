"""One turn of the demo's agent through a core's published HTTP API, as a program of its own.

It is a program so that it can be started in the network of an engine that the tests keep apart. It reads one
JSON object from standard input (`url`, `token`, `interpreter`) and writes one to standard output.
"""

import json
import sys
import urllib.error
import urllib.request

from cli.demo_agent import QUESTION, manifest

CALL_S = 30
TURN_ENDS = ("turn.completed", "turn.failed", "turn.cancelled", "turn.paused", "effect.uncertain")


class Core:
    """The HTTP API, with the bearer that a published core wants."""

    def __init__(self, url, token):
        self._url = url
        self._token = token
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def open(self, method, path, body=None):
        request = urllib.request.Request(
            self._url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"authorization": f"Bearer {self._token}", "content-type": "application/json"},
        )
        return self._opener.open(request, timeout=CALL_S)

    def call(self, method, path, body=None):
        with self.open(method, path, body) as answer:
            return json.load(answer)

    def status(self, path):
        try:
            with self.open("GET", path) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code


def run_turn(core, interpreter):
    """Puts the agent in, sends the question, follows the events to the turn's end; what came of it."""
    core.call("PUT", "/v1/agents/demo", {"manifest": manifest(interpreter)})
    session = core.call("POST", "/v1/sessions", {"agentId": "demo"})["id"]
    turn = core.call("POST", f"/v1/sessions/{session}/messages", {"text": QUESTION})["turnId"]
    end = wait_for_end(core, session)
    effects = core.call("GET", f"/v1/sessions/{session}/effects?limit=1000&turnId={turn}")["effects"]
    view = core.call("GET", f"/v1/sessions/{session}")
    return {
        "session": session,
        "sessions": [one["id"] for one in core.call("GET", "/v1/sessions")["sessions"]],
        "end": end,
        "output": ((view.get("lastTurn") or {}).get("result") or {}).get("output"),
        "view": view,
        "effects": effects,
    }


def wait_for_end(core, session):
    """The name of the event that ends the session's first turn."""
    with core.open("GET", f"/v1/sessions/{session}/events") as events:
        for line in events:
            name, _, value = line.decode().rstrip("\r\n").partition(": ")
            if name == "event" and value in TURN_ENDS:
                return value
    return "the stream of events ended"


def main():
    told = json.load(sys.stdin)
    answer = {"refused": Core(told["url"], "none").status("/v1/agents")}
    answer |= run_turn(Core(told["url"], told["token"]), told["interpreter"])
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
