"""Cutting a token stream: the same clauses for any chunking, early, and not in the wrong place."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from voice_agent.clauses import ClauseRules, ClauseSplitter
from voice_agent.tts.base import Clause

pytestmark = pytest.mark.unit


def split(text: str, size: int | None = None) -> list[Clause]:
    splitter = ClauseSplitter()
    step = size or max(1, len(text))
    out: list[Clause] = []
    for i in range(0, len(text), step):
        out += splitter.push(text[i : i + step])
    return out + splitter.finish()


def texts(text: str) -> list[str]:
    return [c.text for c in split(text)]


def test_clauses_tile_the_text() -> None:
    text = "Sure! I can help with that. The library opens at nine, and closes at five.\n\nBye."
    clauses = split(text)
    assert "".join(c.text for c in clauses) == text
    assert [c.index for c in clauses] == list(range(len(clauses)))
    at = 0
    for c in clauses:
        assert c.span == (at, at + len(c.text))
        assert text[slice(*c.span)] == c.text
        at = c.span[1]
        for word in c.words:
            assert c.span[0] <= word.source[0] < word.source[1] <= c.span[1]


def test_first_clause_is_short_and_later_ones_are_sentences() -> None:
    assert texts(
        "Paris is the capital of France, and it has about two million people. It is old."
    ) == [
        "Paris is the capital of France,",
        " and it has about two million people.",
        " It is old.",
    ]
    assert texts("Well, the shop is open. Come in, please, whenever you like.") == [
        "Well, the shop is open.",
        " Come in, please, whenever you like.",
    ]


def test_first_clause_without_punctuation_is_cut_at_a_conjunction_or_after_eight_words() -> None:
    assert texts("The shop opens at nine because the owner likes it")[0] == "The shop opens at nine"
    first = texts("Today many people walk happily along very old streets near rivers")[0]
    assert len(first.split()) <= 8
    # it does not end with a word that leans on the next
    first = texts("Our nearest open restaurant serves good food for the whole family")[0]
    assert first.split()[-1] not in ("for", "the")


def test_long_stretches_are_bounded() -> None:
    text = "word " * 100
    assert max(len(c.words) for c in split(text)) <= 20
    text = "x" * 2000
    assert max(len(c.text) for c in split(text)) <= ClauseRules().max_chars
    assert "".join(texts(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "I saw Dr. Smith today",
        "Mr. and Mrs. Jones came",
        "Bring fruit, e.g. apples",
        "The U.S. economy grew fast",
        "We meet at 9 a.m. on Monday",
        "Pi is 3.14159 or so",
        "It costs 1,000,000 dollars now",
        "Be there at 3:30 sharp",
        "Go to example.com now",
        "See https://a.example.com/b?c=d,e;f now",
        "Mail bob.lee@example.co.uk today",
        "Written by J. K. Rowling herself",
        "Read No. 5 tonight",
        "It is version 2.5.1 today",
        "Call 555-1234 now",
        "Well-known facts",
    ],
)
def test_does_not_split_inside(text: str) -> None:
    rules = ClauseRules(first_min=3, first_opener=50, first_max=50, min=1)
    splitter = ClauseSplitter(rules=rules)
    lead = "So there, we. "
    clauses = [*splitter.push(lead + text + "."), *splitter.finish()]
    inside = [c.text.strip() for c in clauses if c.span[0] > 0]
    assert "".join(c.text for c in clauses) == lead + text + "."
    # commas may divide, full stops inside may not
    assert not any(
        t.endswith(("Dr.", "Mr.", "e.g.", "U.S.", "a.m.", "J.", "K.", "No.")) for t in inside
    )
    assert sum(t.endswith(".") for t in inside) == 1


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("He lives in the U.S. He likes it.", "He lives in the U.S."),
        ("We start at 9 a.m. Do not be late.", "We start at 9 a.m."),
        ("The answer is no. Then he left.", "The answer is no."),
        ('"Stop right there." She ran.', '"Stop right there."'),
        ("(That is all.) Next one.", "(That is all.)"),
        ("Is it so?! Yes.", "Is it so?!"),
        ("Yes it is—really.", "Yes it is—"),
        ("Yes it is — really.", "Yes it is —"),
        ("Here you go:\n- one", "Here you go:"),
        ("Of course\n- one", "Of course"),
        ("It was 1999. Then", "It was 1999."),
        ("Done deal!😀 Next", "Done deal!"),
    ],
)
def test_splits_after(text: str, first: str) -> None:
    assert texts(text)[0] == first


def test_ellipsis_and_lists() -> None:
    assert texts("Hmm... let me think... yes.")[0] == "Hmm... let me think..."
    assert texts("Try these:\n1. First one here\n2. Second one here\n") == [
        "Try these:",
        "\n1. First one here",
        "\n2. Second one here",
        "\n",
    ]


def test_a_full_stop_is_proved_by_the_next_character_or_the_end() -> None:
    splitter = ClauseSplitter()
    assert splitter.push("I am fine.") == []
    (clause,) = splitter.push(" ")
    assert clause.text == "I am fine."
    splitter = ClauseSplitter()
    assert splitter.push("I am fine.") == []
    assert [c.text for c in splitter.finish()] == ["I am fine."]
    assert splitter.finish() == []
    with pytest.raises(ValueError, match="finished"):
        splitter.push("x")


@pytest.mark.parametrize("text", ["", "...", "😀", "!?", " \n ", "—", "😀😀 !!! ...", "**", "- "])
def test_nothing_to_say(text: str) -> None:
    clauses = split(text)
    assert "".join(c.text for c in clauses) == text
    assert all(c.words == () and c.pause_ms == 0 for c in clauses)


def test_pauses_follow_the_punctuation() -> None:
    stop, comma = split("Now then, we are all here, as you can see. Good.")[:2]
    assert stop.pause_ms < comma.pause_ms
    assert split("No mark at all")[0].pause_ms == 0


def test_lexicon_reaches_the_words() -> None:
    splitter = ClauseSplitter({"Nginx": "engine x"})
    splitter.push("I run nginx.")
    assert splitter.finish()[0].spoken == "I run engine x."


def test_a_block_of_code_is_one_clause() -> None:
    code = "\n```python\n" + "x = f(1, 2); y. z\n\n" * 60 + "```"
    text = f"Here you are:{code}\nThat prints it."
    clauses = split(text)
    assert [c.text for c in clauses] == ["Here you are:", code, "\nThat prints it."]
    assert clauses[1].spoken == "sixty lines of Python code."
    assert split(text, 1) == clauses
    open_ended = split("Well then:\n```sh\nls\npwd")[-1]
    assert (open_ended.text, open_ended.spoken) == ("\n```sh\nls\npwd", "two lines of shell code.")


def test_a_block_waits_for_its_end_only() -> None:
    splitter = ClauseSplitter()
    assert splitter.push("```sh\nls\n``") == []
    assert splitter.push("`") == [], "more of the line may follow"
    (clause,) = splitter.push("\n")
    assert clause.text == "```sh\nls\n```"


def test_three_back_ticks_in_a_line_are_no_block() -> None:
    assert texts("```x``` is it, so. And more of it.") == ["```x``` is it,", " so. And more of it."]
    assert texts("It is: ```x\n``` so it is.")[0] == "It is:"


def test_the_label_of_a_link_is_not_cut() -> None:
    (first, *_) = split("See [the docs, or not. Well](https://a.com/x) now. Then go on.")
    assert first.spoken == "See the docs, or not. Well now."
    long = split("See [" + "many words, and more. " * 9)
    assert len(long) > 4, "an open bracket does not stop the voice"


FRAGMENTS = [
    "Dr.", "Smith", "hello", "and", "because", "the", "U.S.", "a.m.", "3.5", "1,000", "3:30",
    "I", ".", ",", "?", "!", ";", ":", "—", "–", "-", "…", "...", "\n", " ", "  ", '"', ")", "(",
    "*", "`", "😀", "No.", "J.", "e.g.", "https://x.y/z?q=1,2", "a@b.co", "$5.99", "etc.", "。",
    "1.", "\n- ", "```", "\n```", "```\n", "[", "](http://a.b)",
]  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(
    st.one_of(
        st.lists(st.sampled_from(FRAGMENTS), max_size=60).map("".join),
        st.lists(st.sampled_from(FRAGMENTS), max_size=60).map(" ".join),
        st.text(max_size=80),
    ),
    st.integers(0, 2**32),
)
def test_any_chunking_gives_the_same_clauses(text: str, seed: int) -> None:
    whole = split(text)
    assert "".join(c.text for c in whole) == text
    assert split(text, 1) == whole
    rng, splitter, out, at = random.Random(seed), ClauseSplitter(), [], 0
    while at < len(text):
        size = rng.randint(1, 9)
        out += splitter.push(text[at : at + size])
        at += size
    assert out + splitter.finish() == whole
    starts = [w.source[0] for c in whole for w in c.words]
    assert starts == sorted(starts)
