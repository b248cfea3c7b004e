"""
The messages of a chat request, as clients really send them, into `Message`s.

Lenient where only words differ (content null, empty or absent; text in parts; system
text anywhere), strict where meaning would be lost (calls, their ids, image shapes).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..chat import Image, Message, Role, ToolCall
from ..errors import BadRequest
from .body import cut, read_object
from .openai_fields import bad, identifier, kind, unsupported
from .openai_tools import NAME_RULE, is_tool_name

MAX_MESSAGES = 10_000

_ROLES: Mapping[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
# Where a person or a tool may show a picture; VS Code's view_image answers with one.
_SEEING = ("user", "tool")
_DETAILS = (None, "auto", "low", "high")


def read_messages(value: object) -> tuple[Message, ...]:
    """Read ``messages``; raise `BadRequest` naming the part that is wrong."""
    if not isinstance(value, list):
        raise _invalid("messages", f"expected an array, got {kind(value)}")
    if not value:
        raise _invalid("messages", "is empty; at least one message is needed")
    if len(value) > MAX_MESSAGES:
        raise _invalid(
            "messages", f"has {len(value)} messages; {MAX_MESSAGES} are allowed"
        )
    reader = _Reader()
    return tuple(reader.message(raw, f"messages[{i}]") for i, raw in enumerate(value))


class _Reader:
    """Reads one request's messages in order; remembers the calls made so far."""

    def __init__(self) -> None:
        self._called: set[str] = set()
        self._answered: set[str] = set()

    def message(self, raw: object, param: str) -> Message:
        if not isinstance(raw, dict):
            raise _invalid(param, f"expected an object, got {kind(raw)}")
        role = _role(raw.get("role"), f"{param}.role")
        _check_legacy(raw, param)
        calls = self._calls(raw.get("tool_calls"), role, f"{param}.tool_calls")
        text, images = _content(raw.get("content"), role, f"{param}.content")
        is_tool = role == "tool"
        return Message(
            role=role,
            text=text,
            calls=calls,
            answers=self._answers(raw, param) if is_tool else "",
            name=_tool_name(raw.get("name")) if is_tool else "",
            thought=_thought(raw, param) if role == "assistant" else "",
            images=images,
        )

    def _calls(self, value: object, role: Role, param: str) -> tuple[ToolCall, ...]:
        if value is None or value == []:
            return ()
        if not isinstance(value, list):
            raise _bad_call(param, f"expected an array, got {kind(value)}")
        if role != "assistant":
            raise _bad_call(param, "only a message of the assistant makes calls")
        return tuple(self._call(raw, f"{param}[{i}]") for i, raw in enumerate(value))

    def _call(self, raw: object, param: str) -> ToolCall:
        if not isinstance(raw, dict):
            raise _bad_call(param, f"expected an object, got {kind(raw)}")
        if raw.get("type") not in (None, "function"):
            raise _bad_call(f"{param}.type", "must be 'function'")
        function = raw.get("function")
        if not isinstance(function, dict):
            raise _bad_call(
                f"{param}.function", f"expected an object, got {kind(function)}"
            )
        name = function.get("name")
        if not is_tool_name(name):
            raise _bad_call(f"{param}.function.name", f"must be {NAME_RULE}")
        arguments = _arguments(function.get("arguments"), f"{param}.function.arguments")
        return ToolCall(self._new_id(raw.get("id"), f"{param}.id"), name, arguments)

    def _new_id(self, value: object, param: str) -> str:
        try:
            call_id = identifier(value, param)
        except BadRequest as exc:
            raise BadRequest(str(exc), param=param, code="invalid_tool_call") from None
        if call_id in self._called:
            raise _bad_call(param, f"{cut(call_id)!r} is the id of an earlier call")
        self._called.add(call_id)
        return call_id

    def _answers(self, raw: Mapping[str, Any], param: str) -> str:
        """
        Read the id of the call that a tool message answers.

        An id nobody called is let through: editors drop old turns, and the engine
        shows such a result as plain text. A second answer to one call is a mistake.
        """
        param = f"{param}.tool_call_id"
        try:
            call_id = identifier(raw.get("tool_call_id"), param)
        except BadRequest as exc:
            raise BadRequest(
                str(exc), param=param, code="invalid_tool_result"
            ) from None
        if call_id in self._called and call_id in self._answered:
            raise bad(
                param,
                f"{cut(call_id)!r} was answered before",
                code="invalid_tool_result",
            )
        self._answered.add(call_id)
        return call_id


