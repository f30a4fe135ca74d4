import json

from cli.output import format_line


def test_a_log_line_becomes_time_event_and_fields():
    record = {
        "level": "info",
        "message": "harness_connected",
        "time": "2026-01-02T03:04:05.678Z",
        "service": "gateway",
        "url": "ws://x",
        "text": "two words",
    }
    line = format_line("gateway", json.dumps(record), colour=False)
    assert line == 'gateway         | 03:04:05.678 harness_connected url=ws://x text="two words"'


def test_other_lines_stay_as_they_are():
    assert format_line("mcp-pool", "{not json", colour=False).endswith("| {not json")
    assert format_line("mcp-pool", '{"a": 1}', colour=False).endswith('| {"a": 1}')


def test_terminal_escapes_of_a_process_never_reach_the_terminal():
    assert "\x1b" not in format_line("mcp-pool", "\x1b[2Jgone", colour=False)


def test_colours_come_only_when_asked_for():
    assert "\x1b[" in format_line("gateway", "x", colour=True)
    assert "\x1b[" not in format_line("gateway", "x", colour=False)
