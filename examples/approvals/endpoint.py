"""Tools of your own: the core posts each call here, once. Sending a letter asks a person first."""

import sys

from aiohttp import web


async def act(request: web.Request) -> web.Response:
    """One call. `Idempotency-Key` is its id; the core never posts the same one twice."""
    effect = await request.json()
    arguments, answer = effect["input"], effect["context"].get("resume")
    match effect["toolName"]:
        case "count_words":
            return completed(len(arguments["text"].split()))
        case "send_letter" if answer is None:
            prompt = f"Send a letter to {arguments['to']}?"
            return value(
                {"kind": "interaction-required", "interaction": {"kind": "approval", "prompt": prompt}}
            )
        case "send_letter" if answer["approved"]:
            return completed(f"Sent to {arguments['to']}.")
        case "send_letter":
            return value({"kind": "denied", "reason": "The person said no."})
        case name:
            return web.json_response({"message": f"There is no tool {name}."}, status=404)


def completed(output: object) -> web.Response:
    """The outcome of a call that worked."""
    return value({"kind": "completed", "output": output})


def value(outcome: dict) -> web.Response:
    """An outcome as the core wants it."""
    return web.json_response({"value": outcome})


app = web.Application()
app.router.add_post("/actions", act)

if __name__ == "__main__":
    web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]) if len(sys.argv) > 1 else 5000)
