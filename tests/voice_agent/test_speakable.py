"""Text for the ear, and where each spoken word comes from."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from voice_agent.languages.en import numbers, roman
from voice_agent.speakable import speak_words

pytestmark = pytest.mark.unit


def said(text: str, lexicon: dict[str, str] | None = None) -> str:
    return " ".join(w.text for w in speak_words(text, 0, lexicon))


@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        ("I have 3 cats and 42 dogs", "I have three cats and forty-two dogs"),
        ("1,234,567", "one million two hundred thirty-four thousand five hundred sixty-seven"),
        ("3.14 and -5 or 0", "three point one four and minus five or zero"),
        ("the 1st, 2nd, 23rd and 100th", "the first, second, twenty-third and one hundredth"),
        (
            "in 1999 and 2005 and 2024",
            "in nineteen ninety-nine and two thousand five and twenty twenty-four",
        ),
        ("the 1990s or the '80s", "the nineteen nineties or the eighties"),
        ("$5", "five dollars"),
        ("$1", "one dollar"),
        ("$5.99", "five dollars and ninety-nine cents"),
        ("€0.50", "fifty cents"),
        ("$1.2 million", "one point two million dollars"),
        ("£3bn", "three billion pounds"),
        ("45%", "forty-five percent"),
        ("2.5%", "two point five percent"),
        ("at 3:30", "at three thirty"),
        ("at 3:05 PM", "at three oh five P-M"),
        ("at 10:00", "at ten o'clock"),
        ("from 9am to 5 p.m.", "from nine A-M to five P-M."),
        ("on March 3", "on March third"),
        ("on Jan. 21st, 2024", "on January twenty-first, twenty twenty-four"),
        ("2024-03-05", "March fifth twenty twenty-four"),
        ("12/25/2023", "December twenty-fifth twenty twenty-three"),
        ("call 555-1234", "call five five five, one two three four"),
        ("zip 02139", "zip zero two one three nine"),
        ("5 km and 1 kg", "five kilometers and one kilogram"),
        ("20°C", "twenty degrees Celsius"),
        ("60 mph", "sixty miles per hour"),
        ("1/2 cup", "one half cup"),
        ("3/4 done", "three quarters done"),
        ("at 5 in the morning", "at five in the morning"),
        ("a 5A fuse, Section 5 A", "a five amps fuse, Section five A"),
        ("24/7 and 9/11", "twenty-four seven and nine eleven"),
        ("on Main St. near St. John", "on Main street near saint John"),
        ("ask Dr. Lee on Ocean Dr.", "ask doctor Lee on Ocean drive."),
        ("5-7 days", "five to seven days"),
        ("Dr. Smith vs. Mr. Jones", "doctor Smith versus mister Jones"),
        ("fruit, e.g. apples, etc.", "fruit, for example apples, et cetera."),
        ("R&D", "R and D"),
        ("the U.S. economy", "the U-S economy"),
        ("see https://www.example.com/docs?x=1.", "see example dot com slash docs."),
        ("example.org/a-b", "example dot org slash a dash b"),
        ("bob_1@mail.example.com", "bob underscore one at mail dot example dot com"),
        ("**bold** _it_ `code` ~~gone~~", "bold it code gone"),
        ("[the docs](https://x.example/y) help", "the docs help"),
        ("# Title", "Title"),
        ("- item", "item"),
        ("2. second thing", "two. second thing"),
        ("```python\nx = 1\n```", "one line of Python code."),
        ("Hi 😀 there 🎉!", "Hi there!"),
        ("#1 of C++", "number one of C plus plus"),
        ("B12 and GPT-4", "B twelve and G-P-T four"),
        ("“Quoted,” he said", "Quoted, he said"),
        ("don’t", "don't"),
        ("No. 5 is alive", "number five is alive"),
        ("and/or", "and or"),
        ("Wait... what", "Wait. what"),
        ("I may read the sun", "I may read the sun"),
        # telephone, cards, versions, addresses
        ("call 1-800-555-1234", "call one, eight zero zero, five five five, one two three four"),
        (
            "+44 20 7946 0958",
            "plus four four, two zero, seven nine four six, zero nine five eight",
        ),
        ("0800 123 456", "zero eight zero zero, one two three, four five six"),
        (
            "card 4111 1111 1111 1234",
            "card four one one one, one one one one, one one one one, one two three four",
        ),
        ("at 192.168.1.1", "at one nine two dot one six eight dot one dot one"),
        ("Python 3.11.2 or v2.0", "Python three point eleven point two or version two point zero"),
        ("http://localhost:8080", "localhost colon eight zero eight zero"),
        # money
        ("$5-$10 or $5–10", "five to ten dollars or five to ten dollars"),
        ("$19.99/month", "nineteen dollars and ninety-nine cents per month"),
        ("5 USD or EUR 20", "five dollars or twenty euros"),
        ("US$5, A$1 and -$2", "five dollars, one Australian dollar and minus two dollars"),
        # amounts
        ("20%-30%", "twenty to thirty percent"),
        ("2½ cups, ½ spoon", "two and a half cups, one half spoon"),
        ("10^6, x^2 and y²", "ten to the six, x squared and y squared"),
        ("2x faster at 640x480", "two times faster at six hundred forty by four hundred eighty"),
        ("~5 km", "about five kilometers"),
        ("5'10\" tall", "five foot ten tall"),
        ("10 Mbps", "ten megabits per second"),
        # dates and times
        ("on 3 March 2024", "on March third twenty twenty-four"),
        ("March 3rd–5th", "March third to fifth"),
        ("Fri 5 Jan", "Friday January fifth"),
        ("the May 5 may be", "the May fifth may be"),
        ("12:30:45", "twelve thirty and forty-five seconds"),
        ("pp. 12-14", "pages twelve to fourteen"),
        # acronyms: by their letters without a vowel or by the list, else as words
        ("the API of NASA", "the A-P-I of NASA"),
        ("HTTP, SQL and PDFs", "H-T-T-P, S-Q-L and P-D-F's"),
        ("the CEO's USB-C", "the C-E-O's U-S-B-C"),
        ("STOP, hmm, SHH", "STOP, hmm, SHH"),
        ("AT&T and C# users", "A-T and T and C sharp users"),
        # Roman numerals where they are plain
        ("Henry VIII and World War II", "Henry the eighth and World War two"),
        ("Chapter IV, part XL", "Chapter four, part forty"),
        ("Part I, Act I of", "Part one, Act one of"),
        ("George I was king", "George the first was king"),
        ("the part I like", "the part I like"),
        ("Can Henry I know do", "Can Henry I know do"),
        ("Your IV is in, my CV too", "Your I-V is in, my C-V too"),
        ("I am, said I", "I am, said I"),
        ("the Rocky III film", "the Rocky three film"),
        # markup
        ("<b>bold</b><br/> &amp; more", "bold and more"),
        ("I like it :) <3", "I like it"),
        ("| a | b |\n|---|---|\n| 1 | 2 |", "a, b, one, two,"),
        ("```sh\nls\n\npwd\n```", "two lines of shell code."),
        ("```\nplain\n```\nso", "one line of code. so"),
        ("so ```x = 1``` it is", "so x equals one it is"),
    ],
)
def test_said(text: str, spoken: str) -> None:
    assert said(text) == spoken


@pytest.mark.parametrize("text", ["", "😀", "...", "!?", "* * *", "```", "— –", "   "])
def test_nothing_to_say(text: str) -> None:
    assert speak_words(text, 0) == ()


def test_sources_point_at_what_was_written() -> None:
    text = "Pay $5, Dr. Lee."
    words = speak_words(text, 100)
    assert [(w.text, text[w.source[0] - 100 : w.source[1] - 100]) for w in words] == [
        ("Pay", "Pay"),
        ("five", "$5,"),
        ("dollars,", "$5,"),
        ("doctor", "Dr."),
        ("Lee.", "Lee."),
    ]


def test_lexicon_ignores_case_and_keeps_the_source() -> None:
    (first, second) = speak_words("Qwen's great", 0, {"qwen": "kwen"})
    assert (first.text, first.source, second.text) == ("kwen's", (0, 6), "great")


def test_a_lexicon_has_words_of_any_form() -> None:
    lexicon = {"GPT-4": "gee four", "New York": "the apple", "x": "ex", ".NET": "dot net"}
    assert said("GPT-4, gpt-4's and GPT-45", lexicon).startswith("gee four, gee four's and G-P-T")
    assert said("in new york, on .NET", lexicon) == "in the apple, on dot net"
    assert said("x.com and x", lexicon) == "x dot com and ex"
    assert said("C++", {"c++": "see"}) == "see", "an agent's own goes first"
    assert said("well, shh now", {"shh": ""}) == "well, now"


def test_a_block_of_code_is_said_at_once_and_is_heard_whole() -> None:
    text = "So:\n```py\na\nb\n```"
    words = speak_words(text, 0)
    assert [w.text for w in words] == ["So:", "two", "lines", "of", "Python", "code."]
    assert {w.source for w in words[1:]} == {(4, len(text))}


@pytest.mark.parametrize(
    ("text", "value"),
    [("I", 1), ("IV", 4), ("VIII", 8), ("XIV", 14), ("XL", 40), ("LVIII", 58), ("MCMXCIX", 1999),
     ("IIII", 0), ("VX", 0), ("IC", 0), ("", 0), ("MIX", 1009)],
)  # fmt: skip
def test_roman_numerals(text: str, value: int) -> None:
    assert roman.value(text) == value


def test_numbers_are_those_of_num2words() -> None:
    """Of no part of ours. It joins with "and" and commas, which no voice needs."""
    num2words = pytest.importorskip("num2words").num2words

    def theirs(n: int, to: str) -> str:
        return str(num2words(n, to=to)).replace(",", "").replace(" and ", " ")

    for n in [*range(1200), *(7**k for k in range(21)), 10**15, 999_999, 1_000_001]:
        assert " ".join(numbers.cardinal(n)) == theirs(n, "cardinal")
        assert " ".join(numbers.ordinal(n)) == theirs(n, "ordinal")
    for n in [*range(1010, 2000, 7), *range(2010, 2100, 7)]:
        assert " ".join(numbers.year(n)) == theirs(n, "year").replace("oh-", "oh ")


def test_numbers() -> None:
    assert " ".join(numbers.cardinal(1_000_001)) == "one million one"
    assert numbers.cardinal(-3) == ["minus", "three"]
    assert len(numbers.cardinal(10**30)) == 31
    assert " ".join(numbers.ordinal(112)) == "one hundred twelfth"
    assert " ".join(numbers.year(1900)) == "nineteen hundred"
    assert " ".join(numbers.year(1905)) == "nineteen oh five"
    assert " ".join(numbers.year(2000)) == "two thousand"


@settings(max_examples=300, deadline=None)
@given(
    st.one_of(
        st.text(max_size=120),
        st.text(alphabet="0123456789.,:/-$%€°+()@ #*_`[]'apmkKM\n", max_size=60),
    )
)
@example("F0")  # the end of "CHF" is no currency
def test_any_text_gives_clean_words_with_ordered_sources(text: str) -> None:
    words = speak_words(text, 7)
    for word in words:
        assert word.text
        assert not any(c.isspace() for c in word.text)
        assert any(c.isalnum() for c in word.text)
        assert not any(c.isascii() and c.isdigit() for c in word.text)
        assert 7 <= word.source[0] < word.source[1] <= 7 + len(text)
    spans = [w.source for w in words]
    assert spans == sorted(spans)
    for one, next_one in pairwise(spans):
        assert next_one == one or next_one[0] >= one[1]
