"""How pytest's processes (``-n``, of xdist) share the tests. Imported only where there is xdist."""

from __future__ import annotations

from xdist.scheduler import LoadFileScheduling

_ONE_SERVER = "tests/comfyui/"


class TogetherScheduling(LoadFileScheduling):
    """A file's tests go to one process, and those of all files that use the one ComfyUI server to the same one."""

    def _split_scope(self, nodeid: str) -> str:
        return _ONE_SERVER if nodeid.startswith(_ONE_SERVER) else str(super()._split_scope(nodeid))
