"""
The fields of a chat request other than messages and tools: a table, and its readers.

A row says how a value is checked; null is the same as absent everywhere. Values come
out clean and typed; nothing here knows what they are for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from ..chat import Output
from ..errors import BadRequest
from .body import cut

Reader = Callable[[object, str], Any]

_MAX_INTEGER = 2**64 - 1
_MAX_STOPS = 16  # OpenAI allows 4; agents that list every marker send more
_MAX_STOP_CHARACTERS = 4096
_MAX_BIASES = 1024
_MAX_CHOICES = 128  # these two are OpenAI's; an engine may allow less
_MAX_TOP_LOGPROBS = 20
_TOLD_AT_MOST = 8  # names in one message
# Tab and line ends are what most stop strings are made of; the rest can't be typed.
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_CONTROL_IN_STOP = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_FORMAT_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def bad(param: str, why: str, *, code: str | None = None) -> BadRequest:
    """Return a refusal of the field *param*; *why* continues "param: "."""
    return BadRequest(f"{param}: {why}", param=param, code=code)


def unsupported(param: str, why: str) -> BadRequest:
    """Return a refusal of a field whose meaning can't be honoured."""
    return bad(param, why, code="unsupported_value")


def kind(value: object) -> str:
    """Name the JSON type of *value*, for messages."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "an array"
    return "an object"


def boolean(value: object, param: str) -> bool:
    """Read true or false; nothing else will do."""
    if not isinstance(value, bool):
        raise bad(param, f"expected true or false, got {kind(value)}")
    return value


def string(value: object, param: str) -> str:
    """Read a string."""
    if not isinstance(value, str):
        raise bad(param, f"expected a string, got {kind(value)}")
    return value


def identifier(value: object, param: str, *, limit: int = 256) -> str:
    """Read a non-empty string without control characters, as ids and names are."""
    text = string(value, param)
    if not text or len(text) > limit or _CONTROL.search(text):
        raise bad(param, f"expected 1 to {limit} characters, none of them control")
    return text


def an_object(value: object, param: str) -> dict[str, Any]:
    """Read an object."""
    if not isinstance(value, dict):
        raise bad(param, f"expected an object, got {kind(value)}")
    return value


def one_of(*names: str) -> Reader:
    """Make a reader of one of *names*."""

    def read(value: object, param: str) -> str:
        if value not in names or not isinstance(value, str):
            raise bad(param, f"expected one of {', '.join(names)}")
        return value

    return read


def number(low: float, high: float, *, over: bool = False) -> Reader:
    """Make a reader of numbers from *low* (itself not, if *over*) to *high*."""

    def read(value: object, param: str) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise bad(param, f"expected a number, got {kind(value)}")
        if not low <= value <= high or (over and value == low):
            raise bad(param, _range(low, high, over=over))
        return float(value)

    return read


def integer(low: int, high: int = _MAX_INTEGER) -> Reader:
    """Make a reader of whole numbers from *low* to *high*; 16.0 is one, 16.5 is not."""

    def read(value: object, param: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise bad(param, f"expected an integer, got {kind(value)}")
        if isinstance(value, float) and not value.is_integer():
            raise bad(param, "expected an integer, got a fraction")
        if not low <= value <= high:
            raise bad(param, _range(low, high))
        return int(value)

    return read


def stops(value: object, param: str) -> tuple[str, ...]:
    """Read a stop string or a list of them; empty ones are dropped."""
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, list):
        raise bad(param, f"expected a string or an array, got {kind(value)}")
    if len(listed) > _MAX_STOPS:
        raise bad(param, f"has {len(listed)} strings; {_MAX_STOPS} are allowed")
    for at, stop in enumerate(listed):
        where = param if isinstance(value, str) else f"{param}[{at}]"
        if len(string(stop, where)) > _MAX_STOP_CHARACTERS:
            raise bad(where, f"is over {_MAX_STOP_CHARACTERS} characters")
        if _CONTROL_IN_STOP.search(stop):
            raise bad(where, "has a control character other than tab and line end")
    return tuple(filter(None, listed))


def biases(value: object, param: str) -> tuple[tuple[int, float], ...]:
    """Read logit_bias; whether the ids are in the vocabulary is the engine's matter."""
    table = an_object(value, param)
    if len(table) > _MAX_BIASES:
        raise bad(param, f"has {len(table)} tokens; {_MAX_BIASES} are allowed")
    bias = number(-100, 100)
    for key in table:
        if not re.fullmatch(r"[0-9]{1,9}", key):
            raise bad(param, f"{cut(key)!r} is not a token id")
    return tuple((int(key), bias(v, f"{param}.{key}")) for key, v in table.items())


def output_format(value: object, param: str) -> Output | None:
    """
    Read ``response_format``; None is plain text.

    A ``json_schema`` needs no schema in OpenAI's reference: without one any JSON
    object will do, as with ``json_object``.
    """
    form = an_object(value, param)
    wanted = _format_type(form.get("type"), f"{param}.type")
    if wanted != "json_schema":
        return None if wanted == "text" else Output("json_object", param=param)
    within = f"{param}.json_schema"
    named = an_object(form.get("json_schema"), within)
    if not _FORMAT_NAME.fullmatch(string(named.get("name"), f"{within}.name")):
        raise bad(f"{within}.name", "expected 1 to 64 letters, digits, '_' or '-'")
    schema = _described_schema(named, within)
    return Output("json_schema" if schema else "json_object", schema, param)


