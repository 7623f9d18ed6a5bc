"""Server-sent events split as the standard says, whatever blocks they come in; the answer that they make."""

import json

import pytest

from torchsplit_core.serving.llm_endpoint.event_stream import (
    LONGEST_EVENT,
    AnswerReader,
    EventStreamError,
    EventStreamParser,
    error_text,
)

STREAM = (
    b": a comment\r\ndata: one\r\n\r\nevent: x\nid: 3\ndata:two\ndata: lines \n\n\n"
    b"data: \xc3\xa9\n\ndata: [DONE]\n\n"
)
EVENTS = ["one", "two\nlines ", "é", "[DONE]"]


@pytest.mark.parametrize("size", [1, 2, 7, len(STREAM)])
def test_events_do_not_depend_on_the_blocks_they_come_in(size):
    parser = EventStreamParser()
    blocks = [STREAM[at : at + size] for at in range(0, len(STREAM), size)]
    assert [event for block in blocks for event in parser.feed(block)] == EVENTS
    assert not parser.unfinished
    assert list(parser.feed(b"data: x")) == []
    assert parser.unfinished


@pytest.mark.parametrize(
    "block", [b"x" * (LONGEST_EVENT + 1), b"data: yes\n" * (LONGEST_EVENT // 4), b"data: \xff\n"]
)
def test_lines_and_events_without_end_and_other_bytes_are_refused(block):
    with pytest.raises(EventStreamError):
        list(EventStreamParser().feed(block))


class Times:
    """A clock that is set by hand."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def read(*moments, asked=8):
    """A reader after events at their times; the problems that it called out."""
    clock, problems = Times(), []
    reader = AnswerReader(clock, asked, lambda: problems.append(clock.now))
    for clock.now, *contents in moments:
        texts = (content if isinstance(content, str) else json.dumps(content) for content in contents)
        reader.feed("".join(f"data: {text}\n\n" for text in texts).encode())
    reader.end()
    return reader, problems


def token(text="x", finish=None, **more):
    return {"choices": [{"text": text, "finish_reason": finish}], **more}


def delta(finish=None, **said):
    return {"choices": [{"delta": said, "finish_reason": finish}]}


def test_tokens_have_the_time_of_the_block_that_brought_them():
    usage = {"prompt_tokens": 40, "completion_tokens": 5}
    reader, problems = read(
        (1.0, token()), (2.5, token(), token("")), (3.0, token("", "length")),
        (4.0, {"choices": [], "usage": usage}, "[DONE]"),
    )  # fmt: skip
    # An empty text may be half a letter; the reason alone is no token.
    assert reader.token_times_s == [1.0, 2.5, 2.5]
    assert (reader.prompt_tokens, reader.output_tokens, reader.problem, problems) == (40, 5, "", [])


def test_a_role_is_no_token_and_thoughts_and_calls_are():
    reader, _ = read(
        (1.0, delta(role="assistant", content="")), (2.0, delta(reasoning_content="hm")), (3.0, delta(content="")),
        (4.0, delta(tool_calls=[{"index": 0}])), (5.0, delta(finish="stop")),
    )  # fmt: skip
    assert (reader.token_times_s, reader.problem, reader.output_tokens) == ([2.0, 3.0, 4.0], "", None)


@pytest.mark.parametrize(("moments", "problem"), [
    ([(1.0, "{")], "its stream has an event that is not JSON: '{'"),
    ([(1.0, "3")], "its stream has an event that is no object: '3'"),
    ([(1.0, {"choices": 3})], "its stream has an event whose choices are no list of objects: '{\"choices\": 3}'"),
    ([(1.0, {"error": {"message": "out of\nmemory"}})], "its stream says: out of memory"),
    ([(1.0, token())], "its stream ended before the answer was finished, after an event with output"),
    ([], "its stream ended before the answer was finished, after no events with output"),
    ([(1.0, "[DONE]")], "its answer has no token"),
    ([(1.0, *[token()] * 81)], "its stream goes on past 80 events, and 8 tokens were asked for"),
])  # fmt: skip
def test_what_is_no_answer_is_said_once(moments, problem):
    reader, problems = read(*moments)
    assert reader.problem == problem and len(problems) == 1
    reader.feed(b"data: {\n\n")
    reader.end()
    assert reader.problem == problem and len(problems) == 1


@pytest.mark.parametrize(
    "usage", [{"completion_tokens": True}, {"completion_tokens": -1}, {"completion_tokens": "9"}, 3, None]
)
def test_a_usage_that_counts_nothing_is_none(usage):
    reader, _ = read((1.0, token("x", "length", usage=usage)))
    assert reader.output_tokens is None and not reader.problem


def test_an_error_is_one_line_wherever_a_server_puts_it():
    for content in (
        {"error": {"message": "no\n such"}},
        {"detail": "no such"},
        {"message": "no such"},
        "no such",
    ):
        assert error_text(content) == "no such"
    assert error_text({"code": 7}) == '{"code": 7}'
    assert len(error_text("x" * 1000)) == 300
