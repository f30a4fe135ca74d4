"""The demo on a model server: one option, and no key but the provider's own goes along."""

import asyncio
import os
import sys

import pytest

from tests.common.support import BOUND_S
from tests.doubles.http import serving
from tests.doubles.providers import ProviderDouble, anthropic, anthropic_text, openai_text
from tests.leaks.watch import secret

SECRET = secret("sk-of-another-provider-0123456789")
KEY = secret("sk-of-this-provider-0123456789")
VARIABLES = ("OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL")


@pytest.mark.system
@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "reply", "base", "variables", "credential"),
    [
        ("local/some-model", openai_text, "OPENAI_BASE_URL", {"ANTHROPIC_API_KEY": SECRET}, None),
        (
            "openai/some-model",
            openai_text,
            "OPENAI_BASE_URL",
            {"OPENAI_API_KEY": KEY, "ANTHROPIC_API_KEY": SECRET},
            f"Bearer {KEY}",
        ),
        (
            "anthropic/some-model",
            lambda text: anthropic(anthropic_text(text)),
            "ANTHROPIC_BASE_URL",
            {"ANTHROPIC_API_KEY": KEY, "OPENAI_API_KEY": SECRET},
            f"Bearer {KEY}",
        ),
    ],
    ids=["local", "openai", "anthropic"],
)
async def test_the_demo_runs_on_a_model_server_and_says_which_model_it_uses(
    model, reply, base, variables, credential
):
    async with serving(ProviderDouble(replies=[reply("Real words.")])) as double:
        url = double.origin if base == "ANTHROPIC_BASE_URL" else f"{double.origin}/v1"
        environ = {name: value for name, value in os.environ.items() if name not in VARIABLES}
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "cli.main",
            "demo",
            "--model",
            model,
            env=environ | {base: url} | variables,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(BOUND_S * 4):
            out, err = await process.communicate()
        assert process.returncode == 0, err.decode()
        assert f"Model: {model} at {url}." in out.decode()
        assert "Agent: Real words." in out.decode()
        [request] = double.requests
        assert double.bodies[0]["model"] == "some-model"
        assert request.headers.get("authorization") == credential
        for key in (SECRET, KEY):
            assert key not in out.decode() + err.decode()
        assert SECRET not in str(request)
