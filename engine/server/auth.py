"""Who may ask: the token, the page's origin, and the host name the client used.

A browser page of another site must not reach an engine on the user's machine, neither directly (Origin) nor by a DNS
name that was pointed at 127.0.0.1 (Host). Raises `RequestError`: ``forbidden_origin`` or ``unauthorized``.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from urllib.parse import urlsplit

from ..config import EngineConfig, is_loopback
from ..contract.errors import RequestError


def check_client(headers: Mapping[str, str], config: EngineConfig) -> None:
    """Check the headers of a request.

    Raises:
        RequestError: ``forbidden_origin`` or ``unauthorized``.
    """
    host = headers.get("Host", "")
    if is_loopback(config.host) and not is_loopback(_host_of("//" + host)):
        raise RequestError(
            "forbidden_origin",
            "This engine listens on loopback and is asked under another name.",
            field="Host",
            value=host,
            remedy="Use 127.0.0.1 or localhost in the address.",
        )
    origin = headers.get("Origin")
    if origin is not None and not is_loopback(_host_of(origin)):
        raise RequestError(
            "forbidden_origin",
            "Pages of other hosts may not use this engine.",
            field="Origin",
            value=origin,
            remedy="Ask from a program, or from a page served by this machine.",
        )
    if config.token is not None and not _has_token(headers.get("Authorization", ""), config.token):
        raise RequestError(
            "unauthorized",
            "The bearer token is missing or wrong.",
            field="Authorization",
            remedy="Send the header 'Authorization: Bearer TOKEN' (H3_ENGINE_TOKEN in ComfyUI and the command line).",
        )


def _host_of(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def _has_token(header: str, token: str) -> bool:
    scheme, _, given = header.partition(" ")
    # A header may hold bytes that are no text; aiohttp keeps them as lone surrogates.
    sent = given.strip().encode(errors="surrogateescape")
    return scheme.lower() == "bearer" and hmac.compare_digest(sent, token.encode())
