"""Host copies that ranks share: one for each distinct part, read once, gone with the last rank, however it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine import shared_memory
from engine.config import OPTIONS
from engine.config_offload import resolve_offload
from engine.contract.errors import ConfigError
from engine.offload import host
from engine.offload.host import HostCopies, share_host_copies
from engine.placement import holders, is_copied
from engine.rank_options import OffloadOptions, ParallelOptions, RankOptions
from engine.shared_memory import SharedFile, why_not_shared
from tests.support.host_copies_ranks import BIG
from tests.support.rank_group import run_on_ranks
from tests.support.ranks import Fleet

CPU = torch.device("cpu")
SMALL = 2 * 10**6
"""Bytes by which what else a rank holds may differ while it is measured."""
STREAMED = ("streamed", "some resident", "fp8", "int8", "modulation alone")
Found = list[dict[str, Any]]


def _measure(function: str, ranks: int, model: Path, folder: Path) -> Found:
    (folder / "model").symlink_to(model)
    run_on_ranks(f"tests.support.host_copies_ranks:{function}", ranks=ranks, folder=folder, timeout=280)
    found: Found = json.loads((folder / "found.json").read_text())
    return found


@pytest.fixture(scope="module")
def two(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What each of two ranks measured, by case."""
    return _measure("two", 2, tiny_checkpoint, tmp_path_factory.mktemp("two"))


