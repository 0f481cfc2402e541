"""ComfyUI's page in Chromium, as a person sees it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Page, sync_playwright

from tests.support.comfyui import ComfyUI

CHROMIUM = "/usr/bin/chromium"
_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--autoplay-policy=no-user-gesture-required",
]
_READY = """() => window.app?.extensionManager && window.app?.graph && window.app?.canvas && window.h3Engine?.ready
    && !document.querySelector('#splash-loader')"""


@contextmanager
def comfyui_page(server: ComfyUI, *, vue_nodes: bool) -> Iterator[Page]:
    """Yield ComfyUI's page, ready for use, with classic or Vue nodes."""
    server.post(
        "/settings",
        {
            "Comfy.TutorialCompleted": True,
            "Comfy.VueNodes.Enabled": vue_nodes,
            "Comfy.Minimap.Visible": False,
            "Comfy.VueNodes.AutoScaleLayout": False,
        },
    )
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, headless=True, args=_FLAGS)
        try:
            page = browser.new_context(viewport={"width": 1600, "height": 900}).new_page()
            page.goto(server.url + "/", wait_until="domcontentloaded")
            page.wait_for_function(_READY, timeout=90_000)
            yield page
        finally:
            browser.close()
