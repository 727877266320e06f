from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.text.tool_calls import CallArguments, CallBegins, Content, Event, ToolCallReader

pytestmark = pytest.mark.unit

ONE = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": "}{\\"<"}}\n</tool_call>'


def read(
    *pieces: str, names: tuple[str, ...] = ()
) -> tuple[str, list[tuple[str, str]], list[Event]]:
    """(content, calls as (name, arguments), all events)."""
    reader = ToolCallReader(names)
    events = [event for piece in pieces for event in reader.push(piece)] + reader.finish()
    calls: list[tuple[str, str]] = []
    for event in events:
        if isinstance(event, CallBegins):
            assert event.index == len(calls)
            calls.append((event.name, ""))
        elif isinstance(event, CallArguments):
            assert event.index == len(calls) - 1
            calls[-1] = (calls[-1][0], calls[-1][1] + event.text)
    return "".join(e.text for e in events if isinstance(e, Content)), calls, events


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ("Just words. ", "Just words. ", []),
        ("a < b <tool", "a < b <tool", []),
        (ONE, "", [("add", '{"a": 1, "b": "}{\\"<"}')]),
        ("Let me see.\n" + ONE, "Let me see.", [("add", '{"a": 1, "b": "}{\\"<"}')]),
        (ONE + "\n" + ONE.replace("add", "sub") + "\n", "",
         [("add", '{"a": 1, "b": "}{\\"<"}'), ("sub", '{"a": 1, "b": "}{\\"<"}')]),
        (ONE + " done", " done", [("add", '{"a": 1, "b": "}{\\"<"}')]),
        ('<tool_call>{"name":"f","arguments":{}}</tool_call>', "", [("f", "{}")]),
        ('<tool_call>{"arguments":{"x":[1]},"name":"f"}</tool_call>', "", [("f", '{"x": [1]}')]),
        ('<tool_call>{"name":"f","arguments":"{}"}</tool_call>', "", [("f", "{}")]),
        ('<tool_call>{"name":"f"}</tool_call>', "", [("f", "{}")]),
        ("<tool_call>oops</tool_call>.", "<tool_call>oops</tool_call>.", []),
        ("<tool_call>[1]</tool_call>", "<tool_call>[1]</tool_call>", []),
        ('<tool_call>{"name":3,"arguments":{}}</tool_call>',
         '<tool_call>{"name":3,"arguments":{}}</tool_call>', []),
        ('<tool_call>{"name":"f","arg', '<tool_call>{"name":"f","arg', []),
        ('<tool_call>{"name":"f","arguments":{"a":"b', "", [("f", '{"a":"b')]),
    ],
)  # fmt: skip
def test_what_is_read(text, content, calls) -> None:
    assert read(text)[:2] == (content, calls)
    assert read(*text)[:2] == (content, calls)


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ('{"name": "f", "arguments": {"a": "}"}}', "", [("f", '{"a": "}"}')]),
        ('```json\n{\n  "name": "f",\n  "arguments": {\n}\n}\n```', "", [("f", "{\n}")]),
        ('{"name":"f","parameters":{}}\n{"name":"g","arguments":{}} ', "",
         [("f", "{}"), ("g", "{}")]),
        ('```\n{"name":"f","arguments":{}}\n```\n```json\n{"name":"g","arguments":{}}\n```\n', "",
         [("f", "{}"), ("g", "{}")]),
        ('{"name":"f","arguments":{}}\nDone.', "\nDone.", [("f", "{}")]),
        ('{"name":"h","arguments":{}}', '{"name":"h","arguments":{}}', []),
        ('{"name":"f","ar', '{"name":"f","ar', []),
        ('{"a": 1}', '{"a": 1}', []),
        ("```python\nf()\n```", "```python\nf()\n```", []),
        ("  Words.", "  Words.", []),
        ('So: {"name":"f","arguments":{}}', 'So: {"name":"f","arguments":{}}', []),
        (ONE, "", [("add", '{"a": 1, "b": "}{\\"<"}')]),
    ],
)  # fmt: skip
def test_calls_without_tags(text, content, calls) -> None:
    assert read(text, names=("f", "g"))[:2] == (content, calls)
    assert read(*text, names=("f", "g"))[:2] == (content, calls)
    if text != ONE:
        assert read(text)[:2] == (text, [])  # only where tools are named


def test_arguments_stream_before_the_call_is_complete() -> None:
    reader = ToolCallReader()
    assert reader.push('<tool_call>\n{"name": "say", "arg') == []
    assert reader.push('uments": {"text": "he') == [
        CallBegins(0, "say"),
        CallArguments(0, '{"text": "he'),
    ]
    assert reader.push('llo"}') == [CallArguments(0, 'llo"}')]
    assert reader.push("}\n</tool_call>") == []


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.lists(st.tuples(st.from_regex("[a-z_]{1,8}", fullmatch=True),
                       st.dictionaries(st.text(), json_values, max_size=3)), max_size=3),
    st.data(),
)  # fmt: skip
def test_any_cut_of_any_calls(calls, data) -> None:
    text = "\n".join(
        f"<tool_call>\n{json.dumps({'name': n, 'arguments': a}, ensure_ascii=False)}\n</tool_call>"
        for n, a in calls
    )
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    content, got, _ = read(*pieces)
    assert content == ""
    assert [(name, json.loads(arguments)) for name, arguments in got] == calls
    upto = data.draw(st.integers(0, len(text)))
    read(text[:upto])  # cut anywhere, it never fails
