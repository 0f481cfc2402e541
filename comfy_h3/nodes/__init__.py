"""The nodes, one file a family, and the extension that lists them."""

from __future__ import annotations

from comfy_api.latest import ComfyExtension, io

from .composite import H3EngineComposite
from .decode import H3EngineDecode, H3EngineDecodeToVideo
from .encode import H3EngineEncodeMedia, H3EngineTextEncode
from .engine import H3EngineConnect
from .extend import H3EngineExtend
from .guide import H3EngineGuide
from .keyframes import H3EngineKeyframes
from .latent_files import H3EngineLoadLatent, H3EngineSaveLatent
from .latents import H3EngineEmptyLatent
from .masks import H3EngineLatentMask, H3EngineMaskFromImages
from .memory import H3EngineMemory
from .references import H3EngineReferenceAudio, H3EngineReferenceImage, H3EngineReferenceVideo
from .sample import H3EngineSampler


class H3EngineExtension(ComfyExtension):  # type: ignore[misc]
    """What ComfyUI registers."""

    async def get_node_list(self) -> list[type[io.ComfyNode]]:
        """Return the nodes."""
        return [
            H3EngineConnect,
            H3EngineTextEncode,
            H3EngineEmptyLatent,
            H3EngineSampler,
            H3EngineDecode,
            H3EngineDecodeToVideo,
            H3EngineKeyframes,
            H3EngineReferenceImage,
            H3EngineReferenceVideo,
            H3EngineReferenceAudio,
            H3EngineGuide,
            H3EngineEncodeMedia,
            H3EngineSaveLatent,
            H3EngineLoadLatent,
            H3EngineLatentMask,
            H3EngineMaskFromImages,
            H3EngineExtend,
            H3EngineComposite,
            H3EngineMemory,
        ]
