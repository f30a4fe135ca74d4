"""The demo on a model server of this machine: one option, no key, and no key of others goes along."""

import asyncio
import os
import sys

import pytest

from tests.common.support import BOUND_S
from tests.doubles.http import serving
from tests.doubles.providers import ProviderDouble, openai_text
from tests.leaks.watch import secret

SECRET = secret("sk-of-another-provider-0123456789")


@pytest.mark.system
@pytest.mark.slow
async def test_the_demo_runs_on_a_local_server_and_says_which_model_it_uses():
    async with serving(ProviderDouble(replies=[openai_text("Real words.")])) as double:
        environ = os.environ | {"OPENAI_BASE_URL": f"{double.origin}/v1", "ANTHROPIC_API_KEY": SECRET}
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "cli.main",
            "demo",
            "--model",
            "local/some-model",
            env={name: value for name, value in environ.items() if name != "OPENAI_API_KEY"},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(BOUND_S * 4):
            out, err = await process.communicate()
        assert process.returncode == 0, err.decode()
        assert f"Model: local/some-model at {double.origin}/v1." in out.decode()
        assert "Agent: Real words." in out.decode()
        [request] = double.requests
        assert double.bodies[0]["model"] == "some-model"
        assert "authorization" not in request.headers
        assert SECRET not in out.decode() + err.decode() + str(request)
