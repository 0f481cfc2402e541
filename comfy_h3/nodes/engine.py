"""H3EngineConnect: which engine a graph uses."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

from comfy_api.latest import io

from ...engine.contract.errors import ConfigError, EngineError, RequestError
from ...engine.contract.urls import check_url
from .. import host
from ..address import Address, get_json
from ..launcher import DEMO, EngineSpec, ParallelSpec
from .common import Engine, check_choice, known_keywords, node_errors, schema
from .parallel import MAX_RANKS, check_parallel, parallel_inputs

_DEVICES = ["auto", "cpu", "cuda", "xpu", "npu"]
_DTYPES = ["auto", "bf16", "fp32"]
_ALL = "all"
_STAGES: dict[str, tuple[str, ...]] = {
    _ALL: (),
    "encoders": ("encode_prompt", "encode_media"),
    "generator": ("denoise", "decode_video", "decode_audio"),
}
_DEMO_RANKS = 2
_ASK_SECONDS = 2.0


class H3EngineConnect(io.ComfyNode):  # type: ignore[misc]
    """Describes an engine; the nodes that use it start or find it."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """Return the node's inputs and outputs."""
        return schema(
            node_id="H3EngineConnect",
            display_name="H3 Engine Connect",
            description="Starts a MiniMax-H3 engine on this machine at first use, or attaches to a running one.",
            inputs=[
                io.Combo.Input(
                    "model",
                    options=[DEMO, *host.checkpoint_folders()],
                    default=DEMO,
                    tooltip="A MiniMax-H3 checkpoint in diffusers' layout below ComfyUI's models/diffusers. "
                    "'demo' is a tiny random model, made on first use: it shows noise, within seconds, on any machine.",
                ),
                io.String.Input(
                    "model_path",
                    default="",
                    optional=True,
                    tooltip="Folder of a checkpoint anywhere else; used instead of the model above when not empty.",
                ),
                io.String.Input(
                    "url",
                    default="",
                    optional=True,
                    tooltip="A running engine, for example http://192.168.1.20:8190; nothing is started then, and the "
                    "other inputs are not used. Its token goes into ComfyUI's settings or H3_ENGINE_TOKEN.",
                ),
                io.Int.Input(
                    "ranks",
                    default=0,
                    min=0,
                    max=MAX_RANKS,
                    optional=True,
                    tooltip="Processes that share the work, one for each GPU; 0 takes all GPUs, or one process "
                    "without a GPU. The demo takes 2 on the CPU.",
                    **known_keywords(io.Int.Input, advanced=True),
                ),
                io.Combo.Input(
                    "device",
                    options=_DEVICES,
                    default="auto",
                    optional=True,
                    tooltip="Kind of device that the engine computes on; auto takes the accelerator there is.",
                    **known_keywords(io.Combo.Input, advanced=True),
                ),
                io.Combo.Input(
                    "dtype",
                    options=_DTYPES,
                    default="auto",
                    optional=True,
                    tooltip="Number format of the weights; auto is bf16 on accelerators and fp32 on CPUs.",
                    **known_keywords(io.Combo.Input, advanced=True),
                ),
                *parallel_inputs(),
                io.Combo.Input(
                    "stages",
                    options=list(_STAGES),
                    default=_ALL,
                    optional=True,
                    tooltip="What the engine loads: all; the encoders alone, of prompts, pictures and sound; or the "
                    "generator alone, which samples and decodes. Two such engines share one graph.",
                    **known_keywords(io.Combo.Input, advanced=True),
                ),
            ],
            outputs=[Engine.Output("h3_engine", display_name="ENGINE")],
        )

    @classmethod
    async def execute(
        cls,
        *,
        model: str,
        model_path: str = "",
        url: str = "",
        ranks: int = 0,
        device: str = "auto",
        dtype: str = "auto",
        stages: str = _ALL,
        **parallel: Any,
    ) -> io.NodeOutput:
        """Return the engine's description; ``parallel`` are fields of `ParallelSpec`."""
        with node_errors():
            if url.strip():
                return io.NodeOutput(await _attached(check_url(url)))
            check_choice("device", device, _DEVICES)
            check_choice("dtype", dtype, _DTYPES)
            check_choice("stages", stages, list(_STAGES))
            if not 0 <= ranks <= MAX_RANKS:
                raise RequestError(
                    "out_of_range",
                    f"ranks is 0 to {MAX_RANKS}.",
                    field="ranks",
                    value=ranks,
                    remedy="Use 0 for all GPUs.",
                )
            layout = ParallelSpec(**parallel)
            check_parallel(layout, ranks=ranks)
            folder = _find_model(model, _unquoted(model_path))
        spec = EngineSpec(
            model=folder, ranks=ranks, device=device, dtype=dtype, parallel=layout, stages=_STAGES[stages]
        )
        if folder == DEMO:
            return io.NodeOutput(_demo(spec))
        host.NodeDisplay().text(f"Model: {spec.model_name}")
        return io.NodeOutput(spec)


def _demo(spec: EngineSpec) -> EngineSpec:
    """Return ``spec`` on the CPU: two ranks cannot share one GPU, and the demo needs none."""
    host.NodeDisplay().text("demo: a tiny random model, it shows noise")
    layout = spec.parallel
    # Degrees that are given say how many ranks they need.
    given = layout.ulysses_degree > 0 or layout.ring_degree > 1 or layout.tp_degree > 1
    ranks = spec.ranks or (0 if given else _DEMO_RANKS)
    return replace(spec, ranks=ranks, device="cpu" if spec.device == "auto" else spec.device)


async def _attached(url: str) -> EngineSpec:
    """Return the engine at ``url``, which need not answer yet; say its model where it does."""
    try:
        info = await asyncio.to_thread(get_json, Address(url, host.token()), "/v1/info", timeout=_ASK_SECONDS)
        model = f" ({info['model']['name']})" if "model" in info else ""
        plan = info.get("plan")
        planned = f"\nPlanned: {plan['summary']}" if plan else ""
    except EngineError:
        # The node that uses the engine waits for it, and says what is wrong.
        model = planned = ""
    host.NodeDisplay().text(f"Engine at {url}{model}{planned}")
    return EngineSpec(url=url)


def _unquoted(text: str) -> str:
    """Return ``text`` without the quotes that file managers put around a copied path."""
    text = text.strip()
    return text[1:-1].strip() if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text


def _find_model(name: str, path: str) -> str:
    """Return `DEMO` or the checkpoint's folder."""
    if path:
        folder = Path(path).expanduser()
        if not folder.is_dir():
            raise ConfigError(
                "checkpoint_missing",
                "There is no such folder on this machine.",
                field="model_path",
                value=path,
                remedy="Give the folder that holds modular_model_index.json, or clear model_path and choose a model.",
            )
        if not (folder / "modular_model_index.json").is_file():
            raise ConfigError(
                "checkpoint_missing",
                "This folder holds no MiniMax-H3 checkpoint in diffusers' layout (modular_model_index.json).",
                field="model_path",
                value=path,
                remedy="Give the folder that holds modular_model_index.json, transformer/, vae/ and the rest.",
            )
        return str(folder.resolve())
    if name == DEMO:
        return DEMO
    folders = host.checkpoint_folders()
    if name not in folders:
        raise ConfigError(
            "checkpoint_missing",
            f"There is no checkpoint {name!r} below ComfyUI's models/diffusers.",
            field="model",
            value=name,
            remedy=f"Choose one of {', '.join([DEMO, *folders])}, or give its folder as model_path.",
        )
    return str(folders[name].resolve())
