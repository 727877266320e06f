from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.text.stops import StopMatcher

pytestmark = pytest.mark.unit

texts = st.text(alphabet="ab\n", max_size=30)
stops = st.lists(st.text(alphabet="ab\n", min_size=1, max_size=4), max_size=3)


def run(stop: list[str], parts: list[str]) -> tuple[str, str | None]:
    matcher = StopMatcher(stop)
    shown = "".join(matcher.push(part) for part in parts)
    return shown + matcher.finish(), matcher.stopped


@given(texts, stops, st.integers(1, 5))
def test_the_first_complete_stop_cuts_whatever_the_pieces(
    text: str, stop: list[str], size: int
) -> None:
    pieces = [text[i : i + size] for i in range(0, len(text), size)]
    shown, found = run(stop, pieces)
    ends = [(text.find(s) + len(s), text.find(s), s) for s in stop if s in text]
    if ends:
        _, start, first = min(ends)
        assert (shown, found) == (text[:start], first)
    else:
        assert (shown, found) == (text, None)


@given(st.lists(texts), stops)
def test_nothing_shown_is_ever_part_of_a_stop(parts: list[str], stop: list[str]) -> None:
    shown, _ = run(stop, parts)
    assert not any(s in shown for s in stop)
    assert "".join(parts).startswith(shown)


def test_a_stop_across_tokens() -> None:
    matcher = StopMatcher(["END."])
    assert [matcher.push(t) for t in ("one E", "N", "D", ". more")] == ["one ", "", "", ""]
    assert matcher.stopped == "END."
    assert matcher.push("later") == ""
    assert matcher.finish() == ""


def test_withheld_text_comes_out_when_it_was_no_stop() -> None:
    matcher = StopMatcher(["\n\nUser:"])
    assert matcher.push("Hi\n") == "Hi"
    assert matcher.push("\nUsed") == "\n\nUsed"
    assert matcher.push("\n\nUse") == ""
    assert matcher.finish() == "\n\nUse"
    assert matcher.stopped is None
