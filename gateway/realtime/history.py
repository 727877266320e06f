"""Items that the client adds, deletes and cuts, in step with the call's history."""

from __future__ import annotations

from gateway.call_port import CallPort
from gateway.grant import Change, Grant

from . import client_events as ce
from .errors import ProtocolError, unsupported
from .items import AnyItem, Call, Conversation, Item, Output, new_id
from .permits import check
from .plan import content_of, text_of
from .response import Emit, Response


class History:
    """Changes both sides or none."""

    def __init__(
        self, conversation: Conversation, call: CallPort, emit: Emit, grant: Grant
    ) -> None:
        self._conversation = conversation
        self._call = call
        self._emit = emit
        self._grant = grant

    def create(self, event: ce.ItemCreate) -> None:
        """Raises ProtocolError, and VoiceAgentError for what the call cannot take."""
        asked = event.item
        if isinstance(asked, ce.OtherItem):
            raise unsupported("item.type", f"Items of type {asked.type} are not supported.")
        if asked.id is not None and asked.id in self._conversation:
            raise ProtocolError(
                "item_already_exists", f"There already is an item {asked.id!r}.", param="item.id"
            )
        after = event.previous_item_id
        if after == self._conversation.last_id:
            after = None
        item_id = asked.id or new_id("item")
        item: AnyItem
        if isinstance(asked, ce.MessageItem):
            item = self._message(asked, item_id, after)
        else:
            if after is not None:
                raise unsupported("previous_item_id", "Tools' calls can be added at the end only.")
            item = self._tool(asked, item_id)
        previous = self._conversation.add(item, after)
        for name in ("added", "done"):
            self._emit(f"conversation.item.{name}", item=item.wire(), previous_item_id=previous)

    def _message(self, asked: ce.MessageItem, item_id: str, after: str | None) -> Item:
        text = text_of(asked.content, "item.content")
        if asked.role != "user" or after is not None:
            check(self._grant, Change.INSTRUCTIONS, "item")
        if after is None:
            self._call.client.add_message(asked.role, text, item_id)
        else:
            place = self._conversation.known_before(after)
            self._call.client.add_message(asked.role, text, item_id, after=place)
        return Item(asked.role, content_of(asked.role, text), id=item_id, key=item_id)

    def _tool(self, asked: ce.CallItem | ce.OutputItem, item_id: str) -> Call | Output:
        if isinstance(asked, ce.OutputItem):
            self._call.client.tool_result(asked.call_id, asked.output)
            return Output(asked.call_id, asked.output, id=item_id)
        check(self._grant, Change.TOOLS, "item")
        call_id = asked.call_id or new_id("call")
        self._call.client.tool_call(call_id, asked.name, asked.arguments)
        return Call(call_id, asked.name, asked.arguments, id=item_id)

    def delete(self, item_id: str, *, in_progress: Response | None) -> None:
        """Raises ProtocolError."""
        item = self._conversation.get(item_id)
        check(self._grant, Change.INSTRUCTIONS, "item_id")
        if in_progress is not None and in_progress.item is item:
            raise ProtocolError(
                "item_in_progress",
                "This item is being made: cancel its response first.",
                param="item_id",
            )
        if item.key is not None:
            self._call.client.remove_message(item.key)
        self._conversation.remove(item_id)
        self._emit("conversation.item.deleted", item_id=item_id)

    def truncated(self, response: Response, audio_end_ms: int) -> None:
        """The call has cut it already."""
        response.heard(self._call.client.message_text(response.reply) or "")
        self._emit(
            "conversation.item.truncated",
            item_id=response.item.id,
            content_index=0,
            audio_end_ms=audio_end_ms,
        )
