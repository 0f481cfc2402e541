"""Memory that runs out anywhere in decoding or encoding pictures: tried once more, then told; the next job runs."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from engine.contract.errors import JobError
from engine.contract.messages import Warned
from engine.devices_memory import Room, is_out_of_memory
from engine.frames import Mp4Frames, TensorFrames
from engine.models.bundle import Models
from engine.stages.base import Prepared, StageContext
from engine.stages.decode_video import decode_video
from engine.stages.encode_media import encode_media
from engine.vae.crew import _Slots
from engine.vae.spread import decode_frames
from engine.vae.workspace import GatherWorkspace
from tests.support import stages
from tests.support.ranks import Fleet

TAKE = "engine.vae.workspace:GatherWorkspace.take"
STITCH = "engine.vae.tiles:Grid.stitch"
PICTURES = "engine.stages.decode_video:_to_pictures"
DECODING = [TAKE, STITCH, PICTURES, "engine.stages.decode_video:_denormalised", "engine.vae.spread:_decoding"]
ENCODING = [TAKE, STITCH, "engine.stages.encode_media:sample_latents"]
GIVING = ["engine.frames:to_uint8", "engine.frames:finite", "engine.frames:result_warnings"]


def plant(monkeypatch: pytest.MonkeyPatch, function: str, *, times: int) -> list[int]:
    """Have ``function`` run out of memory ``times`` times; return a list that grows with each call."""
    name, _, path = function.partition(":")
    *owners, last = path.split(".")
    owner: Any = import_module(name)
    for step in owners:
        owner = getattr(owner, step)
    plain, calls = getattr(owner, last), []

    @wraps(plain)
    def faulty(*args: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) <= times:
            raise torch.OutOfMemoryError("planted")
        return plain(*args, **options)

    monkeypatch.setattr(owner, last, faulty)
    return calls


@pytest.fixture(scope="module")
def models(tiny_checkpoint: Path) -> Models:
    return stages.load(tiny_checkpoint, keep=frozenset({"vae"}))


@pytest.fixture
def ctx(models: Models) -> StageContext:
    return stages.context(models)


def latents(height: int = 4, width: int = 18) -> torch.Tensor:
    """Return latents of two chunks of, by default, two tiles of 64 x 256."""
    return torch.randn(1, 24, 12, height, width, generator=torch.Generator().manual_seed(1))


def decoded(ctx: StageContext) -> torch.Tensor:
    return torch.cat(list(decode_video(ctx, latents())))


def encoded(ctx: StageContext) -> torch.Tensor:
    shown = torch.randint(0, 256, (22, 64, 288, 3), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    made = encode_media(ctx, [Prepared(shown)])
    assert made is not None
    assert made[0].video is not None
    return made[0].video


CASES = [(decoded, place, "decode_video") for place in DECODING] + [(encoded, at, "encode_media") for at in ENCODING]


@pytest.mark.parametrize(("use", "place", "stage"), CASES)
def test_a_use_that_runs_out_of_memory_once_gives_the_same_bits(
    ctx: StageContext,
    monkeypatch: pytest.MonkeyPatch,
    use: Callable[[StageContext], torch.Tensor],
    place: str,
    stage: str,
) -> None:
    whole = use(ctx)
    calls = plant(monkeypatch, place, times=1)
    assert torch.equal(use(ctx), whole)
    assert len(calls) > 1


@pytest.mark.parametrize(("use", "place", "stage"), CASES)
def test_a_use_that_runs_out_of_memory_again_is_told_with_what_holds_it_and_the_next_one_works(
    ctx: StageContext,
    monkeypatch: pytest.MonkeyPatch,
    use: Callable[[StageContext], torch.Tensor],
    place: str,
    stage: str,
) -> None:
    assert ctx.vaes is not None
    whole = use(ctx)
    with monkeypatch.context() as planted:
        calls = plant(planted, place, times=10**6)
        with pytest.raises(JobError) as caught:
            use(ctx)
    assert len(calls) == 2
    assert (caught.value.code, caught.value.details["stage"]) == ("out_of_memory", stage)
    assert {"vae", "gather buffers", "tiles"} <= caught.value.details["held"].keys()
    assert caught.value.details["held"]["vae"] > 0
    assert ctx.vaes.workspace.bytes == 0
    assert ctx.vaes.staging.inside == ()
    assert torch.equal(use(ctx), whole)


def test_what_is_told_names_the_tiles_that_are_in_use(ctx: StageContext, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, STITCH, times=2)
    with pytest.raises(JobError, match="no room for a chunk of whole pictures") as caught:
        decoded(ctx)
    # Of one chunk: a round is one tile here.
    assert caught.value.details["held"]["tiles"] == 2 * 3 * 22 * 64 * 256 * 4
    assert "tiles 8.7 MB" in caught.value.message


def test_buffers_of_other_geometries_are_released_before_memory_is_asked_for_again(
    ctx: StageContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a device that they fill: the new one fits when they are gone."""
    assert ctx.vaes is not None
    workspace = ctx.vaes.workspace
    decoded(ctx)
    kept, plain = workspace.bytes, GatherWorkspace.take

    def take(self: GatherWorkspace, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        if self.bytes:
            raise torch.OutOfMemoryError("planted")
        return plain(self, shape, dtype)

    monkeypatch.setattr(GatherWorkspace, "take", take)
    pieces = list(decode_video(ctx, latents(width=4)))
    assert len(pieces) == 2
    assert 0 < workspace.bytes < kept


def test_gather_buffers_make_room_for_a_vae_that_is_brought_in(
    models: Models, ctx: StageContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ctx.vaes is not None
    crew = ctx.vaes
    decoded(ctx)
    assert crew.workspace.bytes > 0
    home = crew.staging._homes["vae"]
    plain = home.leave_for

    def leave_for(device: torch.device) -> Any:
        if crew.workspace.bytes:
            raise torch.OutOfMemoryError("planted")
        return plain(device)

    monkeypatch.setattr(home, "leave_for", leave_for)
    decoded(ctx)


def test_room_is_found_for_one_tile_at_once_where_it_lacks_for_several(
    models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    crew, plain, batches = stages.crew(models, tile=64, overlap=16), _Slots.__init__, []

    def limited(self: _Slots, work: Any, crew: Any) -> None:
        batches.append(work.batch)
        if work.batch > 1:
            raise torch.OutOfMemoryError("planted")
        plain(self, work, crew)

    whole = list(decode_frames(crew, latents(), boundary=lambda: None, ratio=16))
    monkeypatch.setattr(_Slots, "__init__", limited)
    again = list(decode_frames(crew, latents(), boundary=lambda: None, ratio=16, batch=3))
    assert batches == [3, 1]
    assert all(torch.equal(one, other) for one, other in zip(whole, again, strict=True))


class Given:
    """Outputs that run out of memory ``times`` times, then note what they are given."""

    def __init__(self, times: int = 0) -> None:
        self.left = times
        self.names: list[str] = []
        self.warnings: list[str] = []

    def _note(self, name: str) -> None:
        if self.left:
            self.left -= 1
            raise MemoryError
        self.names.append(name)

    def event(self, event: Any) -> None:
        assert isinstance(event, Warned)
        self.warnings.append(event.message)

    def tensors(self, name: str, tensors: Any, **_: Any) -> None:
        self._note(name)

    def movie(self, name: str, tensor: Any, **_: Any) -> None:
        self._note(f"movie {name}")

    def end_movie(self) -> None:
        self._note("end")


def give(sink: type[Any], outputs: Any, **options: Any) -> None:
    broken = torch.full((5, 32, 32, 3), torch.nan)
    with sink(
        outputs, torch.full((1, 2, 800), torch.nan), chunks=2, room=Room(3, held=lambda: {"x": 5}), **options
    ) as to:
        to.add(broken)
        to.add(broken)


SINKS = [(Mp4Frames, {}), (TensorFrames, {"dtype": "uint8"})]


@pytest.mark.parametrize(("sink", "options"), SINKS)
@pytest.mark.parametrize("place", GIVING)
def test_a_chunk_on_its_way_out_is_made_again_and_given_and_warned_of_once(
    sink: type[Any], options: dict[str, Any], place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, outputs = Given(), Given()
    give(sink, plain, **options)
    plant(monkeypatch, place, times=1)
    give(sink, outputs, **options)
    assert (outputs.names, outputs.warnings) == (plain.names, plain.warnings)
    assert [warning.split(" hold")[0] for warning in plain.warnings] == ["The sound", "The pictures"]


@pytest.mark.parametrize(("sink", "options"), SINKS)
def test_a_piece_that_could_not_be_written_is_written_again_then_told(sink: type[Any], options: dict[str, Any]) -> None:
    plain, once = Given(), Given(1)
    give(sink, plain, **options)
    give(sink, once, **options)
    assert once.names == plain.names
    with pytest.raises(JobError) as caught:
        give(sink, Given(2), **options)
    assert caught.value.details == {"stage": "decode_video", "rank": 3, "held": {"x": 5}}


def test_what_torch_says_of_a_full_host_is_out_of_memory() -> None:
    assert is_out_of_memory(RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"))
    assert is_out_of_memory(RuntimeError("std::bad_alloc"))
    assert not is_out_of_memory(RuntimeError("shapes differ"))


def test_caches_are_freed_between_the_two_tries() -> None:
    told: list[str] = []
    room = Room(free=lambda: told.append("freed"))

    def call() -> bool:
        told.append("tried")
        raise MemoryError

    with pytest.raises(JobError, match="nothing of ours"):
        room.make(call, what="it", stage="test")
    assert told == ["tried", "freed", "tried"]


WIDE = {"task": "generate", "prompt": "a kite", "width": 288, "height": 64, "frames": 39, "steps": 1}
"""Two chunks of two tiles, one a rank: the first chunk is handed on while the second's tiles are decoded."""
PLACES = [(1, TAKE), (1, DECODING[-1])] + [(0, place) for place in (*DECODING, "engine.frames:to_uint8")]


@pytest.mark.ranks
@pytest.mark.parametrize(("rank", "place"), PLACES)
def test_on_two_ranks_memory_that_runs_out_is_told_the_latents_stay_and_the_next_job_runs(
    fleet: Fleet, rank: int, place: str
) -> None:
    with fleet.fault(rank=rank, function=place, do="oom"):
        ended = fleet.run(WIDE)
    assert ended.error is not None
    details = ended.error["details"]
    assert (ended.error["code"], details["stage"], details["rank"]) == ("out_of_memory", "decode_video", rank)
    assert "vae" in details["held"]
    assert load_file(ended.outputs("latents")[0])["video"].shape == (1, 24, 12, 4, 18)
    if rank == 0:
        assert ended.messages[-1]["gather_workspace_bytes"] == 0
    with fleet.fault(rank=rank, function=place, do="oom", call=0):
        ended = fleet.run(WIDE)
    assert ended.error is None
    assert ended.facts["frames"] == 39
    assert "then once more" in fleet.log
