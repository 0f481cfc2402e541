"""What the ranks of the VAE tests do; each assertion that fails ends its rank with a traceback.

One group of three ranks serves for one, two and three: the weights say who computes.
"""

from __future__ import annotations

import copy
import gc
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.contract.errors import JobError
from engine.contract.geometry import latent_frames
from engine.models.bundle import Models
from engine.parallel.agreement import Agreement
from engine.parallel.collectives import collect_json
from engine.parallel.mesh import Mesh
from engine.rank_options import VaeOptions
from engine.stages.base import Prepared
from engine.stages.encode_media import encode_media
from engine.vae.chunks import count_chunks
from engine.vae.crew import VaeCrew, build_crew
from engine.vae.spread import decode_frames, encode_pixels
from engine.vae.tiles import Grid
from engine.vae.workspace import GatherWorkspace
from tests.support import stages
from tests.support.memory import resident_bytes

RATIO = 16
WEIGHTS = {1: (1.0, 0.0, 0.0), 2: (1.0, 1.0, 0.0), 3: (1.0, 1.0, 1.0)}
WIDE, TALL, ONE, TWO, MANY = (96, 224), (256, 64), (64, 64), (64, 96), (128, 160)
"""Height and width: 21:9, 1:4, one tile, fewer tiles than ranks, and many tiles of 64 pixels."""


class Rank:
    """A rank with the VAE of the tiny checkpoint, and diffusers' own results to compare with."""

    def __init__(self, mesh: Mesh, folder: Path) -> None:
        self.mesh = mesh
        self.first = mesh.layout.rank == 0
        self.models: Models = stages.load(Path((folder / "checkpoint").read_text()), keep=frozenset({"vae"}))
        self.boundaries = 0
        self.use_tiles(64, 16)

    def use_tiles(self, size: int, overlap: int) -> None:
        """Cut pictures into tiles of ``size``, here and in diffusers."""
        self.crew = build_crew(self.models, self.mesh, VaeOptions(vae_tile=size, vae_tile_overlap=overlap))
        self.models.vae.enable_tiling(size, size, overlap, overlap)

    def boundary(self) -> None:
        """Count."""
        self.boundaries += 1

    def decode(self, latents: torch.Tensor, crew: VaeCrew, **options: Any) -> torch.Tensor | None:
        """Decode together; all ranks must have met equally often."""
        self.boundaries = 0
        pieces = list(decode_frames(crew, latents, boundary=self.boundary, ratio=RATIO, **options))
        assert len(pieces) == (count_chunks(latents.shape[2]) if self.first else 0)
        met = collect_json(self.boundaries, self.mesh)
        assert met == [met[0]] * 3
        return torch.cat(pieces, dim=2) if self.first else None

    def check_decode(self, canvas: tuple[int, int], frames: int, *ranks: int, batch: int | None = None) -> None:
        """Compare with diffusers, bit for bit, on each of these numbers of ranks."""
        latents = noise(canvas, frames)
        whole = self.whole_decode(latents) if self.first else None
        for count in ranks:
            made = self.decode(latents, replace(self.crew, weights=WEIGHTS[count]), batch=batch)
            if whole is not None:
                assert made is not None
                assert torch.equal(made, whole), (canvas, frames, count)

    def whole_decode(self, latents: torch.Tensor) -> torch.Tensor:
        """Return what diffusers makes of it."""
        with torch.no_grad():
            decoded: torch.Tensor = self.models.vae.decode(latents, return_dict=False)[0]
        return decoded

    def check_encode(self, canvas: tuple[int, int], frames: int, *ranks: int) -> None:
        """Compare the moments with diffusers', bit for bit, on each of these numbers of ranks."""
        pixels = torch.randn(1, 3, frames, *canvas, generator=torch.Generator().manual_seed(frames))
        with torch.no_grad():
            whole = self.models.vae.encode(pixels, return_dict=False)[0].parameters if self.first else None
        for count in ranks:
            crew = replace(self.crew, weights=WEIGHTS[count])
            moments = encode_pixels(crew, pixels, boundary=self.boundary, ratio=RATIO)
            assert (moments is None) == (not self.first)
            if moments is not None:
                assert torch.equal(moments, whole), (canvas, frames, count)


