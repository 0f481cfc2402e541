"""The URL of an engine, as the nodes and the command line take it. Raises `RequestError` for what cannot be one."""

from __future__ import annotations

from urllib.parse import urlsplit

from .errors import RequestError


def check_url(url: str) -> str:
    """Return ``url`` as ``scheme://host[:port]``; without a scheme it is ``http``.

    Raises:
        RequestError: ``out_of_range`` when it is not an http(s) URL of a host.
    """
    remedy = "Use the address that the engine printed when it started, for example http://192.168.1.20:8190."
    try:
        text = url.strip()
        parts = urlsplit(text if "://" in text else f"http://{text}")
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise RequestError("out_of_range", f"Not a URL: {error}.", field="url", value=url, remedy=remedy) from error
    if parts.scheme not in ("http", "https") or len(host.split()) != 1 or parts.path.strip("/") or parts.query:
        raise RequestError(
            "out_of_range", "An engine's URL is http://host:port.", field="url", value=url, remedy=remedy
        )
    if parts.username is not None:
        raise RequestError(
            "out_of_range",
            "A URL must not hold a secret: it is shown and saved.",
            field="url",
            remedy="Put the token into H3_ENGINE_TOKEN or into ComfyUI's settings.",
        )
    host = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{host}" + (f":{port}" if port else "")
