"""A conversation is read whole, and what is none is refused with its place."""

import pytest

from async_rl.data.chat import Chat
from async_rl.errors import DataError

USER = {"role": "user", "content": "1+1"}
ANSWER = {"role": "assistant", "content": "2"}


def read(messages: object, tools: object = None) -> Chat:
    return Chat.read(messages, tools, place="rows.jsonl, row 3", option="data.train")


def test_messages_keep_what_a_template_may_read() -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"name": "add"}]}
    told = {"role": "tool", "content": "2", "name": "add", "tool_call_id": None}
    chat = read([USER, call, told, ANSWER])
    assert chat.messages[1] == {"role": "assistant", "content": "", "tool_calls": [{"name": "add"}]}
    assert chat.messages[2] == {"role": "tool", "content": "2", "name": "add"}, "null is a missing field in parquet"


@pytest.mark.parametrize("tools", [[{"name": "add"}], '[{"name": "add"}]'])
def test_tools_are_a_list_or_the_same_as_json(tools: object) -> None:
    assert read([USER, ANSWER], tools).tools == [{"name": "add"}]


@pytest.mark.parametrize("tools", [None, "", []])
def test_a_conversation_may_have_no_tools(tools: object) -> None:
    assert read([USER, ANSWER], tools).tools == []


@pytest.mark.parametrize(
    ("messages", "tools", "problem"),
    [
        ([], None, "the messages are []"),
        ("hello", None, "the messages are 'hello'"),
        ([USER, "2"], None, "message 2 is str, not an object"),
        ([{"from": "human", "value": "1+1"}], None, "message 1 has no role, only from, value"),
        ([USER, {"role": "bot", "content": "2"}], None, "message 2 has the role 'bot'"),
        ([USER, {"role": "assistant"}], None, "message 2 has no content"),
        ([USER, {"role": "assistant", "content": 2}], None, "message 2 has the content 2, not text"),
        ([USER, ANSWER], "{", "the tools are '{'"),
        ([USER, ANSWER], ["add"], "the tools are ['add']"),
    ],
)
def test_what_is_no_conversation_is_named(messages: object, tools: object, problem: str) -> None:
    with pytest.raises(DataError) as raised:
        read(messages, tools)
    assert problem in raised.value.problem and raised.value.problem.startswith("rows.jsonl, row 3")
    assert raised.value.place == "data.train" and raised.value.remedy
