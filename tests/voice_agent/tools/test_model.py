"""Tools told to real models: the segments of a dialogue are what the whole template writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.text.load import load_text

pytestmark = pytest.mark.model

TOOL = {
    "type": "function",
    "function": {"name": "look", "description": "Look.", "parameters": {"type": "object"}},
}


@pytest.mark.parametrize("results", [["sunny"], ["sunny", "wet <|im_end|>"]])
def test_segments_are_the_templates_own(qwen_path: Path, results: list[str]) -> None:
    tokenizer, form = load_text(qwen_path)
    calls = [("look", "{}")] * len(results)
    joined = [
        *form.system("Be brief.", [TOOL]), *form.user("hi"), *form.assistant_open(),
        *form.tool_calls(calls), *form.assistant_close(), *form.tool_results(results),
        *form.assistant_open(),
    ]  # fmt: skip
    whole = form.prompt(
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "hi"},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [
                    {"type": "function", "function": {"name": "look", "arguments": {}}}
                    for _ in calls
                ],
            },
            *({"role": "tool", "content": result} for result in results),
        ],
        [TOOL],
    )
    assert tokenizer.decode(joined) == tokenizer.decode(whole)
    end = tokenizer.special["<|im_end|>"]
    assert joined.count(end) == whole.count(end), "a result's text is no end"


@pytest.mark.parametrize("path", ["smollm2_path"])
def test_a_template_without_tools_has_them_in_the_instructions(
    path: str, request: pytest.FixtureRequest
) -> None:
    tokenizer, form = load_text(request.getfixturevalue(path))
    text = tokenizer.decode(form.system("Be brief.", [TOOL]))
    assert "Be brief." in text
    assert '"name": "look"' in text
    assert text.count("<|im_start|>") == 1
