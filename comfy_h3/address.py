"""Where an engine listens, and small JSON questions to it (`/v1/health`, `/v1/info`). Knows nothing of ComfyUI.

Raises `RequestError` for a URL that cannot be one, ``unauthorized`` and its kind as the engine answers them, and
``connection_lost`` when nobody answers.
"""

from __future__ import annotations

import ipaddress
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from ..engine.contract.errors import EngineDeadError, EngineError, JobError, RequestError, error_from_dict
from ..engine.contract.fields import parse_json

_TIMEOUT_SECONDS = 10.0


@dataclass(frozen=True)
class Address:
    """A checked engine URL (``http://host:port``, no path) and the token that its operator wants, if any."""

    url: str
    token: str | None = field(default=None, repr=False)

    @property
    def websocket(self) -> str:
        """URL of the engine's websocket."""
        return "ws" + self.url.removeprefix("http") + "/v1/ws"

    @property
    def headers(self) -> dict[str, str]:
        """HTTP headers that carry the token."""
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    @property
    def is_loopback(self) -> bool:
        """Whether the engine is on this machine, so that no proxy stands between."""
        host = urlsplit(self.url).hostname or ""
        try:
            return ipaddress.ip_address(host).is_loopback
        except ValueError:
            return host == "localhost"


def check_url(url: str) -> str:
    """Return ``url`` as ``scheme://host[:port]``.

    Raises:
        RequestError: ``out_of_range`` when it is not an http(s) URL of a host.
    """
    remedy = "Use the address that the engine printed when it started, for example http://192.168.1.20:8190."
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError as error:
        raise RequestError("out_of_range", f"Not a URL: {error}.", field="url", value=url, remedy=remedy) from error
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/") or parts.query:
        raise RequestError(
            "out_of_range", "An engine's URL is http://host:port.", field="url", value=url, remedy=remedy
        )
    if parts.username is not None:
        raise RequestError(
            "out_of_range",
            "A URL in a workflow must not hold a secret.",
            field="url",
            remedy="Put the token into H3_ENGINE_TOKEN or into ComfyUI's settings.",
        )
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}" + (f":{port}" if port else "")


def get_json(address: Address, path: str) -> dict[str, Any]:
    """Return the JSON object at ``path``. Blocks for at most 10 s.

    Raises:
        EngineError: what the engine answered, or ``connection_lost``.
    """
    request = urllib.request.Request(address.url + path, headers=address.headers)  # noqa: S310 (check_url)
    proxies = urllib.request.ProxyHandler({} if address.is_loopback else None)
    try:
        with urllib.request.build_opener(proxies).open(request, timeout=_TIMEOUT_SECONDS) as answer:
            return parse_json(answer.read())
    except urllib.error.HTTPError as error:
        raise refusal(error.code, error.read(), address) from error
    except OSError as error:
        raise unreachable(address, error) from error


def refusal(status: int, body: bytes, address: Address) -> EngineError:
    """Return the error in the body of an HTTP answer with ``status``."""
    try:
        data = parse_json(body).get("error")
    except RequestError:
        data = None
    if not isinstance(data, dict):
        return JobError(
            "job_failed",
            f"{address.url} answered {status}.",
            field="url",
            value=address.url,
            remedy="Check that the URL is a MiniMax-H3 engine's.",
        )
    error = error_from_dict(data)
    if error.code == "unauthorized":
        error.remedy = "Set H3_ENGINE_TOKEN, or the token in ComfyUI's settings under MiniMax H3 Engine."
    return error


def unreachable(address: Address, error: BaseException) -> EngineError:
    """Return the error for an engine that does not answer."""
    return EngineDeadError(
        "connection_lost",
        f"The engine at {address.url} does not answer ({error}).",
        field="url",
        value=address.url,
        remedy="Start it there (h3-engine serve), or clear the URL to let this node start one.",
    )
