"""The few things of ComfyUI that this pack uses outside of its nodes, for ComfyUI 0.3.75 and later.

Everything else in `comfy_h3` except the nodes knows nothing of ComfyUI and is tested without it. Raises ComfyUI's own
interrupt from `raise_if_interrupted` (an `Exception` on 0.3.75, a `BaseException` later), and `RequestError`.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import comfy.model_management
import folder_paths
import torch
from comfy.cli_args import args
from comfy.nested_tensor import NestedTensor
from comfy_api.latest import ComfyAPI, InputImpl
from comfy_execution.utils import get_executing_context
from PIL import Image
from server import PromptServer

from ..engine.contract.errors import RequestError
from .media import may_be_trimmed

log = logging.getLogger(__name__)

Interrupted: type[BaseException] = comfy.model_management.InterruptProcessingException
_TOKEN_SETTING = "H3Engine.Token"
_PROGRESS_SCALE = 1000
_OUTPUT = " [output]"
"""How ComfyUI marks the name of a file in its output folder."""
_PREVIEW_SIDE = 512
"""Longest side of a picture shown while a node works, pixels, roughly: every n-th pixel is taken."""
_api = ComfyAPI()
_execution = getattr(_api, "execution", None) or ComfyAPI.Execution()


def workflow_id(extra_pnginfo: object) -> str | None:
    """Return the id of the workflow that runs, from what the page sends with it; None when it came without one."""
    workflow = extra_pnginfo.get("workflow") if isinstance(extra_pnginfo, dict) else None
    found = workflow.get("id") if isinstance(workflow, dict) else None
    return found if isinstance(found, str) else None


class NodeDisplay:
    """The progress bar and the text on the node that runs now."""

    def __init__(self) -> None:
        context = get_executing_context()
        self._node_id: str | None = None if context is None else context.node_id
        self._prompt_id: str | None = None if context is None else context.prompt_id
        self._progress = 0.0
        self._text = ""

    def text(self, text: str) -> None:
        """Show ``text`` on the node, in place of what stood there."""
        if self._node_id is not None and text != self._text:
            self._text = text
            PromptServer.instance.send_progress_text(text, self._node_id)

    async def progress(self, value: float) -> None:
        """Move the progress bar to ``value`` (0..1), never back."""
        self._progress = max(self._progress, min(value, 1.0))
        if self._node_id is not None:
            await _execution.set_progress(
                round(self._progress * _PROGRESS_SCALE), _PROGRESS_SCALE, node_id=self._node_id
            )

    def canvas(self, size: dict[str, int], *, workflow: str | None) -> None:
        """Tell the editor in the page that queued the run the size of the node's latent: width, height, frames.

        Args:
            workflow: the one that runs, see `workflow_id`. Another tab may have a node of the same id, and if both were
                opened from one template the same workflow: the page knows its runs by the prompt's id.
        """
        server = PromptServer.instance
        if self._node_id is not None and server.client_id is not None:
            told = {"node": self._node_id, "canvas": size, "workflow": workflow, "prompt": self._prompt_id}
            server.send_sync("h3_engine.canvas", told, server.client_id)

    async def preview(self, picture: torch.Tensor) -> None:
        """Show ``picture`` [H, W, 3], uint8 or float32 in 0..1, on the node while it works."""
        if self._node_id is None:
            return
        step = -(-max(picture.shape[:2]) // _PREVIEW_SIDE)
        small = picture[::step, ::step]
        small = small if small.dtype == torch.uint8 else (small * 255).round().to(torch.uint8)
        value, image = round(self._progress * _PROGRESS_SCALE), Image.fromarray(small.contiguous().numpy())
        await _execution.set_progress(value, _PROGRESS_SCALE, node_id=self._node_id, preview_image=image)


def raise_if_interrupted() -> None:
    """Raise ComfyUI's interrupt when the user pressed it (once for each press)."""
    comfy.model_management.throw_exception_if_processing_interrupted()


def unload_models() -> None:
    """Free the accelerator of ComfyUI's own models."""
    if comfy.model_management.get_torch_device().type == "cpu":
        return
    log.info("unloading ComfyUI's models to make room for the engine")
    comfy.model_management.unload_all_models()
    comfy.model_management.soft_empty_cache()


def nested(tensors: Sequence[Any]) -> Any:
    """Return ComfyUI's `NestedTensor` of ``tensors``."""
    return NestedTensor(tensors)


