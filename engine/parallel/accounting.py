"""What parallel forwards cost in traffic and memory: counted on every rank, and as closed forms.

`Account` adds up the bytes of the tensors that go into and out of the collectives (a rank's slice for itself is not
counted; headers of a backend are not seen) and the bytes of remote keys and values held at once; torch's own
collectives, which divided weights take, while `traffic.TorchTraffic` watches them. The functions below
are the closed forms that the counts equal, exactly. Symbols: B batch, D head dim, E bytes of an element, H heads of
this rank (all heads over T), U, R and T the degrees, S_i used rows of sequence rank i, S their sum, h_u heads of
Ulysses index u. Raises nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass
class Entry:
    """One kind of collective on one rank.

    Attributes:
        sent, received: bytes. calls: how often it ran.
        held: bytes of remote keys and values that it brought and that are held now. peak: the most ever held.
    """

    sent: int = 0
    received: int = 0
    calls: int = 0
    held: int = 0
    peak: int = 0


class Account:
    """The books of one rank.

    Attributes:
        entries: by kind of collective: ``ulysses_qkv``, ``ulysses_out``, ``ring_kv``, ``heads``, ``block``,
            ``modulation``; torch's: ``tensor_sum``, ``tensor_gather``, ``weights``.
    """

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = defaultdict(Entry)

    def reset(self) -> None:
        """Forget everything counted."""
        self.entries.clear()

    def moved(self, kind: str, *, sent: int, received: int) -> None:
        """Count one collective's bytes."""
        entry = self.entries[kind]
        entry.sent += sent
        entry.received += received
        entry.calls += 1

    def hold(self, kind: str, count: int) -> None:
        """Count ``count`` bytes of remote keys and values that the rank holds from now on."""
        entry = self.entries[kind]
        entry.held += count
        entry.peak = max(entry.peak, entry.held)

    def release(self, kind: str, count: int) -> None:
        """Count that they are gone."""
        self.entries[kind].held -= count


def ulysses_qkv_bytes(rows: Sequence[int], heads: Sequence[int], index: int, *, row_head: int) -> tuple[int, int]:
    """Return (sent, received) of one layer's exchange of rows for heads at Ulysses index u = ``index``.

    sent = 3 * S_u * (H - h_u) * B*D*E, received = 3 * (S - S_u) * h_u * B*D*E; with even shares both are
    3 * S*H/U * (U-1)/U * B*D*E.

    Args:
        rows: S_i, used rows of each rank of the Ulysses group. heads: h_u of each. row_head: B*D*E, bytes of one row
            of one head.
    """
    return (
        3 * rows[index] * (sum(heads) - heads[index]) * row_head,
        3 * (sum(rows) - rows[index]) * heads[index] * row_head,
    )


def ulysses_out_bytes(rows: Sequence[int], heads: Sequence[int], index: int, *, row_head: int) -> tuple[int, int]:
    """Return (sent, received) of one layer's exchange of heads for rows: a third of the other one, turned round.

    sent = (S - S_u) * h_u * B*D*E, received = S_u * (H - h_u) * B*D*E.
    """
    sent, received = ulysses_qkv_bytes(rows, heads, index, row_head=row_head)
    return received // 3, sent // 3


def ring_bytes(blocks: Sequence[int], heads: int, index: int, *, row_head: int) -> tuple[int, int]:
    """Return (sent, received) of one layer's ring at ring index r = ``index``.

    A block goes from its owner to all but the rank before it, so with S_b rows in block b, each rank sends all
    blocks but the next rank's and receives all but its own: sent = 2 * (S - S_(r+1)) * h * B*D*E,
    received = 2 * (S - S_r) * h * B*D*E; with even blocks both are 2 * S*h * (R-1)/R * B*D*E.

    Args:
        blocks: used rows of each block on the ring. heads: h, heads on this ring.
    """
    following = blocks[(index + 1) % len(blocks)]
    return (
        2 * (sum(blocks) - following) * heads * row_head,
        2 * (sum(blocks) - blocks[index]) * heads * row_head,
    )


