"""Reading JSON that others have published.

One value that Python cannot read must not hide what stands beside it: numbers beyond the limit of
`int` become a `Decimal`, halves of surrogate pairs U+FFFD, and of an object with a value that is
nested too deeply, or broken, all other members are read.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

NOT_UTF8 = "the text is not UTF-8"

_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_SPACE = re.compile(r"[ \t\n\r]*")
_BRACKETS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.DOTALL)
_SCALAR = re.compile(r"[^\s,\]}]+")
_HALF = re.compile(r"\\u[dD][89a-fA-F]")
_ESCAPE = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F]..)|.)",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Fault:
    """In the place of a value that cannot be read."""

    reason: str
    text: str
    """Its JSON, as far as it goes."""


def _no_constant(name: str) -> Any:
    raise json.JSONDecodeError(f"{name} is no JSON", name, 0)


def _integer(digits: str) -> int | Decimal:
    try:
        return int(digits)
    except ValueError:
        # Beyond `sys.get_int_max_str_digits()`, 4,300 unless set.
        return Decimal(digits)


_DECODER = json.JSONDecoder(parse_constant=_no_constant)
# Calls a function for each integer, which costs time.
_PATIENT = json.JSONDecoder(parse_constant=_no_constant, parse_int=_integer)


def _half_replaced(escape: re.Match[str]) -> str:
    return r"\ufffd" if escape.group(1) else escape.group()


def read_json(text: str) -> Any:
    """The value of a JSON text. Raises `ValueError`, also if it is nested too deeply."""
    if _HALF.search(text):
        text = _ESCAPE.sub(_half_replaced, text)
    try:
        try:
            return _DECODER.decode(text)
        except json.JSONDecodeError:
            raise
        except ValueError:
            return _PATIENT.decode(text)
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None


def _text_of(data: str | bytes) -> tuple[str, str | None]:
    """The text, and the fault of one that is not UTF-8."""
    if isinstance(data, str):
        return data, None
    try:
        return data.decode(), None
    except UnicodeDecodeError:
        return data.decode(errors="replace"), NOT_UTF8


def read_object(data: str | bytes) -> dict[str, Any]:
    """The members of a JSON object. In the place of one that cannot be read is a `Fault`; those
    behind the end of a text that is cut are missing. Raises `ValueError` if it is no object."""
    value = read_frame(data)
    if isinstance(value, dict):
        return value
    raise ValueError("the JSON is no object")


def read_frame(data: str | bytes) -> dict[str, Any] | list[Any]:
    """The members of a JSON object, as `read_object` does, or the elements of an array. In the
    place of what cannot be read in an array of arrays is a `Fault`. Raises `ValueError` if it is
    neither, or an array that is cut."""
    text, fault = _text_of(data)
    try:
        if fault is None:
            value = read_json(text)
            if isinstance(value, dict | list):
                return value
            raise ValueError("the JSON is no object")
    except ValueError as error:
        fault = str(error)
    if not text.startswith("["):
        return _members(text, fault)
    first, *items = _elements(text, fault)
    return [_value(first, fault), *(_item(each, fault) for each in items)]


def _item(text: str, fault: str) -> Any:
    value = _value(text, fault)
    if not isinstance(value, Fault):
        return value
    return [_value(each, fault) for each in _elements(text, fault)]


def _elements(text: str, fault: str) -> list[str]:
    """The texts of the elements of an array."""
    elements = []
    at = _past(text, 0, "[", fault)
    while True:
        end = _end_of(text, at)
        elements.append(text[at:end])
        at = _spaced(text, end)
        if text.startswith("]", at):
            return elements
        at = _past(text, at, ",", fault)


def _members(text: str, fault: str) -> dict[str, Any]:
    members: dict[str, Any] = {}
    at = _past(text, 0, "{", fault)
    while at < len(text) and text[at] == '"':
        try:
            name, at = _name(text, at)
            at = _past(text, at, ":", fault)
            end = _end_of(text, at)
        except ValueError:
            break
        members[name] = _value(text[at:end], fault)
        at = _spaced(text, end)
        if at >= len(text) or text[at] != ",":
            break
        at = _spaced(text, at + 1)
    return members


def read_elements(text: str) -> list[dict[str, Any]]:
    """The objects in a JSON array, each read by itself. Raises `ValueError` if it is none."""
    elements = []
    at = _past(text, 0, "[", "the JSON is no array")
    while at < len(text) and text[at] == "{":
        end = _end_of(text, at)
        elements.append(read_object(text[at:end]))
        at = _spaced(text, end)
        if at < len(text) and text[at] == ",":
            at = _spaced(text, at + 1)
    return elements


def _value(text: str, fault: str) -> Any:
    try:
        value = read_json(text)
    except ValueError as error:
        return Fault(str(error), text)
    # Bytes that were wrong have become U+FFFD.
    is_doubtful = fault == NOT_UTF8 and "\ufffd" in text
    return Fault(fault, text) if is_doubtful else value


def _name(text: str, at: int) -> tuple[str, int]:
    found = _STRING.match(text, at)
    if found is None:
        raise ValueError("a name is cut")
    return str(read_json(found.group())), found.end()


def _spaced(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    assert found is not None
    return found.end()


def _past(text: str, at: int, mark: str, fault: str) -> int:
    at = _spaced(text, at)
    if not text.startswith(mark, at):
        raise ValueError(fault)
    return _spaced(text, at + 1)


def _end_of(text: str, at: int) -> int:
    """Where a value ends; the end of the text if it is cut. Needs no stack, however deep it is."""
    if at < len(text) and text[at] in '[{"':
        depth = 0
        for found in _BRACKETS.finditer(text, at):
            first = found.group()[0]
            depth += (first in "[{") - (first in "]}")
            if depth == 0:
                return found.end()
        return len(text)
    scalar = _SCALAR.match(text, at)
    if scalar is None:
        raise ValueError("a value is missing")
    return scalar.end()
