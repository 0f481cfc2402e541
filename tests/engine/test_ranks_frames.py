"""Pictures and sound on their way out of a job: pieces, warnings, files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from engine.contract.messages import Event, Warned
from engine.frames import Mp4Frames, TensorFrames

SOUND = torch.linspace(-0.5, 0.5, 7200).sin().expand(1, 2, 7200).contiguous()


class Recorded:
    """Outputs that remember what they were given."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.events: list[Event] = []
        self.pieces: list[tuple[str, int, bool, torch.Tensor]] = []
        self.files: list[Path] = []

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

    def new_file(self, name: str) -> Path:
        return self.folder / name

    def file(self, name: str, path: Path, file_format: str) -> None:
        self.files.append(path)

    def same(self, name: str, path: Path) -> None:
        raise AssertionError(name)

    @property
    def warnings(self) -> list[str]:
        return [event.code for event in self.events if isinstance(event, Warned)]


def test_frames_leave_in_numbered_pieces_after_the_sound(tmp_path: Path) -> None:
    outputs = Recorded(tmp_path)
    with TensorFrames(outputs, SOUND, chunks=2, dtype="uint8") as sink:
        sink.add(torch.rand(17, 32, 64, 3))
        sink.add(torch.rand(5, 32, 64, 3))
    assert [piece[:3] for piece in outputs.pieces] == [("audio", 0, True), ("frames", 0, False), ("frames", 1, True)]
    assert outputs.pieces[1][3].dtype == torch.uint8
    assert outputs.warnings == []
    assert sink.facts() == {"frames": 22, "width": 64, "height": 32, "audio_samples": 7200, "sample_rate": 32000}


def test_float_frames_leave_unrounded(tmp_path: Path) -> None:
    outputs = Recorded(tmp_path)
    frames = torch.rand(5, 32, 32, 3)
    with TensorFrames(outputs, SOUND, chunks=1, dtype="float32") as sink:
        sink.add(frames)
    assert torch.equal(outputs.pieces[1][3], frames)


@pytest.mark.parametrize("constant", [-1.0, 0.0])
def test_a_constant_soundtrack_is_reported_and_the_video_is_still_written(tmp_path: Path, constant: float) -> None:
    outputs = Recorded(tmp_path)
    with Mp4Frames(outputs, torch.full((1, 2, 7200), constant)) as sink:
        sink.add(torch.rand(5, 32, 64, 3))
    assert outputs.warnings == ["silent_audio"]
    assert outputs.files[0].stat().st_size > 500


def test_pictures_that_are_no_numbers_are_reported_once(tmp_path: Path) -> None:
    outputs = Recorded(tmp_path)
    broken = torch.full((5, 32, 32, 3), torch.nan)
    with TensorFrames(outputs, SOUND, chunks=2, dtype="uint8") as sink:
        sink.add(broken)
        sink.add(broken)
    assert outputs.warnings == ["nan_result"]


def test_an_error_leaves_no_half_written_video(tmp_path: Path) -> None:
    outputs = Recorded(tmp_path)

    def decode() -> None:
        with Mp4Frames(outputs, SOUND) as sink:
            sink.add(torch.rand(5, 32, 64, 3))
            raise ValueError("the decoder failed")

    with pytest.raises(ValueError, match="the decoder failed"):
        decode()
    assert outputs.files == []
    assert list(tmp_path.iterdir()) == []


def test_a_rank_without_decoders_makes_nothing(tmp_path: Path) -> None:
    outputs = Recorded(tmp_path)
    with Mp4Frames(outputs, None) as sink:
        pass
    assert sink.facts() == {}
    assert outputs.files == []
    assert list(tmp_path.iterdir()) == []