def _described_schema(named: Mapping[str, Any], within: str) -> dict[str, Any]:
    """Return the schema of a ``json_schema``, its description within; {} for none."""
    given = {
        name: read(named[name], f"{within}.{name}")
        for name, read in _SCHEMA_FIELDS.items()
        if named.get(name) is not None
    }
    if not given.get("schema"):
        if given.get("strict"):
            raise bad(f"{within}.schema", "is missing; strict needs one to keep to")
        return {}
    # OpenAI shows the description to the model; a schema has a place for it.
    about = {"description": given["description"]} if "description" in given else {}
    return {**about, **given["schema"]}


def find_unread_format(value: object, param: str) -> tuple[str, ...]:
    """Return paths, sorted, of what a valid ``response_format`` has to no effect."""
    form = value if isinstance(value, dict) else {}
    found = {f"{param}.{name}": within for name, within in form.items()}
    read = {f"{param}.type"}
    if form.get("type") == "json_schema":
        path, named = f"{param}.json_schema", form["json_schema"]
        found |= {f"{path}.{name}": within for name, within in named.items()}
        # Without a schema there is no place for the description.
        fields = _SCHEMA_FIELDS if named.get("schema") else ("schema", "strict")
        read |= {path, f"{path}.name", *(f"{path}.{name}" for name in fields)}
    return tuple(sorted(p for p in found.keys() - read if found[p] is not None))


def text_modality(value: object, param: str) -> str:
    """Read ``modalities``: text is the only one."""
    if not isinstance(value, list) or not all(isinstance(m, str) for m in value):
        raise bad(param, "expected an array of strings")
    if any(modality != "text" for modality in value):
        raise unsupported(param, "only text comes back; use ['text'] or leave it out")
    return "text"


def usage_wanted(value: object, param: str) -> bool:
    """Read ``stream_options``; what else stands in it is for other servers."""
    wanted = an_object(value, param).get("include_usage")
    return wanted is not None and boolean(wanted, f"{param}.include_usage")


# fmt: off
FIELDS: Mapping[str, Reader] = {
    "stream": boolean,
    "stream_options": usage_wanted,
    "n": integer(1, _MAX_CHOICES),
    "logprobs": boolean,
    "top_logprobs": integer(0, _MAX_TOP_LOGPROBS),
    "response_format": output_format,
    "modalities": text_modality,
    "temperature": number(0, 2),
    "top_p": number(0, 1, over=True),
    "top_k": integer(-1),
    "min_p": number(0, 1),
    "repetition_penalty": number(0, 1000, over=True),
    "presence_penalty": number(-2, 2),
    "frequency_penalty": number(-2, 2),
    "logit_bias": biases,
    "seed": integer(0),
    "stop": stops,
    "max_completion_tokens": integer(1),
    "max_tokens": integer(1),
    "parallel_tool_calls": boolean,
    "reasoning_effort": one_of("none", "minimal", "low", "medium", "high", "xhigh"),
    "verbosity": one_of("low", "medium", "high"),
    "chat_template_kwargs": an_object,
}
# fmt: on

_format_type = one_of("text", "json_object", "json_schema")
_SCHEMA_FIELDS: Mapping[str, Reader] = {
    "description": string,
    "schema": an_object,
    "strict": boolean,
}

# Refused whatever the value; the text is the remedy.
UNSUPPORTED: Mapping[str, str] = {
    "audio": "speech is not produced; leave it out",
    "function_call": "is replaced by tool_choice",
    "functions": "is replaced by tools",
    "prediction": "predicted output is not supported; leave it out",
    "web_search_options": "this server never searches the web; leave it out",
}

# About the caller or his account, not the answer: nothing is lost by not using them.
BOOKKEEPING = frozenset(
    {
        "metadata",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
    }
)

ELSEWHERE = frozenset({"model", "messages", "tools", "tool_choice"})

_KNOWN = frozenset(FIELDS) | frozenset(UNSUPPORTED) | BOOKKEEPING | ELSEWHERE


def read_fields(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the clean values of all `FIELDS` that *body* gives."""
    return {
        name: read(body[name], name)
        for name, read in FIELDS.items()
        if body.get(name) is not None
    }


def refuse_unsupported(body: Mapping[str, Any]) -> None:
    """Raise `BadRequest` for the first field, by name, that is always refused."""
    for name, remedy in sorted(UNSUPPORTED.items()):
        if body.get(name) is not None:
            raise unsupported(name, remedy)


def find_unknown(body: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names, sorted, of fields that nobody knows and that aren't null."""
    return tuple(
        sorted(k for k, v in body.items() if k not in _KNOWN and v is not None)
    )


def refuse_names(names: tuple[str, ...]) -> None:
    """Raise `BadRequest` for unknown fields *names*, if any, telling at most eight."""
    if not names:
        return
    told = ", ".join(cut(name) for name in names[:_TOLD_AT_MOST])
    more = len(names) - _TOLD_AT_MOST
    tail = f" and {more} more" if more > 0 else ""
    raise BadRequest(
        f"unknown parameter: {told}{tail}",
        param=cut(names[0]),
        code="unknown_parameter",
    )


def _range(low: float, high: float, *, over: bool = False) -> str:
    least = f"over {low:g}" if over else f"{low:g} or more"
    most = "under 2^64" if high == _MAX_INTEGER else f"at most {high:g}"
    return f"must be {least} and {most}"
