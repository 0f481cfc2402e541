"""What the fleet tells each of its ranks, as JSON on their command line."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .contract import geometry

CANNOT_START = "cannot_start"
"""Key in the fleet's store that a rank sets when starting again would fail again (the controller was told why)."""
PARTITIONS = ("transformer", "transformer_ref")
"""The transformers of a checkpoint: without references, with references."""
WEIGHTED = ("text_encoder", *PARTITIONS, "vae", "audio_vae")
"""Components with weights, in loading order."""
COMPONENTS = (*WEIGHTED, "tokenizer", "processor", "scheduler", "audio_scheduler")
"""All components; each is a folder of the checkpoint."""


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """Which parts of a checkpoint are loaded, and from where.

    Attributes:
        partitions: some of `PARTITIONS`; None: those that the checkpoint has.
        component_dirs: folders of components that are not the checkpoint's own, by component.
        own_code: whether code that components bring may run.
    """

    partitions: tuple[str, ...] | None = None
    component_dirs: Mapping[str, str] = field(default_factory=dict)
    own_code: bool = False

    def to_json(self) -> str:
        """Return one JSON argument."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> ModelOptions:
        """Read what `to_json` wrote."""
        data = json.loads(text)
        partitions = data["partitions"]
        return cls(**{**data, "partitions": None if partitions is None else tuple(partitions)})


def restart_wanted(launch: int) -> str:
    """Return the key in the fleet's store that a rank of ``launch`` sets when the ranks end in order to start again."""
    return f"restart_wanted/{launch}"


@dataclass(frozen=True, kw_only=True)
class ParallelOptions:
    """How the ranks share the work; resolved and checked by the server (`config_layout`).

    Attributes:
        ulysses_degree: ranks that trade rows for heads, 1 or more.
        ring_degree: ranks around which keys and values travel, 1 or more.
        tp_degree: ranks among which the transformer's heads and feed-forward are split, 1 or more. The product of
            these three is the number of ranks.
        text_encoder_tp_degree: ranks among which the text encoder is split: 1, 2, 4 or 8, at most the ranks.
        rank_weights: a number, 1e-6 to 1e6, for each of the U*R ranks of the sequence, in proportion to which they
            hold its rows; None: alike.
        shard_weights: whether each rank holds a part of every large weight, gathered when it is needed.
        compile: whether the transformer's repeated blocks are compiled.
    """

    ulysses_degree: int
    ring_degree: int = 1
    tp_degree: int = 1
    text_encoder_tp_degree: int = 1
    rank_weights: tuple[float, ...] | None = None
    shard_weights: bool = False
    compile: bool = False

    @property
    def sequence_degree(self) -> int:
        """Ranks that each hold rows of their own: U*R."""
        return self.ulysses_degree * self.ring_degree

    @property
    def world_size(self) -> int:
        """Ranks of the engine: U*R*T."""
        return self.sequence_degree * self.tp_degree

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form for ``/v1/info``."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(ParallelOptions)}


@dataclass(frozen=True, kw_only=True)
class VaeOptions:
    """Where the VAEs live and how their work is divided; checked by the server (`config_vae`).

    Attributes:
        vae_tile, vae_tile_overlap: side of a tile and the least overlap of neighbours, pixels.
        vae_resident: whether both VAEs stay on the device between uses, if they fit.
        vae_on_one_rank: whether rank 0 alone holds and runs the video VAE; else all ranks do.
        media_encode: ``patch``, the ranks that hold the video VAE encode together, or ``leader``, rank 0 alone.
        gather_workspace_mb: megabytes (1e6 bytes) of gather buffers that a rank may keep.
        release_gather_workspace: whether they are given back whenever a VAE leaves the device.
    """

    vae_tile: int = geometry.TRAINED_TILE
    vae_tile_overlap: int = geometry.TRAINED_TILE_OVERLAP
    vae_resident: bool = False
    vae_on_one_rank: bool = False
    media_encode: str = "patch"
    gather_workspace_mb: int = 1024
    release_gather_workspace: bool = False

    @property
    def trained_tiles(self) -> bool:
        """Whether the tiles are those that the VAE was trained on."""
        return (self.vae_tile, self.vae_tile_overlap) == (geometry.TRAINED_TILE, geometry.TRAINED_TILE_OVERLAP)


@dataclass(frozen=True, kw_only=True)
class OffloadOptions:
    """Where the weights live; checked by the server (`config_offload`).

    Attributes:
        offload: families (`stacks.FAMILIES`) whose blocks stream from host memory; of ``vae`` nothing follows.
        resident_blocks: blocks of each streamed stack that stay on the device; None: as many as fit.
        block_storage: ``full``, the compute type; ``fp8`` or ``int8`` for the weights of the block stacks' layers.
        modulation_tables_mb: megabytes (1e6 bytes) of a rank's host memory that tables of one run's modulation may
            take; 0: no tables, the modulation's projections stay with their blocks.
        host_copies: ``shared``, ranks of one host share one copy of the weights that stream; ``own``, each has its own.
        gpu_memory: gigabytes (1e9 bytes) that a rank may use on its device; None: what the device has.
        host_memory: the same of the host's memory for all its ranks together; None: it is not checked.
    """

    offload: tuple[str, ...] = ()
    resident_blocks: int | None = 0
    block_storage: str = "full"
    modulation_tables_mb: int = 4000
    host_copies: str = "shared"
    gpu_memory: float | None = None
    host_memory: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form, for the ranks and for ``/v1/info``."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(OffloadOptions)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> OffloadOptions:
        """Read what `to_dict` returned, after a trip through JSON."""
        return cls(**{**data, "offload": tuple(data["offload"])})


@dataclass(frozen=True, kw_only=True)
class RankOptions(ParallelOptions, VaeOptions, OffloadOptions):
    """Options of every rank; checked by the server before.

    Attributes:
        model: checkpoint folder. model_options: what is loaded of it.
        device: ``auto`` or a device type. dtype: ``auto``, ``fp32`` or ``bf16``.
        stages: the stages served.
        link: path of the controller's Unix socket.
        data_timeout: seconds that a collective of a job may wait for a peer.
        launch: 0, 1, …: counts the fleet's launches of its ranks.
        fleet: process id of the fleet that launches them.
        needs: `placement.Needs` of each rank as JSON, for which the placement leaves room; empty: nobody planned.
    """

    model: str
    device: str
    dtype: str
    stages: tuple[str, ...]
    link: str
    data_timeout: float
    model_options: ModelOptions = ModelOptions()
    launch: int = 0
    fleet: int = 0
    needs: tuple[Mapping[str, Any], ...] = ()

    def to_json(self) -> str:
        """Return one JSON argument."""
        return json.dumps({**dataclasses.asdict(self), "model_options": self.model_options.to_json()})

    @classmethod
    def from_json(cls, text: str) -> RankOptions:
        """Read what `to_json` wrote."""
        data = json.loads(text)
        weights = data["rank_weights"]
        return cls(
            **{
                **data,
                "stages": tuple(data["stages"]),
                "offload": tuple(data["offload"]),
                "needs": tuple(data["needs"]),
                "model_options": ModelOptions.from_json(data["model_options"]),
                "rank_weights": None if weights is None else tuple(weights),
            }
        )
