"""sample in Triton: three launches and no wait for the device.

1. Each program finds the largest logit of a chunk. 2. Rows with a temperature: each adds up its
chunk's shares and sets the candidates aside (e^-9 of the likeliest or more). 3. One program per row
chooses. Instead of sorting, it searches for the score at which the mass, or the number, of all
tokens above passes a target, eight pivots at a time: among the candidates if the answer must be
there, else in the whole row.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from kernels import tuning
from kernels.call import KernelCall, power_of_two
from kernels.sample.spec import (
    CANDIDATES,
    CHUNK,
    FAR,
    MOST,
    Settings,
    Workspace,
    sample_workspace,
)

_FAR = tl.constexpr(FAR)
_MOST = tl.constexpr(MOST)
_UNIT = tl.constexpr(float(2**44))
_LEAST = tl.constexpr(-31.0)
"""Scores below this have no share left: e^-31 is less than 2^-44."""
_WAYS = tl.constexpr(8)
_LAUNCH = {
    "shape": {"BLOCK": 256, "num_warps": 4, "num_stages": 1},
    "chunk": {"num_warps": 8, "num_stages": 1},
    "choose": {"BLOCK": 1024, "num_warps": 8, "num_stages": 2},
}


def sample(
    logits: Tensor, settings: Settings | None = None, workspace: Workspace | None = None
) -> Tensor:
    """logits float [b, v] with dense rows -> int64 [b], valid until the workspace's next use.

    Rows with penalties or biases are changed in place (in fp32 they are as on the CPU). settings
    None: every row greedy. workspace None: memory is taken anew.
    """
    b, v = logits.shape
    work = workspace or sample_workspace(b, v, logits.device)
    for call in calls(logits, settings, work):
        call.run()
    return work.tokens[:b]


def calls(logits: Tensor, settings: Settings | None, work: Workspace) -> tuple[KernelCall, ...]:
    """The launches of one choice, in order. ValueError if the logits don't fit the workspace."""
    b, v = logits.shape
    chunks = -(-v // CHUNK)
    rows, room = work.peaks.shape
    if logits.stride(1) != 1 or b > rows or chunks > room:
        raise ValueError(
            f"logits {list(logits.shape)} need dense rows and a workspace of their size"
        )
    row: dict[str, object] = {"logits": logits, "logits_row": logits.stride(0), "v": v}
    found: dict[str, object] = row | {
        "peaks": work.peaks,
        "n_near": work.n_near,
        "near_mass": work.near_mass,
        "chunks": chunks,
    }
    each: dict[str, object] = found | {
        "temperature": None if settings is None else settings.temperature,
        "masses": work.masses,
        "near": work.near,
        "near_tokens": work.near_tokens,
        "CHUNKS": power_of_two(chunks),
        "ROOM": CANDIDATES,
    }
    named = ("top_k", "top_p", "min_p", "seeds", "positions")
    given = {name: None if settings is None else getattr(settings, name) for name in named}
    last = each | given | {"places": work.places, "tokens": work.tokens}
    tiles = _tiles(logits, "choose")
    options = _options(_tiles(logits, "chunk"))
    peaks = found | {"places": work.places, "BLOCK": CHUNK}
    launches = [KernelCall(_peaks, (b, chunks), peaks, options)]
    if settings is not None:
        launches = _shaping(row, settings, b, _tiles(logits, "shape")) + launches
        launches.append(KernelCall(_gather, (b, chunks), each | {"BLOCK": CHUNK}, options))
    last["BLOCK"] = tiles["BLOCK"]
    launches.append(KernelCall(_choose, (b,), last, _options(tiles)))
    return tuple(launches)


def _shaping(
    row: dict[str, object], settings: Settings, b: int, tiles: tuning.Launch
) -> list[KernelCall]:
    p, bias, block = settings.penalties, settings.biases, tiles["BLOCK"]
    launches = []
    if p is not None:
        penalising = row | {
            "repetition": p.repetition,
            "presence": p.presence,
            "frequency": p.frequency,
            "seen": p.seen,
            "said": p.said,
            "seen_row": p.seen.stride(0),
            "said_row": p.said.stride(0),
            "m": p.seen.shape[1],
            "BLOCK": block,
        }
        grid = (b, -(-p.seen.shape[1] // block))
        launches.append(KernelCall(_penalise, grid, penalising, _options(tiles)))
    if bias is not None:
        adding = row | {
            "tokens": bias.tokens,
            "values": bias.values,
            "tokens_row": bias.tokens.stride(0),
            "values_row": bias.values.stride(0),
            "m": bias.tokens.shape[1],
            "BLOCK": block,
        }
        grid = (b, -(-bias.tokens.shape[1] // block))
        launches.append(KernelCall(_add, grid, adding, _options(tiles)))
    return launches


def _tiles(logits: Tensor, shape: str) -> tuning.Launch:
    return tuning.launch("sample", shape, logits.device, _LAUNCH[shape])


def _options(tiles: tuning.Launch) -> dict[str, int]:
    return {name: tiles[name] for name in ("num_warps", "num_stages")}


@triton.jit
def _penalise(
    logits, repetition, presence, frequency, seen, said, logits_row, seen_row, said_row, v, m,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    repeated = tl.load(repetition + row)
    present = tl.load(presence + row).to(tl.float64)
    frequent = tl.load(frequency + row)
    if (repeated != 1.0) | (present != 0.0) | (frequent != 0.0):
        at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        token = tl.load(seen + row * seen_row + at, at < m, other=-1)
        used = (token >= 0) & (token < v)
        times = tl.load(said + row * said_row + at, used, other=0.0)
        place = logits + row * logits_row + token
        value = tl.load(place, used, other=0.0).to(tl.float32)
        value = tl.where(value > 0, tl.div_rn(value, repeated), value * repeated)
        lower = tl.where(times > 0, present, 0.0)
        value = value.to(tl.float64) - lower - (frequent * times).to(tl.float64)
        tl.store(place, value.to(tl.float32).to(logits.dtype.element_ty), used)


@triton.jit
def _add(
    logits, tokens, values, logits_row, tokens_row, values_row, v, m, BLOCK: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    token = tl.load(tokens + row * tokens_row + at, at < m, other=-1)
    used = (token >= 0) & (token < v)
    place = logits + row * logits_row + token
    value = tl.load(place, used, other=0.0).to(tl.float32)
    value += tl.load(values + row * values_row + at, used, other=0.0)
    tl.store(place, value.to(logits.dtype.element_ty), used)


@triton.jit
def _peaks(
    logits, peaks, places, n_near, near_mass, logits_row, v, chunks, BLOCK: tl.constexpr
):  # fmt: skip
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = chunk * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(logits + row * logits_row + at, at < v, other=float("-inf")).to(tl.float32)
    top, place = tl.max(x, 0, return_indices=True, return_indices_tie_break_left=True)
    tl.store(peaks + row * chunks + chunk, top)
    tl.store(places + row * chunks + chunk, chunk * BLOCK + place)
    if chunk == 0:
        tl.store(n_near + row, 0)
        tl.store(near_mass + row, tl.full((), 0, tl.int64))


@triton.jit
def _gather(
    logits, temperature, peaks, masses, n_near, near_mass, near, near_tokens, logits_row, v, chunks,
    BLOCK: tl.constexpr, CHUNKS: tl.constexpr, ROOM: tl.constexpr,
):  # fmt: skip
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    warmth = tl.load(temperature + row)
    if warmth > 0:
        number = tl.arange(0, CHUNKS)
        others = tl.load(peaks + row * chunks + number, number < chunks, other=float("-inf"))
        top = tl.max(others, 0)
        at = chunk * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(logits + row * logits_row + at, at < v, other=float("-inf")).to(tl.float32)
        scaled = tl.div_rn(x - top, warmth)
        mass = _mass(scaled)
        tl.store(masses + row * chunks + chunk, tl.sum(mass, 0))
        kept = scaled > -_FAR
        n = tl.sum(kept.to(tl.int32), 0)
        if n > 0:
            tl.atomic_add(near_mass + row, tl.sum(tl.where(kept, mass, 0), 0))
            slot = tl.atomic_add(n_near + row, n) + tl.cumsum(kept.to(tl.int32), 0) - 1
            fits = kept & (slot < ROOM)
            tl.store(near + row * ROOM + slot, scaled, fits)
            tl.store(near_tokens + row * ROOM + slot, at, fits)


@triton.jit
def _choose(
    logits, temperature, top_k, top_p, min_p, seeds, positions, peaks, places, masses, n_near,
    near_mass, near, near_tokens, tokens, logits_row, v, chunks,
    CHUNKS: tl.constexpr, ROOM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    number = tl.arange(0, CHUNKS)
    there = number < chunks
    tops = tl.load(peaks + row * chunks + number, there, other=float("-inf"))
    top, chunk = tl.max(tops, 0, return_indices=True, return_indices_tie_break_left=True)
    token = tl.load(places + row * chunks + chunk)
    if temperature is not None:
        warmth = tl.load(temperature + row)
        summed = number < tl.where(warmth > 0, chunks, 0)
        total = tl.sum(tl.load(masses + row * chunks + number, summed, other=0), 0)
        if total > 0:
            drawn = _draw(
                logits + row * logits_row, near + row * ROOM, near_tokens + row * ROOM, v,
                tl.load(n_near + row), tl.load(near_mass + row), top, warmth, total,
                tl.load(top_k + row), tl.load(top_p + row), tl.load(min_p + row),
                _uniform(tl.load(seeds + row), tl.load(positions + row)), ROOM, BLOCK,
            )  # fmt: skip
            token = drawn
    token = tl.minimum(tl.maximum(token, 0), v - 1)  # logits that are no numbers lead anywhere
    tl.store(tokens + row, token.to(tl.int64))


@triton.jit
def _draw(
    scores, near, near_tokens, v, n_near, near_mass, top, warmth, total, k, p, q, at,
    ROOM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One token of a row; `at` in [0, 1) says which.

    Filters only ever keep a head of the row as sorted: `kept` is that head's mass.
    """
    far = _key(tl.full((), -_FAR, tl.float32))
    bottom = _key(tl.full((), float("-inf"), tl.float32))
    least = _key(tl.full((), _LEAST, tl.float32))
    by_k, by_p, by_q = (k > 0) & (k < v), p < 1.0, q > 0.0
    plain = (k == 0) & (p >= 1.0)
    unfiltered = plain & (q <= 0.0)
    zero = tl.full((), 0, tl.int32)
    kept = total
    covered = near_mass
    beyond = far  # scores up to this are none of the first candidates
    if by_k | (unfiltered & (n_near > _MOST)):
        number = tl.where(by_k, k, _MOST)
        whole = ((number > n_near) | (n_near > ROOM)).to(tl.int32)
        key, above, reach = _search(
            scores, near, near_tokens, v, n_near, top, warmth, whole, zero, 1, bottom, zero,
            (number - 1).to(tl.int64), bottom, zero + 1, BLOCK,
        )  # fmt: skip
        _, higher = _head(scores, near, near_tokens, v, n_near, top, warmth, whole, key + 1, BLOCK)
        one = _mass(_score(key))
        if by_k:
            kept = higher + (number - above) * one
        else:  # equal scores stay together, on this side if all are among the first
            inside = reach == number
            covered = tl.where(inside, higher + (number - above) * one, higher)
            beyond = tl.where(inside, key - 1, key)
    if by_p:
        limit = p.to(tl.float64) * kept.to(tl.float64)
        target = limit.to(tl.int64)
        target = tl.maximum(tl.where(target.to(tl.float64) < limit, target, target - 1), 0)
        whole = ((target >= near_mass) | (n_near > ROOM)).to(tl.int32)
        key, above, _ = _search(
            scores, near, near_tokens, v, n_near, top, warmth, whole, zero, 0, bottom, zero,
            target, least, zero + 1, BLOCK,
        )  # fmt: skip
        one = tl.maximum(_mass(_score(key)), 1)
        kept = tl.minimum(kept, above + ((target - above) // one + 1) * one)
    low, high = bottom, zero
    by_id, by_id_in_row = zero, zero
    if by_q:
        lowest = tl.log(q)
        whole = ((lowest <= -_FAR) | (n_near > ROOM)).to(tl.int32)
        n_kept, mass = _head(
            scores, near, near_tokens, v, n_near, top, warmth, whole, _key(lowest), BLOCK
        )
        kept = tl.minimum(kept, mass)
        many = tl.where(n_near >= _MOST, n_kept >= _MOST, lowest <= -_FAR)
        if plain & many & ((n_near < v) | (v > _MOST)):
            low, by_id, by_id_in_row = _key(lowest), zero + 1, whole
    target = tl.minimum((at * kept.to(tl.float64)).to(tl.int64), kept - 1)
    whole = ((target >= near_mass) | (n_near > ROOM)).to(tl.int32)
    whole = tl.where(by_id != 0, by_id_in_row, whole)
    if unfiltered & (target >= covered):
        target -= covered
        high, by_id, whole = beyond, zero + 1, zero + 1
    key, above, reach = _search(
        scores, near, near_tokens, v, n_near, top, warmth, whole, by_id, 0, low, high,
        target, tl.where(by_id != 0, -v, least), 1 - by_id, BLOCK,
    )  # fmt: skip
    if by_id == 0:  # which of the tokens with this score
        nth = (target - above) // tl.maximum(_mass(_score(key)), 1)
        key, above, reach = _search(
            scores, near, near_tokens, v, n_near, top, warmth, whole, zero + 1, 1, key, key,
            nth, -v, zero, BLOCK,
        )  # fmt: skip
    return -1 - key


@triton.jit
def _search(
    scores, near, near_tokens, v, n_near, top, warmth, whole, by_id, counting, low, high, target,
    lo, hi, BLOCK: tl.constexpr,
):  # fmt: skip
    """(key, above, reach): the largest key that more than `target` weigh as much as or exceed.

    A token's key is its score's, or -1 - id; only scores of low..high count, each with its mass or
    as one. above: weight of the larger keys; reach: of those and the key's own. The key must lie in
    [lo, hi).
    """
    ways = tl.arange(0, _WAYS)
    n = tl.where(whole != 0, v, n_near)
    above = tl.full((), 0, tl.int64)
    reach = above
    while hi - lo > 1:
        step = tl.maximum((hi - lo) // _WAYS, 1)
        pivots = lo + ways * step
        sums = tl.zeros([_WAYS, BLOCK], tl.int64)
        for start in range(0, n, BLOCK):
            scaled, token, inside = _tile(
                scores, near, near_tokens, top, warmth, whole, start, n, BLOCK
            )
            score = _key(scaled)
            weight = tl.where(counting != 0, tl.full([BLOCK], 1, tl.int64), _mass(scaled))
            weight = tl.where(inside & (score >= low) & (score <= high), weight, 0)
            key = tl.where(by_id != 0, -1 - token, score)
            sums += tl.where(key[None, :] >= pivots[:, None], weight[None, :], 0)
        weights = tl.sum(sums, 1)
        more = (weights > target) & (pivots < hi)
        n_more = tl.maximum(tl.sum(more.to(tl.int32), 0), 1)
        edge = lo + n_more * step
        reach = tl.sum(tl.where(ways == n_more - 1, weights, 0), 0)
        nearer = (n_more < _WAYS) & (edge < hi)
        above = tl.where(nearer, tl.sum(tl.where(ways == n_more, weights, 0), 0), above)
        hi = tl.where(nearer, edge, hi)
        lo = edge - step
    return lo, above, reach


@triton.jit
def _head(
    scores, near, near_tokens, v, n_near, top, warmth, whole, key, BLOCK: tl.constexpr
):  # fmt: skip
    """(number, mass) of the tokens whose score has this key or a larger one."""
    n = tl.where(whole != 0, v, n_near)
    masses = tl.zeros([BLOCK], tl.int64)
    count = tl.zeros([BLOCK], tl.int32)
    for start in range(0, n, BLOCK):
        scaled, _, inside = _tile(scores, near, near_tokens, top, warmth, whole, start, n, BLOCK)
        kept = inside & (_key(scaled) >= key)
        masses += tl.where(kept, _mass(scaled), 0)
        count += kept.to(tl.int32)
    return tl.sum(count, 0), tl.sum(masses, 0)


@triton.jit
def _tile(
    scores, near, near_tokens, top, warmth, whole, start, n, BLOCK: tl.constexpr
):  # fmt: skip
    """(scaled scores, tokens, which of them exist) from the whole row or the candidates."""
    at = start + tl.arange(0, BLOCK)
    raw = tl.load(scores + at, at < n * whole, other=0.0).to(tl.float32)
    kept = tl.load(near + at, at < n * (1 - whole), other=0.0)
    token = tl.load(near_tokens + at, at < n * (1 - whole), other=0)
    scaled = tl.where(whole != 0, tl.div_rn(raw - top, warmth), kept)
    return scaled, tl.where(whole != 0, at, token), at < n


@triton.jit
def _mass(scaled):
    return (tl.where(scaled > _LEAST, tl.exp(scaled), 0.0) * _UNIT).to(tl.int64)


@triton.jit
def _key(score):
    """An int32 that orders as the fp32 does."""
    bits = score.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _score(key):
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _uniform(seed, position):
    """The first double of numpy's Philox with this key and counter."""
    first = tl.full((), 0xD2E7470EE14C6C93, tl.uint64)
    second = tl.full((), 0xCA5A826395121157, tl.uint64)
    k0 = seed.to(tl.uint64)
    k1 = tl.full((), 0, tl.uint64)
    c0 = position.to(tl.uint64) + 1
    c1, c2, c3 = k1, k1, k1
    for _ in tl.static_range(10):
        high0, low0 = tl.umulhi(first, c0), first * c0
        high1, low1 = tl.umulhi(second, c2), second * c2
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0 += tl.full((), 0x9E3779B97F4A7C15, tl.uint64)
        k1 += tl.full((), 0xBB67AE8584CAA73B, tl.uint64)
    return (c0 >> 11).to(tl.float64) * (2.0**-53)
