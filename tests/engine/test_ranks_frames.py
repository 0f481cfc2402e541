"""Pictures and sound on their way out of a job: pieces, warnings, what the MP4's writer is given."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from engine.contract.messages import Event, Warned
from engine.frames import Mp4Frames, TensorFrames
from engine.health import describe_latents

SOUND = torch.linspace(-0.5, 0.5, 7200).sin().expand(1, 2, 7200).contiguous()


class Recorded:
    """Outputs that remember what they were given."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.pieces: list[tuple[str, int, bool, torch.Tensor]] = []
        self.movie_pieces: list[tuple[str, int, torch.Tensor]] = []
        self.movies = 0

    def event(self, event: Event) -> None:
        self.events.append(event)

    def tensors(
        self,
        name: str,
        tensors: Mapping[str, torch.Tensor],
        *,
        index: int = 0,
        last: bool = True,
        metadata: dict[str, str] | None = None,
    ) -> None:
        self.pieces.append((name, index, last, tensors[name]))

    def movie(self, name: str, tensor: torch.Tensor, *, index: int = 0) -> None:
        self.movie_pieces.append((name, index, tensor))

    def end_movie(self) -> None:
        self.movies += 1

    def wait_for_room(self) -> None:
        raise AssertionError("a sink waits for nobody")

    def same(self, name: str, path: Path) -> None:
        raise AssertionError(name)

    @property
    def warnings(self) -> list[str]:
        return [event.code for event in self.events if isinstance(event, Warned)]


def test_frames_leave_in_numbered_pieces_after_the_sound() -> None:
    outputs = Recorded()
    with TensorFrames(outputs, SOUND, chunks=2, dtype="uint8") as sink:
        sink.add(torch.rand(17, 32, 64, 3))
        sink.add(torch.rand(5, 32, 64, 3))
    assert [piece[:3] for piece in outputs.pieces] == [("audio", 0, True), ("frames", 0, False), ("frames", 1, True)]
    assert outputs.pieces[1][3].dtype == torch.uint8
    assert outputs.warnings == []
    assert sink.facts() == {"frames": 22, "width": 64, "height": 32, "audio_samples": 7200, "sample_rate": 32000}


def test_float_frames_leave_unrounded() -> None:
    outputs = Recorded()
    frames = torch.rand(5, 32, 32, 3)
    with TensorFrames(outputs, SOUND, chunks=1, dtype="float32") as sink:
        sink.add(frames)
    assert torch.equal(outputs.pieces[1][3], frames)


def test_a_movie_is_given_its_sound_first_then_chunk_by_chunk_with_a_small_preview_of_each() -> None:
    outputs = Recorded()
    with Mp4Frames(outputs, SOUND, chunks=2) as sink:
        sink.add(torch.rand(17, 32, 640, 3))
        last = torch.rand(5, 32, 640, 3)
        sink.add(last)
    assert [piece[:2] for piece in outputs.movie_pieces] == [("audio", 0), ("frames", 0), ("frames", 1)]
    assert outputs.movie_pieces[0][2].shape == (2, 7200)
    assert torch.equal(outputs.movie_pieces[2][2], (last * 255).round().to(torch.uint8))
    assert [piece[:3] for piece in outputs.pieces] == [("preview", 0, False), ("preview", 1, True)]
    assert torch.equal(outputs.pieces[1][3], outputs.movie_pieces[2][2][-1, ::3, ::3])
    assert outputs.movies == 1


@pytest.mark.parametrize("constant", [-1.0, 0.0])
def test_a_constant_soundtrack_is_reported_with_its_latents_and_the_video_is_still_given(constant: float) -> None:
    outputs = Recorded()
    latents = torch.tensor([0.5, -2.0, torch.nan])

    def describe() -> str:
        return describe_latents(latents, latents[:2])

    with Mp4Frames(outputs, torch.full((1, 2, 7200), constant), chunks=1, describe=describe) as sink:
        sink.add(torch.rand(5, 32, 64, 3))
    assert outputs.warnings == ["silent_audio"]
    told = next(event.message for event in outputs.events if isinstance(event, Warned))
    assert told == (
        f"The soundtrack is one constant ({constant:g}): nothing will be heard. The latents: video -2 to 0.5, mean "
        "-0.75, 1 of 3 values not numbers; sound -2 to 0.5, mean -0.75, 0 of 2 values not numbers."
    )
    assert outputs.movies == 1


def test_a_latent_without_any_number_is_described_too() -> None:
    nothing = torch.full((4,), torch.nan)
    assert describe_latents(nothing, nothing).count("4 of 4 values not numbers") == 2


def test_pictures_that_are_no_numbers_are_reported_once() -> None:
    outputs = Recorded()
    broken = torch.full((5, 32, 32, 3), torch.nan)
    with TensorFrames(outputs, SOUND, chunks=2, dtype="uint8") as sink:
        sink.add(broken)
        sink.add(broken)
    assert outputs.warnings == ["nan_result"]


def test_pictures_and_sound_that_are_no_numbers_are_both_reported() -> None:
    outputs = Recorded()
    broken = torch.full((5, 32, 32, 3), torch.nan)
    with TensorFrames(outputs, SOUND * torch.nan, chunks=2, dtype="uint8") as sink:
        sink.add(broken)
        sink.add(broken)
    told = [event.message.split(" hold")[0] for event in outputs.events if isinstance(event, Warned)]
    assert told == ["The sound", "The pictures"]


def test_an_error_leaves_the_movie_unfinished() -> None:
    outputs = Recorded()

    def decode() -> None:
        with Mp4Frames(outputs, SOUND, chunks=2) as sink:
            sink.add(torch.rand(5, 32, 64, 3))
            raise ValueError("the decoder failed")

    with pytest.raises(ValueError, match="the decoder failed"):
        decode()
    assert outputs.movies == 0


def test_a_rank_without_decoders_makes_nothing() -> None:
    outputs = Recorded()
    with Mp4Frames(outputs, None, chunks=1) as sink:
        pass
    assert sink.facts() == {}
    assert (outputs.pieces, outputs.movie_pieces, outputs.movies) == ([], [], 0)
