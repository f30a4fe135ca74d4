"""The limit of open files is raised where it may be, and its lack is said."""

from __future__ import annotations

import resource

import pytest

from services.mcp_pool import descriptors
from services.mcp_pool.descriptors import provide_descriptors
from services.mcp_pool.limits import Limits

UNLIMITED = resource.RLIM_INFINITY


class Kernel:
    def __init__(self, soft, hard, fails=False):
        self.limits = (soft, hard)
        self.fails = fails
        self.RLIMIT_NOFILE, self.RLIM_INFINITY = resource.RLIMIT_NOFILE, UNLIMITED

    def getrlimit(self, _):
        return self.limits

    def setrlimit(self, _, limits):
        if self.fails:
            raise ValueError("not allowed")
        self.limits = limits


@pytest.fixture
def said(monkeypatch):
    class Log:
        def __init__(self):
            self.lines = []

        def info(self, event, **fields):
            self.lines.append((event, fields))

        warning = info

    log = Log()
    monkeypatch.setattr(descriptors, "get_logger", lambda: log)
    return log.lines


@pytest.mark.parametrize(
    ("soft", "hard", "now", "enough", "event"),
    [
        (1024, 4096, 2048, True, "mcp_descriptors_raised"),
        (1024, UNLIMITED, 2048, True, "mcp_descriptors_raised"),
        (2048, 2048, 2048, True, None),
        (UNLIMITED, UNLIMITED, UNLIMITED, True, None),
        (1024, 1500, 1500, False, "mcp_descriptors_low"),
        (1024, 1024, 1024, False, "mcp_descriptors_low"),
    ],
)
def test_the_soft_limit_becomes_four_for_each_connection(monkeypatch, said, soft, hard, now, enough, event):
    kernel = Kernel(soft, hard)
    monkeypatch.setattr(descriptors, "resource", kernel)
    assert provide_descriptors(Limits().connections) is enough
    assert kernel.limits == (now, hard)
    assert [line[0] for line in said] == ([event] if event else [])


def test_a_system_that_refuses_is_named_with_the_way_out(monkeypatch, said):
    monkeypatch.setattr(descriptors, "resource", Kernel(100, 5000, fails=True))
    assert not provide_descriptors(512)
    ((event, fields),) = said
    assert event == "mcp_descriptors_low"
    assert "not allowed" in fields["error"]
    assert "WHIPPLETREE_MCP_MAX_CONNECTIONS" in fields["error"]


def test_the_real_limit_is_only_ever_raised():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    provide_descriptors(1)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (soft, hard)