@pytest.fixture(scope="module")
def four(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What each of four ranks measured, by case."""
    return _measure("four", 4, tiny_checkpoint, tmp_path_factory.mktemp("four"))


@pytest.mark.ranks
def test_two_ranks_that_share_a_copy_hold_it_once_and_otherwise_twice(two: Found) -> None:
    together, apart = (sum(found[name]["taken"] for found in two) for name in ("shared", "own"))
    assert abs(together - BIG) < SMALL
    assert abs(apart - 2 * BIG) < SMALL
    assert [found["shared"]["waits"] for found in two] == [False, True]
    assert all(found[name]["right"] for found in two for name in ("shared", "own"))


@pytest.mark.ranks
def test_four_ranks_hold_one_copy(four: Found) -> None:
    assert abs(sum(found["shared"]["taken"] for found in four) - BIG) < 2 * SMALL
    assert all(found["shared"]["right"] for found in four)


@pytest.mark.ranks
@pytest.mark.parametrize("name", STREAMED)
def test_results_do_not_depend_on_who_has_the_copy(two: Found, name: str) -> None:
    for found in two:
        assert found[name]["off own"] == 0
        assert found[name]["off resident"] < 1e-5
    assert two[0][name]["sums"] == two[1][name]["sums"] != {}


@pytest.mark.ranks
@pytest.mark.parametrize("name", STREAMED)
def test_the_rank_that_maps_a_copy_reads_nothing_of_it(two: Found, name: str) -> None:
    first, second = (found[name] for found in two)
    assert first["meta"] == second["meta"] == []
    assert second["read"] < first["read"]
    if name != "modulation alone":
        # The rotary frequencies are computed, not read.
        assert second["read"] == second["outside"] - 8


@pytest.mark.ranks
def test_distinct_parts_are_not_shared(four: Found) -> None:
    sums = [found["parts"]["sums"] for found in four]
    assert sums[0] == sums[2] != sums[1] == sums[3]
    blocks = [unit for unit in sums[0] if unit.startswith("transformer_blocks")]
    assert len(blocks) == 4
    assert all(sums[0][unit] != sums[1][unit] for unit in blocks)
    reads = [found["parts"]["read"] for found in four]
    assert reads[2] < reads[0] / 2
    assert reads[3] < reads[1] / 2
    for found in four:
        assert found["parts"]["off own"] == 0
        assert found["parts"]["off resident"] < 1e-5


@pytest.mark.parametrize(
    ("layout", "transformer", "text"),
    [
        (ParallelOptions(ulysses_degree=1), ((0,),), ((0,),)),
        (ParallelOptions(ulysses_degree=4), ((0, 1, 2, 3),), ((0,),)),
        (ParallelOptions(ulysses_degree=2, ring_degree=2), ((0, 1, 2, 3),), ((0,),)),
        (ParallelOptions(ulysses_degree=2, tp_degree=2, text_encoder_tp_degree=2), ((0, 2), (1, 3)), ((0,), (1,))),
        (ParallelOptions(ulysses_degree=2, shard_weights=True), ((0,), (1,)), ((0,),)),
    ],
)
def test_ranks_share_a_component_where_they_hold_the_same_part_of_it(
    layout: ParallelOptions, transformer: tuple[Any, ...], text: tuple[Any, ...]
) -> None:
    assert holders("transformer", layout) == holders("transformer_ref", layout) == transformer
    assert holders("text_encoder", layout) == text


def test_what_is_copied_are_blocks_that_stream_and_modulation_that_is_apart() -> None:
    block, modulation = "transformer_blocks.1.ff.net.2.weight", "transformer_blocks.1.adaln_proj.linear.bias"

    def copied(tensor: str, *families: str, apart: bool) -> bool:
        return is_copied("transformer", tensor, offload=families, modulation_apart=apart)

    assert copied(block, "dit", apart=False)
    assert copied(modulation, "dit", apart=False)
    assert copied(modulation, apart=True)
    assert not copied(block, apart=True)
    assert not copied(modulation, "text_encoder", apart=False)
    assert not copied("proj_in.weight", "dit", apart=True)


def _options(**more: Any) -> RankOptions:
    given = {"ulysses_degree": 2, "device": "cpu", "dtype": "fp32", "stages": (), "link": "", "data_timeout": 60}
    return RankOptions(model="", **(given | more))


def test_where_memory_cannot_be_shared_each_rank_keeps_its_own_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    values = {option.name: option.default for option in OPTIONS}
    assert resolve_offload(values).host_copies == "shared"

    def absent(*_: object) -> int:
        raise OSError("memfd_create is not allowed")

    monkeypatch.setattr(shared_memory.os, "memfd_create", absent)
    assert why_not_shared() == "memfd_create is not allowed"
    assert caplog.text == ""
    assert resolve_offload(values).host_copies == "own"
    assert "each rank keeps its own host copy" in caplog.text
    assert "memfd_create is not allowed" in caplog.text


class Runtime:
    """CUDA's, as far as it is called: it notes what is registered, or says that it cannot."""

    def __init__(self, status: int) -> None:
        self.status = status
        self.registered: list[tuple[int, int, int]] = []

    def cudaHostRegister(self, pointer: int, size: int, flags: int) -> int:
        self.registered.append((pointer, size, flags))
        return self.status


def _of_cuda(monkeypatch: pytest.MonkeyPatch, status: int) -> tuple[HostCopies, Runtime]:
    runtime = Runtime(status)

    def check(found: int) -> None:
        if found:
            raise RuntimeError("out of memory")

    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    monkeypatch.setattr(torch.cuda, "check_error", check)
    return HostCopies({"transformer": 0}, rank=0, device=torch.device("cuda")), runtime


def test_on_cuda_each_shared_copy_is_registered_as_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    copies, runtime = _of_cuda(monkeypatch, status=0)
    taken = [
        copies.take(f"transformer/transformer_blocks.{number}", size)[0] for number, size in enumerate((5000, 256))
    ]
    assert runtime.registered == [(flat.data_ptr(), flat.nbytes, 0) for flat in taken]
    assert all(pointer % os.sysconf("SC_PAGE_SIZE") == 0 for pointer, _, _ in runtime.registered)


def test_memory_that_cuda_cannot_pin_names_the_option_that_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    copies, _ = _of_cuda(monkeypatch, status=2)
    with pytest.raises(ConfigError) as caught:
        copies.take("transformer/transformer_blocks.0", 5000)
    assert (caught.value.code, caught.value.field) == ("start_failed", "host_copies")
    assert "pin them: out of memory" in caught.value.message


def test_own_copies_by_option_are_no_cause_for_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    assert not share_host_copies(_options(host_copies="own"), ("transformer",), rank=1, device=CPU).waits
    assert share_host_copies(_options(), ("transformer",), rank=1, device=CPU).waits
    assert caplog.text == ""


def test_a_copy_that_cannot_be_made_names_the_option_that_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    copies = HostCopies({"transformer": 0}, rank=0, device=CPU)

    def full(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(host.SharedFile, "append", full)
    with pytest.raises(ConfigError) as caught:
        copies.take("transformer/transformer_blocks.0", 100)
    assert (caught.value.code, caught.value.field, caught.value.value) == ("start_failed", "host_copies", "shared")
    assert "No space left on device" in caught.value.message
    assert "--host-copies own" in str(caught.value.remedy)


@pytest.mark.ranks
def test_ranks_of_which_one_died_while_it_streamed_share_their_copies_anew(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    rows = torch.arange(10)
    embeds = torch.randn(1, 10, 32, generator=torch.Generator().manual_seed(1))
    conditioning = tmp_path / "conditioning.safetensors"
    save_file({"prompt_embeds": embeds, "token_tags": torch.ones_like(rows)}, conditioning)
    request = {"task": "denoise", "width": 64, "height": 64, "frames": 22, "steps": 2, "seed": 3}
    told = json.dumps(OffloadOptions(offload=("dit",), block_storage="fp8").to_dict())
    fleet = Fleet(tiny_checkpoint, stages="denoise", layout=("--ulysses-degree", "2", "--offload-options", told))
    made = []
    try:
        fleet.wait_ready()
        for _ in range(2):
            ended = fleet.run(request, {"conditioning": conditioning})
            assert ended.error is None
            made.append(load_file(ended.outputs("latents")[0]))
            if len(made) == 1:
                # Rank 0 made the copies.
                with fleet.fault(rank=0, module="MiniMaxH3TransformerBlock", do="kill"):
                    fleet.start(request, {"conditioning": conditioning})
                    fleet.wait_for("lost", timeout=30)
                fleet.wait_ready()
    finally:
        fleet.close()
    assert all(torch.equal(value, made[1][name]) for name, value in made[0].items())


MAKER = """
import json, sys
from engine.shared_memory import SharedFile
file = SharedFile()
parts = [file.append(5000) for _ in range(2)]
for (_, memory), letter in zip(parts, b"ab"):
    memory[:] = bytes([letter]) * 5000
print(json.dumps([file.address, [offset for offset, _ in parts]]), flush=True)
sys.stdin.read()
"""


def test_a_maker_that_is_killed_leaves_nothing_behind_but_what_others_mapped(root: Path) -> None:
    maker = subprocess.Popen([sys.executable, "-c", MAKER], cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert maker.stdout is not None
    try:
        address, offsets = json.loads(maker.stdout.readline())
        # It stands in no folder.
        assert os.readlink(f"/proc/{address[0]}/fd/{address[1]}").startswith("/memfd:")
        file = SharedFile.of(tuple(address))
        mapped = [file.map(offset, 5000) for offset in offsets]
        file.close()
    finally:
        maker.send_signal(signal.SIGKILL)
        maker.communicate()
    assert offsets[1] % os.sysconf("SC_PAGE_SIZE") == 0
    assert [bytes(memory) for memory in mapped] == [b"a" * 5000, b"b" * 5000]
    with pytest.raises(FileNotFoundError):
        SharedFile.of(tuple(address))


def test_nobody_opens_a_copy_once_its_file_is_closed() -> None:
    file = SharedFile()
    _, memory = file.append(100)
    address = file.address
    assert Path(f"/proc/{address[0]}/fd/{address[1]}").stat().st_mode & 0o777 == 0o600
    file.close()
    memory[:3] = b"abc"
    assert memory[:4] == b"abc\0"
    with pytest.raises(OSError, match=str(address[1])):
        SharedFile.of(address)
