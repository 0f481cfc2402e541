"""MP4 files as PyAV reads them back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch

from engine.contract.errors import JobError
from engine.health import result_warnings
from engine.mux import Mp4Writer

ROOT = Path(__file__).resolve().parents[2]
WIDTH, HEIGHT, FRAMES = 96, 64, 22
SAMPLES = 37 * 800
CLICK = 8_000
RED, GREEN = (255, 0, 0), (0, 255, 0)


def _tone() -> torch.Tensor:
    """A click in the left channel, 440 Hz in the right one: [2, N]."""
    sound = torch.zeros(2, SAMPLES)
    sound[0, CLICK : CLICK + 200] = 0.9
    sound[1] = 0.5 * torch.sin(2 * torch.pi * 440 * torch.arange(SAMPLES) / 32_000)
    return sound


def _pictures() -> torch.Tensor:
    """Eleven red pictures, then eleven green ones: [22, H, W, 3]."""
    pictures = torch.empty(FRAMES, HEIGHT, WIDTH, 3, dtype=torch.uint8)
    pictures[:11] = torch.tensor(RED, dtype=torch.uint8)
    pictures[11:] = torch.tensor(GREEN, dtype=torch.uint8)
    return pictures


@pytest.fixture(scope="module")
def movie(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mux") / "movie.mp4"
    with Mp4Writer(path, width=WIDTH, height=HEIGHT, audio=_tone().numpy()) as writer:
        writer.add(_pictures()[:17].numpy())
        writer.add(_pictures()[17:].numpy())
    return path


def _sound(path: Path) -> Any:
    with av.open(str(path)) as container:
        return np.concatenate([frame.to_ndarray() for frame in container.decode(audio=0)], axis=1)


def test_pictures_come_back_with_their_number_size_rate_and_colours(movie: Path) -> None:
    with av.open(str(movie)) as container:
        stream = container.streams.video[0]
        assert (stream.average_rate, stream.codec_context.name) == (24, "h264")
        assert float(stream.duration * stream.time_base) == pytest.approx(FRAMES / 24)
        frames = list(container.decode(stream))
    assert len(frames) == FRAMES
    assert {(frame.width, frame.height, frame.format.name) for frame in frames} == {(WIDTH, HEIGHT, "yuv420p")}
    times = [frame.pts * frame.time_base for frame in frames]
    assert times == [pytest.approx(index / 24) for index in range(FRAMES)]
    for index, colour in ((0, RED), (10, RED), (11, GREEN), (21, GREEN)):
        assert np.abs(frames[index].to_rgb().to_ndarray()[30, 40].astype(int) - colour).max() <= 3


def test_colours_are_bt709_and_say_so(movie: Path) -> None:
    with av.open(str(movie)) as container:
        frame = next(container.decode(video=0))
        context = container.streams.video[0].codec_context
        assert (context.colorspace, context.color_range, context.color_primaries, context.color_trc) == (1, 1, 1, 1)
    assert abs(int(frame.to_ndarray()[0, 0]) - 63) <= 1  # pure red; it would be 81 in BT.601


def test_sound_is_stereo_at_32_khz_with_its_length(movie: Path) -> None:
    with av.open(str(movie)) as container:
        stream = container.streams.audio[0]
        assert (stream.rate, stream.channels, stream.codec_context.name) == (32_000, 2, "aac")
        assert stream.duration * stream.time_base * 32_000 == SAMPLES
        assert stream.start_time == 0
    # AAC comes in frames of 1024 samples: a decoder may give the rest of the last one.
    assert SAMPLES <= _sound(movie).shape[1] < SAMPLES + 1024


def test_sound_is_not_shifted(movie: Path) -> None:
    sound = _sound(movie)
    assert abs(int(np.argmax(np.abs(sound[0]) > 0.45)) - CLICK) <= 2
    assert np.abs(sound[1, :SAMPLES] - _tone()[1].numpy()).max() < 0.05


def test_the_index_stands_before_the_data(movie: Path) -> None:
    data = movie.read_bytes()
    assert 0 < data.find(b"moov") < data.find(b"mdat")


@pytest.mark.parametrize("samples", [800, 8 * 800 + 3, 200 * 800])
def test_sound_shorter_or_longer_than_the_pictures_is_whole(tmp_path: Path, samples: int) -> None:
    path = tmp_path / "movie.mp4"
    with Mp4Writer(path, width=32, height=32, audio=np.full((2, samples), 0.2, np.float32)) as writer:
        writer.add(np.zeros((5, 32, 32, 3), np.uint8))
    assert samples <= _sound(path).shape[1] < samples + 1024


def test_a_movie_without_sound_has_one_stream(tmp_path: Path) -> None:
    path = tmp_path / "movie.mp4"
    with Mp4Writer(path, width=32, height=32, audio=None) as writer:
        writer.add(np.zeros((5, 32, 32, 3), np.uint8))
    with av.open(str(path)) as container:
        assert [stream.type for stream in container.streams] == ["video"]


def test_sound_that_is_no_number_or_too_loud_is_silenced_and_clipped(tmp_path: Path) -> None:
    path = tmp_path / "movie.mp4"
    sound = torch.zeros(2, 16_000)
    sound[0, :8_000] = float("nan")
    sound[1] = torch.sin(torch.arange(16_000) / 20) * float("inf")
    with Mp4Writer(path, width=32, height=32, audio=sound.numpy()) as writer:
        writer.add(np.zeros((12, 32, 32, 3), np.uint8))
    back = _sound(path)
    assert np.isfinite(back).all()
    assert np.abs(back[0]).max() < 0.01


def test_a_file_that_cannot_be_written_fails_the_job_and_blocks_nobody(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="could not be written") as caught:  # noqa: PT012
        writer = Mp4Writer(tmp_path / "missing" / "movie.mp4", width=32, height=32, audio=None)
        for _ in range(50):
            writer.add(np.zeros((5, 32, 32, 3), np.uint8))
        writer.close()
    assert caught.value.code == "job_failed"


def test_an_exception_inside_removes_the_file(tmp_path: Path) -> None:
    path = tmp_path / "movie.mp4"
    with pytest.raises(KeyError), Mp4Writer(path, width=32, height=32, audio=None) as writer:  # noqa: PT012
        writer.add(np.zeros((5, 32, 32, 3), np.uint8))
        raise KeyError("stop")
    assert not path.exists()


@pytest.mark.parametrize("level", [-1.0, 0.0])
def test_a_constant_soundtrack_is_told(level: float) -> None:
    assert [warning.code for warning in result_warnings(audio=torch.full((1, 2, 800), level))] == ["silent_audio"]


def test_values_that_are_no_numbers_are_told_and_good_ones_are_not() -> None:
    bad = torch.rand(2, 4, 4, 3)
    bad[1, 2, 3, 0] = float("nan")
    assert [warning.code for warning in result_warnings(frames=bad)] == ["nan_result"]
    assert result_warnings(frames=torch.rand(2, 4, 4, 3), audio=torch.rand(1, 2, 800)) == []


_DISK_OF_EVERY_SIZE = """
import faulthandler, resource, sys
from pathlib import Path
import numpy as np
from engine.contract.errors import JobError
from engine.mux import Mp4Writer

def write(path):
    noise = np.random.default_rng(0)
    with Mp4Writer(path, width=64, height=64, audio=noise.random((2, 29_600), np.float32) - 0.5) as writer:
        for _ in range(2):
            writer.add(noise.integers(0, 256, (11, 64, 64, 3), np.uint8))

# A file that does not fit: the kernel refuses the write, as on a full disk.
faulthandler.dump_traceback_later(60, exit=True)
write(path := Path(sys.argv[1]))
whole = path.stat().st_size
for part in (0, 1 / 4, 1 / 2, 3 / 4, 1):
    limit = max(0, int(whole * part) - 1)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        write(path)
    except JobError as error:
        print(error.code, path.exists())
    else:
        print("written", limit, whole)
"""


def test_a_disk_that_is_full_at_any_moment_fails_the_job_and_blocks_nobody(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _DISK_OF_EVERY_SIZE, str(tmp_path / "movie.mp4")]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=90, check=False)
    assert ended.stdout.splitlines() == ["disk_full False"] * 5, ended.stderr
