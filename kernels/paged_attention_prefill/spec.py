"""Shapes, layout and bytes of paged_attention_prefill: queries of many requests in one call.

q [n, heads, d]: the queries of all rows in a line, row i's at [starts[i], starts[i + 1]); starts
int32 [r + 1]; seen int32 [r]: positions of the request, these queries included: they are its last
ones, query j of m stands at position seen - m + j. It sees the positions up to its own: a
prompt from its beginning, a chunk that continues a cached prefix, or, with one query, a decode row;
one call may hold all three. max_q: at least the longest row's queries. Cache, scales, tables,
window and heads as in paged_attention_decode. A query at a negative position (seen = 0) gives
zeros; queries that no row owns are left alone in `out`.
"""

from __future__ import annotations


def bytes_moved(
    n: int, seen: int, heads: int, kv_heads: int, d: int, itemsize: int, *, int8: bool = False
) -> int:
    """Bytes a row of n queries must move: keys and values once, queries and results."""
    position = d + 4 if int8 else d * itemsize
    return 2 * seen * kv_heads * position + 2 * itemsize * d * n * heads


def operations(n: int, seen: int, heads: int, d: int) -> int:
    """Multiply-adds, counted as two, of a row of n queries, each up to its own position."""
    return 4 * heads * d * (n * (seen - n) + n * (n + 1) // 2)
