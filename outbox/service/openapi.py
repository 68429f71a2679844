"""The description of the message service, made from the types that it decodes with."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from outbox.destination import NAME_CHARS_MAX
from outbox.service import bodies
from outbox.statuses import Status

_REFUSALS: Final = {
    400: "The request is not as described; the body says what to fix.",
    401: "No token, or one that is nobody's.",
    403: "This client may not do that.",
    404: "There is no such message, delivery or destination; the body says which.",
    409: "The id is another message's, or the message was decided otherwise.",
    413: "The body, or a payload, is too large.",
    415: "The body is not said to be JSON.",
    429: "Too fast; Retry-After says when.",
    503: "The database is away. It is not known whether it was done: repeat the same request.",
}
_READ: Final = (400, 401, 429, 503)
_WRITE: Final = (*_READ, 403, 404, 409, 413, 415)

_TYPES: Final = (
    bodies.GivenMessages,
    bodies.StoredMessages,
    bodies.NamedMessages,
    bodies.Decided,
    bodies.GivenConfirm,
    bodies.Confirmed,
    bodies.ShownMessage,
    bodies.Page,
    bodies.Failure,
)

_POSTS: Final = (
    ("send", "Store messages, to be sent at once.", bodies.GivenMessages, bodies.StoredMessages),
    (
        "prepare",
        "Store messages that are not sent before they are committed. Without a decision the "
        "client's check endpoint is asked.",
        bodies.GivenMessages,
        bodies.StoredMessages,
    ),
    ("commit", "Decide for prepared messages.", bodies.NamedMessages, bodies.Decided),
    ("rollback", "Decide against prepared messages.", bodies.NamedMessages, bodies.Decided),
    (
        "confirm",
        "Say, as a consumer, that messages were applied.",
        bodies.GivenConfirm,
        bodies.Confirmed,
    ),
)


def document(body_bytes_max: int) -> dict[str, Any]:
    """Return the OpenAPI 3.1 description."""
    _, components = msgspec.json.schema_components(
        _TYPES, ref_template="#/components/schemas/{name}"
    )
    paths: dict[str, Any] = {
        f"/v1/messages/{name}": {"post": _post(name, summary, body, result)}
        for name, summary, body, result in _POSTS
    }
    paths["/metrics"] = {"get": _metrics()}
    paths["/v1/messages"] = {"get": _list()}
    paths["/v1/messages/{message_id}"] = {"get": _get()}
    for name, summary in (("livez", "The process answers."), ("readyz", "It can work.")):
        paths[f"/{name}"] = {"get": _health(name, summary)}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Message service",
            "version": "1",
            "description": "Messages that must all arrive and be applied once, in any order. A "
            f"request has at most {body_bytes_max} bytes.",
        },
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _post(name: str, summary: str, body: type, result: type) -> dict[str, Any]:
    return {
        "operationId": name,
        "summary": summary,
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": _ref(body)}},
        },
        "responses": _responses(result, _WRITE),
    }


def _get() -> dict[str, Any]:
    return {
        "operationId": "get",
        "summary": "One message of this client, with its deliveries.",
        "parameters": [
            {
                "name": "message_id",
                "in": "path",
                "required": True,
                "schema": {"type": "string", "pattern": bodies.UUID7_PATTERN, "maxLength": 36},
            }
        ],
        "responses": _responses(bodies.ShownMessage, (*_READ, 404)),
    }


def _list() -> dict[str, Any]:
    name = {"type": "string", "maxLength": NAME_CHARS_MAX, "pattern": "^[ -~]*$"}
    schemas = {
        "after": {"type": "string", "pattern": bodies.UUID7_PATTERN, "maxLength": 36},
        "destination": name,
        "status": {"type": "string", "enum": [status.name.lower() for status in Status]},
        "limit": {"type": "integer", "minimum": 1, "maximum": bodies.PAGE_ROWS_MAX, "default": 100},
    }
    return {
        "operationId": "list",
        "summary": "Deliveries of this client's messages, by message_id and consumer.",
        "parameters": [
            {"name": key, "in": "query", "required": False, "schema": schema}
            for key, schema in schemas.items()
        ]
        + [
            {
                "name": "after_consumer",
                "in": "query",
                "required": False,
                "description": "beside after, as the page before returned it",
                "schema": name,
            }
        ],
        "responses": _responses(bodies.Page, _READ),
    }


def _metrics() -> dict[str, Any]:
    page = {"description": "Done.", "content": {"text/plain": {"schema": {"type": "string"}}}}
    return {
        "operationId": "metrics",
        "summary": "What this instance counts, and what is in the database, for Prometheus.",
        "responses": {
            "200": page,
            **{
                str(status): _response(_REFUSALS[status], _ref(bodies.Failure))
                for status in (401, 403, 429, 503)
            },
        },
    }


def _health(name: str, summary: str) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": {"status": {"type": "string"}},
        "required": ["status"],
    }
    return {
        "operationId": name,
        "summary": summary,
        "security": [],
        "responses": {
            "200": _response("Yes.", schema),
            "503": _response(_REFUSALS[503], _ref(bodies.Failure)),
        },
    }


def _responses(result: type, refusals: tuple[int, ...]) -> dict[str, Any]:
    found = {"200": _response("Done.", _ref(result))}
    for status in sorted(refusals):
        found[str(status)] = _response(_REFUSALS[status], _ref(bodies.Failure))
    return found


def _response(description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _ref(kind: type) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{kind.__name__}"}