def _role(value: object, param: str) -> Role:
    if value == "function":
        raise _invalid(param, "'function' is replaced by 'tool' with a tool_call_id")
    role = _ROLES.get(value) if isinstance(value, str) else None
    if role is None:
        raise _invalid(param, f"expected one of {', '.join(_ROLES)}")
    return role


def _check_legacy(raw: Mapping[str, Any], param: str) -> None:
    if raw.get("function_call") is not None:
        raise unsupported(f"{param}.function_call", "is replaced by tool_calls")


def _content(value: object, role: Role, param: str) -> tuple[str, tuple[Image, ...]]:
    """Read text and images; nothing at all is empty text (clients send all forms)."""
    if value is None or isinstance(value, str):
        return value or "", ()
    if not isinstance(value, list):
        raise _invalid(param, f"expected a string or an array, got {kind(value)}")
    texts: list[str] = []
    images: list[Image] = []
    for at, raw in enumerate(value):
        part = _part(raw, role, f"{param}[{at}]")
        if isinstance(part, Image):
            images.append(part)
        else:
            texts.append(part)
    return "".join(texts), tuple(images)


def _part(raw: object, role: Role, param: str) -> str | Image:
    if not isinstance(raw, dict):
        raise _invalid(param, f"expected an object, got {kind(raw)}")
    match raw.get("type"):
        case "text":
            return _part_text(raw.get("text"), f"{param}.text")
        case "refusal" if role == "assistant":  # what a model once declined with
            return _part_text(raw.get("refusal"), f"{param}.refusal")
        case "image_url":
            return _image(raw.get("image_url"), role, f"{param}.image_url")
        case str() as other:
            why = f"{cut(other)!r} is not supported; send text or image_url"
            raise bad(f"{param}.type", why, code="unsupported_content")
        case other:
            raise _invalid(f"{param}.type", f"expected a string, got {kind(other)}")


def _part_text(value: object, param: str) -> str:
    if not isinstance(value, str):
        raise _invalid(param, f"expected a string, got {kind(value)}")
    return value


def _image(value: object, role: Role, param: str) -> Image:
    if role not in _SEEING:
        why = f"an image can't stand in a message of the {role}"
        raise bad(param, why, code="unsupported_content")
    if not isinstance(value, dict):
        raise _invalid(param, f"expected an object with a url, got {kind(value)}")
    url, detail = value.get("url"), value.get("detail")
    if not isinstance(url, str):
        raise _invalid(f"{param}.url", f"expected a string, got {kind(url)}")
    if detail not in _DETAILS:
        raise bad(f"{param}.detail", "expected auto, low or high")
    head = url[:64].lower()
    if not head.startswith("data:image/"):
        why = "only data:image/...;base64 URLs are read; nothing is fetched"
        raise bad(f"{param}.url", why, code="unsupported_image")
    if ";base64," not in head:
        why = "expected data:image/TYPE;base64,DATA"
        raise bad(f"{param}.url", why, code="invalid_image_url")
    return Image(url, f"{param}.url")


def _arguments(value: object, param: str) -> dict[str, Any]:
    """Read the JSON object in a call's arguments; empty means no arguments."""
    if not isinstance(value, str):
        raise _bad_arguments(param, f"expected a string of JSON, got {kind(value)}")
    if not value.strip():
        return {}
    try:
        return read_object(value.encode())
    except BadRequest as exc:
        why = str(exc).replace("the body", "the string")
        raise _bad_arguments(param, why) from None


def _thought(raw: Mapping[str, Any], param: str) -> str:
    """Read the reasoning that a client sends back (the AI SDK does)."""
    value = raw.get("reasoning_content")
    if value is not None and not isinstance(value, str):
        raise _invalid(
            f"{param}.reasoning_content", f"expected a string, got {kind(value)}"
        )
    return value or ""


def _tool_name(value: object) -> str:
    return value if is_tool_name(value) else ""


def _invalid(param: str, why: str) -> BadRequest:
    return bad(param, why, code="invalid_message")


def _bad_call(param: str, why: str) -> BadRequest:
    return bad(param, why, code="invalid_tool_call")


def _bad_arguments(param: str, why: str) -> BadRequest:
    return bad(param, why, code="invalid_tool_arguments")