def video_file(video: Any) -> str | BytesIO | None:
    """Return the file of a VIDEO, None of one that is trimmed or was made of images: that has no file of its own."""
    if not isinstance(video, InputImpl.VideoFromFile) or may_be_trimmed(video):
        return None
    source: str | BytesIO = video.get_stream_source()
    return source


def input_file(name: str) -> Path | None:
    """Return an uploaded file by ComfyUI's name for it (``mask.png``, ``clip.mp4 [temp]``).

    None of one that is not there or lies outside of ComfyUI's folders.
    """
    plain, folder = folder_paths.annotated_filepath(name)
    base = Path(folder or folder_paths.get_input_directory()).resolve()
    file = (base / plain).resolve()
    return file if file.is_relative_to(base) and file.is_file() else None


def add_route(path: str, handler: Any) -> None:
    """Serve GET requests to ``path`` by ``handler``; before the server starts."""
    PromptServer.instance.routes.get(path)(handler)


def engine_home() -> Path:
    """Return the folder for the engine's log and the demo checkpoint, in ComfyUI's user folder."""
    return Path(folder_paths.get_user_directory()) / "h3_engine"


def new_output(prefix: str, suffix: str) -> tuple[Path, dict[str, str]]:
    """Return a new file's path in ComfyUI's output folder, and how ComfyUI's results name it.

    Args:
        prefix: the user's, of folders and the file's name. suffix: of the file's name.

    Raises:
        RequestError: ``out_of_range`` for a prefix that leads out of the folder.
    """
    base = folder_paths.get_output_directory()
    try:
        folder, name, counter, subfolder, _ = folder_paths.get_save_image_path(prefix, base)
    except Exception as error:
        raise RequestError(
            "out_of_range",
            f"No file can be made there: {error}",
            field="filename_prefix",
            value=prefix,
            remedy="Use a name, or folders and a name, below ComfyUI's output folder.",
        ) from error
    file = f"{name}_{counter:05}_{suffix}"
    while (Path(folder) / file).exists():
        counter += 1
        file = f"{name}_{counter:05}_{suffix}"
    return Path(folder) / file, {"filename": file, "subfolder": subfolder, "type": "output"}


def metadata_disabled() -> bool:
    """Whether the user wants no workflow in the files (``--disable-metadata``)."""
    return bool(args.disable_metadata)


def stored_files(*, inputs: str, outputs: str) -> list[str]:
    """Return the files of ComfyUI's input folder that end in ``inputs`` and those of its output folder in ``outputs``.

    Returns:
        names as ComfyUI writes them: ``a/b.x`` and ``a/b.x [output]``.
    """
    found = []
    for mark, base in _stores().items():
        suffix = outputs if mark else inputs
        found += [path.relative_to(base).as_posix() + mark for path in sorted(base.rglob("*" + suffix))]
    return found


def stored_file(name: str) -> Path | None:
    """Return the file of a name that `stored_files` may give; None when there is none inside the folder."""
    mark = _OUTPUT if name.endswith(_OUTPUT) else ""
    base = _stores()[mark]
    path = Path(os.path.normpath(base / name.removesuffix(mark)))
    return path if path.is_relative_to(base) and path.is_file() else None


def _stores() -> dict[str, Path]:
    input_folder, output_folder = folder_paths.get_input_directory(), folder_paths.get_output_directory()
    return {mark: Path(os.path.abspath(base)) for mark, base in (("", input_folder), (_OUTPUT, output_folder))}


def checkpoint_folders() -> dict[str, Path]:
    """Return the checkpoints of diffusers' layout below ComfyUI's ``diffusers`` model folders: shown name → folder."""
    found: dict[str, Path] = {}
    for base in map(Path, folder_paths.get_folder_paths("diffusers")):
        for index in sorted([*base.glob("*/modular_model_index.json"), *base.glob("*/*/modular_model_index.json")]):
            found.setdefault(index.parent.relative_to(base).as_posix(), index.parent)
    return found


def token() -> str | None:
    """Return the token for engines that want one: ``H3_ENGINE_TOKEN``, else ComfyUI's setting, else None."""
    chosen = os.environ.get("H3_ENGINE_TOKEN")
    if chosen:
        return chosen
    settings = Path(folder_paths.get_user_directory()) / "default" / "comfy.settings.json"
    if not settings.exists():
        return None
    return json.loads(settings.read_text(encoding="utf-8")).get(_TOKEN_SETTING) or None
