"""Where an engine listens, and small JSON questions to it (`/v1/health`, `/v1/info`). Knows nothing of ComfyUI.

Raises ``unauthorized`` and its kind as the engine answers them, and ``connection_lost`` when nobody answers.
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


def get_json(address: Address, path: str, *, timeout: float = _TIMEOUT_SECONDS) -> dict[str, Any]:
    """Return the JSON object at ``path``. Blocks for at most ``timeout`` seconds.

    Raises:
        EngineError: what the engine answered, or ``connection_lost``.
    """
    request = urllib.request.Request(address.url + path, headers=address.headers)  # noqa: S310 (check_url)
    proxies = urllib.request.ProxyHandler({} if address.is_loopback else None)
    try:
        with urllib.request.build_opener(proxies).open(request, timeout=timeout) as answer:
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
        f"The engine at {address.url} does not answer ({_reason(error)}).",
        field="url",
        value=address.url,
        remedy="Start it there (h3-engine serve), or clear url in H3 Engine Connect to start one on this machine.",
    )


def _reason(error: BaseException) -> str:
    """Return why nobody answers, without the wrapping of the libraries."""
    if isinstance(error, urllib.error.URLError) and isinstance(error.reason, BaseException):
        error = error.reason
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error) or type(error).__name__
