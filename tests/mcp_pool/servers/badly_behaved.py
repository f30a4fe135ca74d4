"""An MCP server that misbehaves on demand. Standard library only: started with `python -S -I`.

Arguments are flags of its behaviour as a whole; the name of a called tool decides how that call goes. Every
line it receives is appended to the file RECORD, so that a test can count what was really asked for.
"""

import json
import os
import signal
import sys
import time

flags = dict(argument.partition("=")[::2] for argument in sys.argv[1:])
record = os.environ.get("RECORD")


def send(message):
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def answer(id_, result):
    send({"jsonrpc": "2.0", "id": id_, "result": result})


def note(line):
    if record:
        descriptor = os.open(record, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(descriptor, line.rstrip("\n").encode() + b"\n")
        os.close(descriptor)


def text(*parts):
    return {"content": [{"type": "text", "text": part} for part in parts]}


def tool(name, **members):
    return {"name": name, "inputSchema": {"type": "object"}, **members}


def wait_for(path):
    while not os.path.exists(path):
        time.sleep(0.005)


def initialize(id_, params):
    if "silent" in flags:
        return
    if "wait" in flags:
        wait_for(flags["wait"])
    if "refuse" in flags:
        send({"jsonrpc": "2.0", "id": id_, "error": {"code": -32000, "message": flags["refuse"]}})
        return
    answer(
        id_,
        {
            "protocolVersion": flags.get("version", params["protocolVersion"]),
            "capabilities": {},
            "serverInfo": {"name": "badly-behaved", "version": "0"},
        },
    )
    if "close-stdin" in flags:
        os.close(0)
        time.sleep(600)
    if "stop-reading" in flags:
        time.sleep(600)


def list_tools(id_, params):
    how = flags.get("list", "plain")
    cursor = params.get("cursor", "")
    if how == "plain":
        answer(id_, {"tools": [tool(name) for name in flags.get("tools", "echo").split(",") if name]})
    elif how == "duplicates":
        answer(id_, {"tools": [tool("same", description="first"), tool("same", description="second")]})
    elif how == "pages":
        page = int(cursor or 0)
        last = page + 1 == int(flags["pages"])
        answer(id_, {"tools": [tool(f"t{page}")], **({} if last else {"nextCursor": str(page + 1)})})
    elif how == "cycle":
        answer(id_, {"tools": [tool("again")], "nextCursor": "b" if cursor == "a" else "a"})
    elif how == "empty-schema":
        answer(id_, {"tools": [tool("good"), {"name": "bad", "inputSchema": {}}]})
    elif how == "never":
        pass
    elif how == "from-file":
        with open(flags["file"]) as file:
            answer(id_, {"tools": json.load(file)})
    elif how == "thousands":
        answer(id_, {"tools": [tool(f"t{n}", description="x" * 100) for n in range(5000)]})


def call(id_, params):
    name, arguments = params["name"], params.get("arguments", {})
    if name == "echo":
        answer(id_, {"content": [], "structuredContent": arguments})
    elif name == "result":
        answer(id_, arguments["result"])
    elif name == "raw":
        sys.stdout.write(f'{{"jsonrpc":"2.0","id":{id_},"result":{arguments["text"]}}}\n')
        sys.stdout.flush()
    elif name == "die":
        os._exit(3)
    elif name == "die-with-child":
        if os.fork() == 0:
            time.sleep(600)
        os._exit(3)
    elif name == "never":
        pass
    elif name == "late":
        wait_for(arguments["file"])
        answer(id_, text("late"))
    elif name == "wait":
        # Answers when the file is there, and reads on meanwhile.
        if os.fork() == 0:
            wait_for(arguments["file"])
            answer(id_, text("waited"))
            os._exit(0)
    elif name == "junk":
        for line in ("starting up...", '{"half": ', "[1, 2]", '"text"', "", '{"jsonrpc":"2.0"}', "\xff"):
            sys.stdout.write(line + "\n")
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": id_, "result": text("after junk")}) + "\r\n")
        sys.stdout.flush()
    elif name == "large":
        answer(id_, text("x" * arguments["size"]))
    elif name == "endless":
        for _ in range(12):
            os.write(1, b"x" * 1024 * 1024)
        time.sleep(600)
    elif name == "flood":
        for n in range(arguments["count"]):
            sys.stdout.write(f'{{"jsonrpc":"2.0","method":"notifications/message","params":{{"n":{n}}}}}\n')
        answer(id_, text("after flood"))
    elif name == "notify":
        # As it stands in the text: a slash may be escaped.
        line = f'{{"jsonrpc":"2.0","method":"{arguments["method"]}"}}\n'
        sys.stdout.write(line * arguments.get("count", 1))
        sys.stdout.flush()
        if "die" in arguments:
            os._exit(3)
        answer(id_, text("notified"))
    elif name == "ask":
        send({"jsonrpc": "2.0", "id": "r", "method": "roots/list"})
        send({"jsonrpc": "2.0", "id": 7, "method": "sampling/createMessage", "params": {}})
        send({"jsonrpc": "2.0", "id": "p", "method": "ping"})
        replies = []
        for _ in range(3):
            line = sys.stdin.readline()
            note(line)
            replies.append(json.loads(line))
        answer(id_, {"content": [], "structuredContent": {"replies": replies}})
    elif name == "error":
        send({"jsonrpc": "2.0", "id": id_, "error": {"code": -32602, "message": "no such thing"}})
    elif name == "stop-reading":
        answer(id_, text("deaf from now on"))
        time.sleep(600)
    elif name == "environment":
        answer(id_, {"content": [], "structuredContent": dict(os.environ)})
    elif name == "where":
        answer(id_, {"content": [], "structuredContent": {"cwd": os.getcwd(), "pid": os.getpid()}})
    elif name == "fork":
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(600)
        answer(id_, {"content": [], "structuredContent": {"pid": pid}})
    elif name == "id-as-text":
        answer(str(id_), text("still mine"))


if "ignore-sigterm" in flags:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if "exit" in flags:
    sys.exit(int(flags["exit"]))
child = os.fork() if "with-child" in flags else None
if "mark" in flags:
    descriptor = os.open(flags["mark"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(descriptor, b"%d\n" % os.getpid())
    os.close(descriptor)
if child == 0:
    time.sleep(600)

HANDLERS = {"initialize": initialize, "tools/list": list_tools, "tools/call": call}
while True:
    line = sys.stdin.readline()
    if not line:
        break
    note(line)
    message = json.loads(line)
    if message.get("method") in HANDLERS:
        HANDLERS[message["method"]](message["id"], message.get("params", {}))
if "ignore-sigterm" in flags:
    while True:
        time.sleep(600)
