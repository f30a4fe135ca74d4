import io
import json
import logging
import re

import pytest

from services.common.logs import configure_logging, error_text, get_logger, trace_context


@pytest.fixture
def lines():
    stream = io.StringIO()
    configure_logging("svc", stream=stream)
    yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    configure_logging("svc")


def test_a_line_has_level_message_time_then_the_fields_in_order_then_the_service(lines):
    get_logger().info("grpc_serving", zebra=1, address="x")
    [line] = lines()
    assert list(line) == ["level", "message", "time", "zebra", "address", "service"]
    assert (line["level"], line["message"], line["service"]) == ("info", "grpc_serving", "svc")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["time"])


def test_levels_have_the_names_of_the_original(lines):
    get_logger().warning("a")
    get_logger().error("b")
    get_logger().debug("c")
    assert [line["level"] for line in lines()] == ["warn", "error"]


def test_a_field_never_replaces_the_event_name(lines):
    get_logger().warning("harness_run_failed", message="boom", level="x", error="why")
    [line] = lines()
    assert (line["message"], line["level"], line["error"]) == ("harness_run_failed", "warn", "why")


def test_debug_lines_appear_when_asked_for():
    stream = io.StringIO()
    configure_logging("svc", "debug", stream)
    get_logger().debug("c")
    assert json.loads(stream.getvalue())["level"] == "debug"
    configure_logging("svc")


def test_text_stays_readable_and_lone_surrogates_are_escaped(lines):
    get_logger().info("a", text="é 😀")
    get_logger().info("b", text="\ud800")
    assert [line["text"] for line in lines()] == ["é 😀", "\ud800"]


def test_a_stream_that_can_write_ascii_only_gets_escapes():
    raw = io.BytesIO()
    configure_logging("svc", stream=io.TextIOWrapper(raw, encoding="ascii"))
    get_logger().info("a", text="é")
    assert json.loads(raw.getvalue())["text"] == "é"
    configure_logging("svc")


def test_a_closed_stream_does_not_stop_the_process():
    stream = io.StringIO()
    configure_logging("svc", stream=stream)
    stream.close()
    get_logger().info("a")
    configure_logging("svc")


def test_the_trace_of_the_call_that_is_served_stands_in_the_line(lines):
    token = trace_context.set("00-" + "a" * 32 + "-" + "b" * 16 + "-01")
    get_logger().info("a")
    trace_context.reset(token)
    [line] = lines()
    assert (line["trace_id"], line["span_id"]) == ("a" * 32, "b" * 16)


def test_warnings_of_libraries_have_the_same_shape(lines):
    try:
        raise ValueError("why")
    except ValueError:
        logging.getLogger("asyncio").exception("task failed")
    logging.getLogger("x").warning("odd")
    first, second = lines()
    assert (first["message"], first["logger"], first["level"]) == ("library_message", "asyncio", "error")
    assert "ValueError: why" in first["error"]
    assert second["level"] == "warn"


def test_errors_are_one_line_of_type_and_text():
    assert error_text(ValueError("a\n  b")) == "ValueError: a b"
    assert error_text(KeyError()) == "KeyError"