def ring_peak_bytes(blocks: Sequence[int], heads: int, index: int, *, row_head: int) -> int:
    """Return the most bytes of remote keys and values held on a ring: two blocks, the one at hand and the one to come.

    max over the neighbours (a, b) among the R - 1 remote blocks, in the order of their arrival, of
    2 * (S_a + S_b) * h * B*D*E; with even blocks 2 blocks (one with R = 2, where there is one remote block only).
    """
    size = len(blocks)
    arriving = [blocks[(index - step) % size] for step in range(1, size)]
    pairs = [sum(arriving[first : first + 2]) for first in range(max(1, len(arriving) - 1))]
    return 2 * max(pairs, default=0) * heads * row_head


def ulysses_peak_bytes(rows: Sequence[int], heads: Sequence[int], index: int, *, row_head: int) -> int:
    """Return the bytes of remote keys and values that Ulysses holds: 2 * (S - S_u) * h_u * B*D*E, all at once."""
    return 2 * (sum(rows) - rows[index]) * heads[index] * row_head


def head_bytes(rows: Sequence[int], index: int, *, width: int, element: int) -> tuple[int, int]:
    """Return (sent, received) of one forward's gather of one output head.

    sent = (n - 1) * G_i * width * E, received = (G - G_i) * width * E: G_i target rows of the head's modality on rank
    i, n ranks. Each rank receives just the target rows that it lacks.

    Args:
        rows: G_i. width: values of a row. element: E, bytes of a value.
    """
    return (
        (len(rows) - 1) * rows[index] * width * element,
        (sum(rows) - rows[index]) * width * element,
    )


def sum_bytes(size: int, ranks: int) -> int:
    """Return the bytes that each of n ranks sends, and as many it receives, to add up tensors of ``size`` bytes.

    2 * (n-1)/n * size: every rank adds up one n-th and gives it to the others. It is what a ring or a halving algorithm
    moves, the least with even shares; a backend may choose one (a tree) in which some ranks move more.
    """
    return 2 * (ranks - 1) * size // ranks


def gather_bytes(part: int, ranks: int) -> int:
    """Return the bytes that each of n ranks sends, and as many it receives, to give all of them every part.

    (n-1) * part. Args: part: bytes of one rank's part, alike on all.
    """
    return (ranks - 1) * part


def tensor_sum_bytes(rows: int, *, width: int, element: int, ranks: int) -> int:
    """Return sent = received of one block's sums over T = ``ranks``, after its attention and after its feed-forward.

    2 * 2 * (T-1)/T * B*R*C*E: R rows of this rank (of the text refiner's blocks: all of the prompt).

    Args:
        rows: B*R, padding included. width: C, of the hidden states. element: E, bytes of a value.
    """
    return 2 * sum_bytes(rows * width * element, ranks)


def tensor_gather_bytes(levels: int, *, width: int, modalities: int, element: int, ranks: int) -> int:
    """Return sent = received of one block's gather of its table of modulations over T = ``ranks``.

    (T-1)/T * N * 6*M*C*E: N noise levels; two shifts, scales and gates of C values for each of M modalities.

    Args:
        levels: N. width: C. modalities: M. element: E, bytes of a value.
    """
    return gather_bytes(levels * 6 * modalities * width * element // ranks, ranks)


def modulation_bytes(
    levels: Sequence[int], shares: Sequence[int], index: int, *, width: int, modalities: int, element: int
) -> tuple[int, int]:
    """Return (sent, received) of one run's gathers of modulation tables at rank i = ``index`` of n.

    sent = (n-1) * B_i * L, received = (B - B_i) * L: B_i blocks of rank i, B their sum, and one block's tables take
    L = sum(N) * 6*M*C*E bytes.

    Args:
        levels: N of each table. shares: B_i. width: C. modalities: M. element: E, bytes of a value.
    """
    block = sum(levels) * 6 * modalities * width * element
    return (len(shares) - 1) * shares[index] * block, (sum(shares) - shares[index]) * block


def weights_bytes(matrices: Sequence[tuple[int, int]], *, element: int, ranks: int) -> int:
    """Return sent = received of one forward of a block whose weights n = ``ranks`` share.

    (n-1) * sum over the matrices of ceil(rows/n) * columns * E: each rank holds a run of rows, padded to the longest;
    where n divides the rows, (n-1)/n of the block.

    Args:
        matrices: (rows, columns) of each, of this rank's part where tensor parallelism divides them too.
    """
    return gather_bytes(sum(-(-rows // ranks) * columns for rows, columns in matrices) * element, ranks)
