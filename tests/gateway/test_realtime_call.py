"""What a client asks for through a session, and what becomes of it in the call and its prompts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.fakes import say, silence, tool_call
from tests.support.realtime_scene import Talk

pytestmark = pytest.mark.unit

LOOK = {
    "type": "function", "name": "look", "description": "Looks outside.",
    "parameters": {"type": "object", "properties": {"where": {"type": "string"}}},
}  # fmt: skip
LONG = "one two three four five six, seven eight nine ten eleven twelve, thirteen fourteen."


def errors(talk: Talk) -> list[dict[str, Any]]:
    return [e["error"] for e in talk.all("error")]


def model(asked: str) -> str:
    """Looks when asked about the weather; says what it was told."""
    return tool_call("look", '{"where": "out"}') if "weather" in asked else f"I say {asked}."


# ---------------------------------------------------------------- tools


def test_a_clients_tool_goes_round() -> None:
    talk = Talk(model)
    talk.converse(
        lambda t: t.update(tools=[LOOK]), silence(300), say("what is the weather"), silence(3000),
        lambda t: t.send(
            "conversation.item.create",
            item={"type": "function_call_output", "output": "It rains",
                  "call_id": t.last("response.function_call_arguments.done")["call_id"]},
        ),
        silence(500), lambda t: t.send("response.create"),
    )  # fmt: skip
    assert errors(talk) == []
    done, spoken = (e["response"] for e in talk.all("response.done"))
    (call,) = done["output"]
    assert (done["status"], call["type"], call["name"]) == ("completed", "function_call", "look")
    assert json.loads(call["arguments"]) == {"where": "out"}
    assert spoken["output"][0]["content"][0]["transcript"] == "I say It rains."
    assert "[look]" in talk.thinker.prompts[0], "the model is told of it"
    assert talk.thinker.prompts[-1].count("<t>It rains|") == 1
    order = [e["type"] for e in talk.told if "item" in e and e["item"]["type"] == "function_call"]
    assert order == [
        "response.output_item.added", "conversation.item.added", "conversation.item.done",
        "response.output_item.done",
    ]  # fmt: skip
    created = [e["response"]["id"] for e in talk.all("response.created")]
    assert len(created) == 2, "nothing is said of the result before it is asked for"


def test_a_caller_who_speaks_first_is_answered_and_the_result_follows() -> None:
    talk = Talk(model)
    talk.converse(
        lambda t: t.update(tools=[LOOK]), silence(300), say("what is the weather"), silence(3000),
        say("hello"), silence(4000),
        lambda t: t.send("conversation.item.create", item={
            "type": "function_call_output", "output": "It rains", "call_id": "call_0_0"}),
        lambda t: t.send("response.create"),
    )  # fmt: skip
    assert errors(talk) == []
    second, third = talk.thinker.prompts[-2:]
    assert "still running" in second
    assert third.endswith("<s>Result of look: It rains|<a>")


def test_wrong_results_are_refused() -> None:
    talk = Talk("Yes.")
    result = {"type": "function_call_output", "call_id": "call_7", "output": "x"}
    call = {"type": "function_call", "call_id": "call_7", "name": "look", "arguments": "{}"}
    talk.converse(
        lambda t: t.send("conversation.item.create", item=result),
        lambda t: t.send("conversation.item.create", item=call),
        lambda t: t.send("conversation.item.create", item=call),
        lambda t: t.send("conversation.item.create", item={**result, "output": "x" * 5000}),
        lambda t: t.send("conversation.item.create", item=result),
        lambda t: t.send("conversation.item.create", item=result),
    )
    assert [e["code"] for e in errors(talk)] == ["VA119", "VA119", "VA109", "VA119"]
    assert talk.history == [("assistant", ""), ("tool", "x")]


def test_no_tool_is_called_against_the_clients_choice() -> None:
    talk = Talk(model)
    talk.thinker.no_call = "I may not look."
    talk.converse(
        lambda t: t.update(tools=[LOOK], tool_choice="none"),
        silence(300), say("what is the weather"), silence(3000),
        lambda t: t.update(tool_choice="required"),
        lambda t: t.send("response.create", response={"tool_choice": {
            "type": "function", "name": "nothing"}}),
    )  # fmt: skip
    assert talk.all("response.function_call_arguments.done") == []
    assert [e["code"] for e in errors(talk)] == ["VA118", "VA117"]
    assert talk.session.settings.tool_choice == "none", "the refused one is not in force"


def test_names_of_tools_are_checked_and_nothing_is_half_changed() -> None:
    talk = Talk("Yes.")
    talk.converse(
        lambda t: t.update(tools=[LOOK], instructions="Be kind."),
        lambda t: t.update(tools=[{**LOOK, "name": "two words"}], instructions="Be cruel."),
        lambda t: t.say("hello"), lambda t: t.send("response.create"),
    )  # fmt: skip
    (error,) = errors(talk)
    assert error["code"] == "VA117"
    assert talk.thinker.prompts[-1].startswith("<s>Be kind.[look]|")


# ---------------------------------------------------------------- responses


def test_a_response_of_its_own_kind_leaves_the_next_one_alone() -> None:
    talk = Talk("Yes.")
    talk.converse(
        lambda t: t.say("hello"),
        lambda t: t.send("response.create", response={
            "instructions": "Rhyme.", "output_modalities": ["text"], "metadata": {"a": "b"},
            "max_output_tokens": 7}),
        silence(1000), lambda t: t.say("and now"), lambda t: t.send("response.create"),
    )  # fmt: skip
    assert errors(talk) == []
    first, second = talk.thinker.prompts
    assert first == "<s>Rhyme.|<u>hello|<a>"
    assert second == "<s>Be brief.|<u>hello|<a>Yes.|<u>and now|<a>"
    rhyme, plain = (e["response"] for e in talk.all("response.done"))
    assert (rhyme["output_modalities"], rhyme["max_output_tokens"]) == (["text"], 7)
    assert rhyme["metadata"] == {"a": "b"}
    assert (plain["output_modalities"], plain["max_output_tokens"]) == (["audio"], "inf")
    assert talk.thinker.forgotten[0].endswith("/0"), "its own cache went with it"


def test_a_response_beside_the_conversation() -> None:
    talk = Talk(lambda asked: f"About {asked}.")
    talk.converse(
        lambda t: t.say("secret"), lambda t: t.say("hello", item={"id": "mine"}),
        lambda t: t.send("response.create", response={
            "conversation": "none", "output_modalities": ["text"], "instructions": "Classify.",
            "metadata": {"topic": "x"}, "input": [{"type": "item_reference", "id": "mine"}]}),
        silence(1000), lambda t: t.send("response.create", response={"conversation": "none"}),
        silence(3000), lambda t: t.send("response.create"),
    )  # fmt: skip
    assert errors(talk) == []
    beside, aloud, plain = (e["response"] for e in talk.all("response.done"))
    assert talk.thinker.prompts[0] == "<s>Classify.|<u>hello|<a>"
    assert beside["conversation_id"] is None
    assert beside["metadata"] == {"topic": "x"}
    assert beside["output"][0]["content"] == [{"type": "output_text", "text": "About hello."}]
    spoken = talk.all("response.output_audio.delta")
    assert {aloud["id"], plain["id"]} == {e["response_id"] for e in spoken}
    assert talk.thinker.prompts[2] == "<s>Be brief.|<u>secret|<u>hello|<a>", "nothing is left of it"
    added = [e["item"]["id"] for e in talk.all("conversation.item.added")]
    assert beside["output"][0]["id"] not in added


def test_one_beside_the_conversation_can_be_cancelled_and_they_are_bounded() -> None:
    talk = Talk(LONG)
    ask = {"conversation": "none", "output_modalities": ["text"]}
    talk.converse(
        *[lambda t: t.send("response.create", response=ask)] * 5, silence(40),
        lambda t: t.send(
            "response.cancel", response_id=t.all("response.created")[0]["response"]["id"]
        ),
    )  # fmt: skip
    assert [e["code"] for e in errors(talk)] == ["VA107"]
    status = [e["response"]["status"] for e in talk.all("response.done")]
    assert status == ["cancelled", "completed", "completed", "completed"]


def test_text_is_written_as_fast_as_it_is_made() -> None:
    talk = Talk(LONG)
    talk.converse(
        lambda t: t.update(output_modalities=["text"]), lambda t: t.say("tell me"),
        lambda t: t.send("response.create"), silence(1000), tail_ms=20,
    )  # fmt: skip
    done = talk.last("response.done")["response"]
    assert done["status"] == "completed", "spoken it would take three seconds"
    assert done["output"][0]["content"] == [{"type": "output_text", "text": LONG}]
    assert not any("one two" in said for said in talk.speaker.said)
    assert talk.history[-1] == ("assistant", LONG)


def test_a_caller_cuts_a_written_answer_where_it_was() -> None:
    talk = Talk(LONG)
    talk.thinker.token_s = 0.2
    talk.converse(
        lambda t: t.update(output_modalities=["text"]), silence(300), say("tell me"),
        silence(2500), say("stop please"), tail_ms=600,
    )  # fmt: skip
    cut = talk.all("response.done")[0]["response"]
    assert cut["status_details"] == {"type": "cancelled", "reason": "turn_detected"}
    written = cut["output"][0]["content"][0]["text"]
    assert 0 < len(written) < len(LONG)
    assert written.startswith(talk.history[1][1])


def test_the_token_limit_is_told() -> None:
    talk = Talk("Yes.")
    talk.thinker.finish = "length"
    talk.converse(lambda t: t.say("hello"), lambda t: t.send("response.create"))
    done = talk.last("response.done")["response"]
    assert done["status"] == "incomplete"
    assert done["status_details"] == {"type": "incomplete", "reason": "max_output_tokens"}
    assert done["output"][0]["status"] == "incomplete"


# ---------------------------------------------------------------- the history


def test_items_are_added_and_deleted_where_the_client_says() -> None:
    talk = Talk("Yes.")
    talk.converse(
        lambda t: t.say("one", item={"id": "a"}), lambda t: t.say("three", item={"id": "c"}),
        lambda t: t.say("two", item={"id": "b"}, previous_item_id="a"),
        lambda t: t.say("zero", "assistant", item={"id": "z"}, previous_item_id="root"),
        lambda t: t.send("conversation.item.delete", item_id="c"),
        lambda t: t.send("conversation.item.delete", item_id="c"),
        lambda t: t.say("lost", previous_item_id="c"), lambda t: t.send("response.create"),
    )  # fmt: skip
    assert [e["code"] for e in errors(talk)] == ["item_not_found"] * 2
    assert talk.thinker.prompts[-1] == "<s>Be brief.|<a>zero|<u>one|<u>two|<a>"
    assert [e["previous_item_id"] for e in talk.all("conversation.item.added")[:4]] == [
        None, "a", "a", None,
    ]  # fmt: skip


def test_spoken_words_and_replies_can_be_deleted_too() -> None:
    talk = Talk("Yes.")

    def delete(t: Talk) -> None:
        for event in t.all("conversation.item.done"):
            t.send("conversation.item.delete", item_id=event["item"]["id"])

    talk.converse(
        silence(300), say("hello"), silence(3000), delete, say("what is the time"), tail_ms=4000
    )
    assert errors(talk) == []
    assert len(talk.all("conversation.item.deleted")) == 2
    assert talk.thinker.prompts[-1] == "<s>Be brief.|<u>what is the time|<a>"


def test_a_deleted_call_takes_its_result_along() -> None:
    talk = Talk(model)
    talk.converse(
        lambda t: t.update(tools=[LOOK]), lambda t: t.say("weather"),
        lambda t: t.send("response.create"), silence(1000),
        lambda t: t.send("conversation.item.create", item={
            "type": "function_call_output", "output": "It rains", "call_id": "call_0_0"}),
        silence(100),
        lambda t: t.send("conversation.item.delete", item_id=next(
            e["item"]["id"] for e in t.all("conversation.item.added")
            if e["item"]["type"] == "function_call")),
    )  # fmt: skip
    assert errors(talk) == []
    assert talk.history == [("user", "weather")]


def test_what_is_written_while_we_speak_comes_after_our_words() -> None:
    talk = Talk(LONG)
    talk.converse(
        lambda t: t.say("tell me"), lambda t: t.send("response.create"), silence(1000),
        lambda t: t.say("and more"), tail_ms=4000,
    )  # fmt: skip
    assert talk.history == [("user", "tell me"), ("assistant", LONG), ("user", "and more")]


def test_truncation_cuts_text_history_and_what_is_computed() -> None:
    talk = Talk(LONG)

    def truncate(t: Talk, ms: int) -> None:
        item = t.all("response.output_item.added")[0]["item"]["id"]
        t.send("conversation.item.truncate", item_id=item, content_index=0, audio_end_ms=ms)

    talk.converse(
        silence(300), say("tell me"), silence(1700), say("stop please"), silence(1500),
        lambda t: truncate(t, 99_000), lambda t: truncate(t, 600),
    )  # fmt: skip
    assert [e["param"] for e in errors(talk)] == ["audio_end_ms"]
    assert talk.last("conversation.item.truncated")["audio_end_ms"] == 600
    assert talk.history[1] == ("assistant", "one two three")
    talk.send(
        "conversation.item.retrieve", item_id=talk.last("conversation.item.truncated")["item_id"]
    )
    item = talk.last("conversation.item.retrieved")["item"]
    assert item["content"] == [{"type": "output_audio", "transcript": "one two three"}]
    later = [flat for flat in talk.thinker.expected if "stop please" in flat]
    assert later[-1].startswith("<s>Be brief.|<u>tell me|<a>one two three|<u>stop please|")


# ---------------------------------------------------------------- turns


def detection(**more: Any) -> dict[str, Any]:
    return {"input": {"turn_detection": {"type": "server_vad", **more}}}


def test_a_silent_caller_is_answered_after_the_clients_time() -> None:
    talk = Talk(lambda asked: f"Still there? {asked}")
    talk.converse(lambda t: t.update(audio=detection(idle_timeout_ms=2000)), tail_ms=14_000)
    first, *_ = silent = talk.all("input_audio_buffer.timeout_triggered")
    assert len(silent) == 3, "a caller who is gone is not talked to for ever"
    assert first["audio_end_ms"] - first["audio_start_ms"] == 2000
    at = talk.told.index(first)
    assert [e["type"] for e in talk.told[at : at + 6]] == [
        "input_audio_buffer.timeout_triggered", "input_audio_buffer.committed",
        "conversation.item.added", "conversation.item.done", "response.created",
        "response.output_item.added",
    ]  # fmt: skip
    assert talk.told[at + 1]["item_id"] == first["item_id"]
    assert talk.history[0] == ("user", "...")


def test_a_cough_over_our_voice_says_nothing_to_the_client() -> None:
    from tests.support.fakes import cough

    talk = Talk(LONG)
    talk.converse(silence(300), say("tell me"), silence(1700), cough(300), tail_ms=3000)
    assert len(talk.all("input_audio_buffer.speech_started")) == 1
    assert talk.all("response.done")[0]["response"]["status"] == "completed"


def test_speech_is_told_when_barge_in_is_decided_and_dated_back_to_its_onset() -> None:
    talk = Talk(LONG)
    talk.converse(silence(300), say("tell me"), silence(1700), say("stop please"), tail_ms=1500)
    first, second = talk.all("input_audio_buffer.speech_started")
    kinds = [e["type"] for e in talk.told]
    at = talk.told.index(second)
    assert kinds[at + 1 : kinds.index("response.done") + 1] == [
        "response.output_audio.done", "response.output_audio_transcript.done",
        "response.content_part.done", "conversation.item.done", "response.output_item.done",
        "response.done",
    ], "both at the decision"  # fmt: skip
    onset_ms = 300 + 2 * 272 + 1700
    assert abs(second["audio_start_ms"] - onset_ms) <= 64
    assert kinds.index("input_audio_buffer.speech_started") < kinds.index("response.created")
    assert first["audio_start_ms"] <= 364


@pytest.mark.parametrize("words", ["hello", "mm-hm"])
def test_what_a_client_commits_is_a_turn_whatever_it_says(words: str) -> None:
    talk = Talk(LONG)
    talk.converse(
        lambda t: t.update(audio={"input": {"turn_detection": None}}), silence(100),
        lambda t: t.say("tell me"), lambda t: t.send("response.create"), silence(1000),
        say(words), lambda t: t.send("input_audio_buffer.commit"), tail_ms=6000,
    )  # fmt: skip
    assert errors(talk) == []
    done = talk.all("response.done")[0]["response"]
    assert done["status"] == "completed", "a commit interrupts nothing"
    completed = talk.last("conversation.item.input_audio_transcription.completed")
    assert completed["transcript"] == words
    assert talk.history == [("user", "tell me"), ("assistant", LONG), ("user", words)]


def test_what_is_said_over_a_voice_that_may_not_be_interrupted_is_answered_after_it() -> None:
    talk = Talk(lambda asked: LONG if asked == "tell me" else "Yes.")
    talk.converse(
        lambda t: t.update(audio=detection(interrupt_response=False)), silence(300),
        say("tell me"), silence(1500), say("stop please"), tail_ms=6000,
    )  # fmt: skip
    status = [e["response"]["status"] for e in talk.all("response.done")]
    assert status == ["completed", "completed"]
    assert talk.history[2:] == [("user", "stop please"), ("assistant", "Yes.")]


def test_a_transcription_session_writes_down_and_answers_nothing() -> None:
    talk = Talk("Yes.")
    talk.converse(
        lambda t: t.send("session.update", session={"type": "transcription"}), silence(300),
        say("hello"), silence(2000), lambda t: t.send("response.create"),
    )  # fmt: skip
    assert talk.last("session.updated")["session"]["type"] == "transcription"
    assert talk.all("response.created") == []
    assert [e["code"] for e in errors(talk)] == ["unsupported_event"]
    assert (
        talk.last("conversation.item.input_audio_transcription.completed")["transcript"] == "hello"
    )


# ---------------------------------------------------------------- WebRTC


def test_over_webrtc_the_server_knows_where_its_sound_was_cut() -> None:
    talk = Talk(LONG, carries_audio=False)
    talk.converse(silence(300), say("tell me"), silence(1700), say("stop please"), tail_ms=1500)
    started = talk.all("output_audio_buffer.started")[0]
    cleared = talk.all("output_audio_buffer.cleared")[0]
    assert started["response_id"] == cleared["response_id"]
    cut = talk.all("conversation.item.truncated")[0]
    heard = talk.history[1][1]
    assert LONG.startswith(heard)
    talk.send("conversation.item.retrieve", item_id=cut["item_id"])
    assert talk.last("conversation.item.retrieved")["item"]["content"][0]["transcript"] == heard
    assert abs(cut["audio_end_ms"] - 200 * len(heard.split())) <= 200
    assert talk.all("response.output_audio.delta") == []


def test_over_webrtc_sound_is_no_event() -> None:
    talk = Talk(LONG, carries_audio=False)
    talk.converse(
        lambda t: t.send("input_audio_buffer.append", audio="AAAA"),
        lambda t: t.send("output_audio_buffer.clear"),
        lambda t: t.send("response.create", response={"conversation": "none"}),
        lambda t: t.say("tell me"), lambda t: t.send("response.create"), silence(1000),
        lambda t: t.send("output_audio_buffer.clear"),
    )  # fmt: skip
    assert [e["code"] for e in errors(talk)] == ["unsupported_event", "unsupported_parameter"]
    done = talk.last("response.done")["response"]
    assert done["status_details"]["reason"] == "client_cancelled"
    assert [e["response_id"] for e in talk.all("output_audio_buffer.cleared")] == [done["id"]]