def noise(canvas: tuple[int, int], frames: int) -> torch.Tensor:
    """Return latents for ``canvas`` (height, width) and ``frames``."""
    height, width = canvas
    shape = (1, 24, latent_frames(frames), height // RATIO, width // RATIO)
    return torch.randn(shape, generator=torch.Generator().manual_seed(frames))


def decoding(rank: Rank) -> None:
    """Any canvas and length, on any number of ranks."""
    for canvas in (ONE, TWO, WIDE, TALL):
        rank.check_decode(canvas, 22, 1, 2, 3)
    rank.check_decode(TWO, 124, 1, 2, 3)
    rank.check_decode(ONE, 362, 3)
    rank.check_decode(MANY, 39, 2, 3, batch=2)


def decoding_five_frames(rank: Rank) -> None:
    """diffusers cannot decode five frames; the ranks agree among each other."""
    latents = noise(MANY, 5)
    made = [rank.decode(latents, replace(rank.crew, weights=weights)) for weights in WEIGHTS.values()]
    if rank.first:
        assert all(other is not None and torch.equal(other, made[0]) for other in made)
        assert made[0] is not None
        assert made[0].shape[2] == 5


def decoding_in_trained_tiles(rank: Rank) -> None:
    """256 and 64, the default."""
    rank.use_tiles(256, 64)
    rank.check_decode((288, 320), 22, 2, 3)
    rank.check_encode((288, 256), 1, 3)


def encoding(rank: Rank) -> None:
    """Single pictures, whole clips and a clip that must be filled."""
    rank.check_encode(TWO, 1, 1, 2, 3)
    rank.check_encode(TWO, 22, 2, 3)
    rank.check_encode(WIDE, 1, 3)


def media(rank: Rank) -> None:
    """The stage: one rank's latents on any number of ranks, or by the leader alone; all ranks meet as often."""
    generator = torch.Generator().manual_seed(5)
    picture, film = (torch.randint(0, 256, (n, *TWO, 3), generator=generator, dtype=torch.uint8) for n in (1, 22))
    asked = [Prepared(picture), Prepared(film, torch.rand((2, 900), generator=generator)), Prepared(film[:5])]
    without = rank.models if rank.first else replace(rank.models, vae=None)
    decoder = rank.models if rank.first else replace(rank.models, vae=without_encoder(rank.models.vae))
    encoded: list[int] = []
    handle = rank.models.vae.encoder.register_forward_pre_hook(lambda *_: encoded.append(1))
    found = []
    # Two tiles; the film is two clips.
    for models, options, weights, counts in (
        (without, {"vae_on_one_rank": True}, WEIGHTS[1], [8, 0, 0]),
        (rank.models, {"media_encode": "leader"}, WEIGHTS[3], [8, 0, 0]),
        (decoder, {"media_encode": "leader"}, WEIGHTS[3], [8, 0, 0]),
        (rank.models, {}, WEIGHTS[2], [4, 4, 0]),
        (rank.models, {}, WEIGHTS[3], [4, 3, 1]),
    ):
        crew = build_crew(models, rank.mesh, VaeOptions(vae_tile=64, vae_tile_overlap=16, **options))
        calls = stages.Calls()
        ctx = replace(stages.context(models, calls), vaes=replace(crew, weights=weights))
        encoded.clear()
        found.append(encode_media(ctx, asked))
        assert (found[-1] is not None) == rank.first
        assert collect_json(str(calls.log), rank.mesh) == [str(calls.log)] * 3
        assert collect_json(len(encoded), rank.mesh) == counts
    handle.remove()
    if rank.first:
        first, *others = [[medium.video for medium in made or ()] for made in found]
        assert len(first) == 3
        assert all(torch.equal(ours, theirs) for other in others for ours, theirs in zip(first, other, strict=True))


def without_encoder(vae: Any) -> Any:
    """Return a copy that decodes alone, as a rank loads it that takes no part in encoding."""
    half = copy.deepcopy(vae)
    half.encoder = half.quant_conv = None
    return half


def shares_by_weight(rank: Rank) -> None:
    """A rank of twice the weight decodes twice as much, and what travels is what rank 0 lacks and uses."""
    rank.mesh.account.reset()
    made = rank.decode(noise(MANY, 22), replace(rank.crew, weights=(1.0, 2.0, 1.0)))
    assert (made is not None) == rank.first
    entry = rank.mesh.account.entries["vae_tiles"]
    tiles = Grid.cover(*MANY, rank.crew.tiles, ratio=RATIO).count * count_chunks(latent_frames(22))
    assert tiles == 9
    tile = 3 * 22 * 64 * 64 * 4
    assert (entry.sent, entry.received) == [(0, 7 * tile), (5 * tile, 0), (2 * tile, 0)][rank.mesh.layout.rank]


def one_workspace(rank: Rank) -> None:
    """The same geometry lands at the same address; rank 0 holds a chunk and a round, the others a round."""
    addresses = []
    for _ in range(3):
        rank.decode(noise(MANY, 39), rank.crew)
        addresses.append([buffer.data_ptr() for buffer in rank.crew.workspace._kept.values()])
    assert addresses[0] == addresses[1] == addresses[2]
    assert len(addresses[0]) == 1
    slots = 9 - 1 + 3 if rank.first else 1
    assert rank.crew.workspace.bytes == slots * 3 * 22 * 64 * 64 * 4
    rank.decode(noise(MANY, 39), replace(rank.crew, frees_workspace=True))
    assert rank.crew.workspace.bytes == 0


def ranks_without_the_vae(rank: Rank) -> None:
    """They meet the others as often, hold no buffer, and the result is the same."""
    latents = noise(MANY, 22)
    whole = rank.whole_decode(latents)
    models = rank.models if rank.first else replace(rank.models, vae=None)
    crew = build_crew(models, rank.mesh, VaeOptions(vae_tile=64, vae_tile_overlap=16, vae_on_one_rank=True))
    made = rank.decode(latents, crew)
    if made is None:
        assert crew.workspace.bytes == 0
        return
    assert torch.equal(made, whole)


def memory_that_runs_out_once(rank: Rank) -> None:
    """A rank tries its tiles one by one; the result is the same. When that fails too, the error says who held what."""
    latents = noise(MANY, 22)
    decoder = rank.models.vae.decoder
    calls: list[int] = []

    def fail(when: Callable[[int], bool]) -> Any:
        def hook(module: Any, inputs: Any) -> None:
            calls.append(inputs[0].shape[0])
            if when(len(calls)):
                raise torch.OutOfMemoryError("planted")

        return decoder.register_forward_pre_hook(hook)

    handle = fail(lambda call: rank.mesh.layout.rank == 1 and call == 1)
    made = rank.decode(latents, rank.crew, batch=2)
    handle.remove()
    assert calls == ([2, 1, 1, 1] if rank.mesh.layout.rank == 1 else [2, 1])
    if made is not None:
        assert torch.equal(made, rank.whole_decode(latents))
    assert rank.crew.staging.inside == ()
    handle = fail(lambda call: True)
    with pytest.raises(JobError) as caught:
        rank.decode(latents, rank.crew)
    handle.remove()
    assert caught.value.code == "out_of_memory"
    held = caught.value.details["held"]
    assert held["vae"] == sum(parameter.nbytes for parameter in rank.models.vae.parameters())
    assert held["tiles"] > 0
    assert (held["gather buffers"], rank.crew.workspace.bytes) == (0, 0)
    assert "vae" in caught.value.message
    assert rank.crew.staging.inside == ()


def errors_while_computing(rank: Rank) -> None:
    """In any round, the last too: all ranks meet, no tile of that round is handed on, the group serves on."""
    for failing in range(3):
        # Six tiles of three chunks, three a round.
        assert decode_and_fail(rank, failing=failing, call=1) == 0
        assert decode_and_fail(rank, failing=failing, call=2) == (1 if rank.first else 0)
    rank.check_decode(TWO, 22, 3)


def errors_while_finishing(rank: Rank) -> None:
    """In any chunk: the round that the others are at ends before they hear of it, and the group serves on."""
    for call in range(1, 4):
        assert decode_and_fail(rank, failing=0, call=call, finishing=True) == (call - 1 if rank.first else 0)
    rank.check_decode(TWO, 22, 3)


def memory_that_runs_out_around_the_tiles(rank: Rank) -> None:
    """For the buffers of any rank, for whole pictures and for whole clips: once, and the result is the same."""
    latents = noise(TWO, 56)
    whole = rank.whole_decode(latents)
    pixels = torch.randn(1, 3, 22, *TWO, generator=torch.Generator().manual_seed(1))
    moments = encode_pixels(rank.crew, pixels, boundary=rank.boundary, ratio=RATIO)
    for owner, name in ((GatherWorkspace, "take"), (Grid, "stitch")):
        for failing, count in itertools.product(range(3), (2, 3)):
            crew = replace(rank.crew, weights=WEIGHTS[count])
            with running_out(owner, name, times=int(rank.mesh.layout.rank == failing)):
                made = rank.decode(latents, crew)
            with running_out(owner, name, times=int(rank.mesh.layout.rank == failing)):
                again = encode_pixels(crew, pixels, boundary=rank.boundary, ratio=RATIO)
            if made is not None:
                assert again is not None
                assert moments is not None
                assert torch.equal(made, whole)
                assert torch.equal(again, moments)


def no_room_for_several_tiles(rank: Rank) -> None:
    """A rank that has none, for good, makes all ranks take one at once."""
    latents, taken = noise(MANY, 22), []
    plain = GatherWorkspace.take

    def take(workspace: GatherWorkspace, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        if rank.mesh.layout.rank == 1 and shape[0] > 1:
            raise torch.OutOfMemoryError("planted")
        taken.append(shape[0])
        return plain(workspace, shape, dtype)

    GatherWorkspace.take = take  # type: ignore[method-assign]
    made = rank.decode(latents, rank.crew, batch=2)
    GatherWorkspace.take = plain  # type: ignore[method-assign]
    assert taken == [[9, 9], [1], [2, 1]][rank.mesh.layout.rank]
    if made is not None:
        assert torch.equal(made, rank.whole_decode(latents))


@contextmanager
def running_out(owner: Any, name: str, *, times: int) -> Iterator[None]:
    """Have a method run out of memory ``times`` times."""
    plain, left = getattr(owner, name), [times]

    def limited(*arguments: Any, **options: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise torch.OutOfMemoryError("planted")
        return plain(*arguments, **options)

    setattr(owner, name, limited)
    try:
        yield
    finally:
        setattr(owner, name, plain)


def decode_and_fail(rank: Rank, *, failing: int, call: int, finishing: bool = False) -> int:
    """Decode with an error in a rank's ``call``-th tile, or chunk; return how many pieces came before all knew."""
    agreement = Agreement(rank.mesh, lambda: False)
    calls: list[int] = []

    def boundary() -> None:
        agreement.settle()
        rank.mesh.dirty = False

    def fail(*_: Any) -> None:
        calls.append(1)
        if rank.mesh.layout.rank == failing and len(calls) == call:
            raise ValueError("planted")

    def convert(pixels: torch.Tensor) -> torch.Tensor:
        fail()
        return pixels.clone()

    given: list[torch.Tensor] = []
    options: dict[str, Any] = {"convert": convert} if finishing else {}
    handle = rank.models.vae.decoder.register_forward_pre_hook(lambda *_: None if finishing else fail())

    def decode() -> None:
        given.extend(decode_frames(rank.crew, noise(TWO, 56), boundary=boundary, ratio=RATIO, **options))
        agreement.settle()

    with pytest.raises((ValueError, JobError), match="planted") as caught:
        decode()
    handle.remove()
    if not isinstance(caught.value, JobError):
        # The runner reads from these that nobody waits for this rank.
        assert (rank.mesh.dirty, rank.mesh.quiet) == (False, True)
        with pytest.raises(JobError):
            agreement.settle(JobError("job_failed", "planted"))
    assert not agreement.poisoned
    return len(given)


def soak(rank: Rank) -> None:
    """Requests of changing geometry grow nothing on any rank."""
    rank.crew = build_crew(rank.models, rank.mesh, VaeOptions(vae_tile=64, vae_tile_overlap=16, gather_workspace_mb=1))
    held = []
    for request in range(75):
        height, width = 32 + 16 * (request % 3), 32 + 16 * (request % 5)
        rank.decode(noise((height, width), (5, 22)[request % 2]), rank.crew)
        assert rank.crew.workspace.bytes <= 10**6
        if request % 15 == 14:
            gc.collect()
            held.append(resident_bytes())
    assert max(held[2:]) - held[1] < 8e6, held


CASES = (
    soak,
    decoding,
    decoding_five_frames,
    encoding,
    media,
    errors_while_computing,
    errors_while_finishing,
    memory_that_runs_out_around_the_tiles,
    no_room_for_several_tiles,
    shares_by_weight,
    one_workspace,
    ranks_without_the_vae,
    memory_that_runs_out_once,
    decoding_in_trained_tiles,
)


def run_all(mesh: Mesh, folder: Path) -> None:
    """Run every case on the same ranks; each that passed leaves a file of its name."""
    rank = Rank(mesh, folder)
    for case in CASES:
        rank.use_tiles(64, 16)
        case(rank)
        collect_json(None, mesh)
        if rank.first:
            (folder / case.__name__).touch()
