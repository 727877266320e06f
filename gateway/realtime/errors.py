"""A client's mistake, in the protocol's own shape. The session always goes on."""

from __future__ import annotations


class ProtocolError(Exception):
    """code: stable; param: dotted path of the field at fault; kind: the protocol's error type."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        param: str | None = None,
        kind: str = "invalid_request_error",
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param
        self.kind = kind


def unsupported(param: str, message: str) -> ProtocolError:
    return ProtocolError("unsupported_parameter", message, param=param)
