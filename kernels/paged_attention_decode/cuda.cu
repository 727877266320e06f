// One query per row over a paged cache (arXiv 2309.06180), split along the context (flash-decoding)
// and merged by whichever block of a row comes last: one launch for a ragged batch.
//
// A block walks one split of one row for one key head and up to eight of its query heads; each of
// its warps takes every fourth tile of 16 positions, straight from memory into tensor-core operands:
//   scores [16 positions, 8 heads] = K [16, d] @ Q^T       (K is operand A, as it lies in memory)
//   out^T  [d, 8 heads]           += V^T [d, 16] @ P       (V^T is operand A, two bytes picked)
// A sum over d may run in any order if K and Q agree on it, and out's rows may be any permutation of
// d: that freedom lets a lane load 16 bytes side by side, with no shared memory and no shuffle of
// data. Only P must be transposed between the products, by movmatrix.
#include "../native/device.cuh"

namespace paged_attention_decode {

constexpr int LANES = 32;
constexpr int WARPS = 4;
constexpr int TILE = 16;   // positions
constexpr int HEADS = 8;   // query heads of a block
constexpr float NONE = -1e30f;  // below every score, and its differences are no NaN

struct Inputs {
  const uint16_t* q;
  int64_t q_row, q_head;  // strides, in elements, as all here
  const uint16_t* cache;
  int64_t side, block, kv_head;  // keys to values, block to block, head to head
  const int32_t* tables;
  int64_t table;
  const int32_t* seen;
  int share;         // query heads of a key head
  int block_size;    // a multiple of TILE
  int window;        // 0: none
  int split;         // tiles of a block's share of a row
  float scale;       // times log2(e)
};

struct Outputs {
  uint16_t* out;
  int64_t row, head;  // strides
  float* partial;  // [rows, key heads * groups, splits, min(share, HEADS), d], not divided by sums
  float* sums;     // [rows, key heads * groups, splits, min(share, HEADS), 2] largest score, sum
  int32_t* counters;  // [rows, key heads * groups], zero between launches
};

// What a lane holds of a tile, with row = lane / 4 and quad = lane % 4.
template <int D>
struct Tile {
  static constexpr int KEYS = D / 8;  // words of positions row and row + 8
  static constexpr int VALUES = D / 16;  // of positions 2 quad, 2 quad + 1, 2 quad + 8, 2 quad + 9
  uint32_t k[2][KEYS];
  uint32_t v[4][VALUES];
};

template <int N>
DEVICE void put(uint32_t* to, const Words<N>& from) {
#pragma unroll
  for (int i = 0; i < N; ++i) to[i] = from.word[i];
}

// D elements of one position as four lanes share them: 16-byte pieces, 8 bytes if D % 32 is 16.
template <int D>
DEVICE void load_across(uint32_t* to, const uint16_t* from, int quad) {
#pragma unroll
  for (int c = 0; c < D / 32; ++c) put(to + 4 * c, load<4>(from + 32 * c + 8 * quad));
  if constexpr (D % 32) put(to + 4 * (D / 32), load<2>(from + D / 32 * 32 + 4 * quad));
}

// As eight rows of lanes share them: 16-byte pieces, then what is left of D in 64s.
template <int D>
DEVICE void load_down(uint32_t* to, const uint16_t* from, int row) {
  constexpr int REST = D % 64 / 8;
#pragma unroll
  for (int c = 0; c < D / 64; ++c) put(to + 4 * c, load<4>(from + 64 * c + 8 * row));
  if constexpr (REST) put(to + 4 * (D / 64), load<REST / 2>(from + D / 64 * 64 + REST * row));
}

// The place in a head of element i of what load_down gave a lane.
template <int D>
DEVICE int place_down(int i, int row) {
  constexpr int REST = D % 64 / 8;
  return i < D / 64 * 8 ? i / 8 * 64 + 8 * row + i % 8 : D / 64 * 64 + REST * row + i % 8;
}

template <typename T, int D>
struct Walk {
  const Inputs& in;
  const int row, quad;
  const uint16_t* keys;  // of this key head, block 0
  const int32_t* blocks;
  const int begin, end;  // positions that count
  uint32_t q[D / 8];
  float acc[D / 16][4] = {};
  float top[2] = {NONE, NONE};  // of heads 2 quad and 2 quad + 1
  float sum[2] = {};            // this lane's part

  DEVICE int block_of(int tile) const { return blocks[tile * TILE / in.block_size]; }

  DEVICE void fetch(Tile<D>& to, int tile, int block) const {
    const int first = tile * TILE;
    const uint16_t* at = keys + block * in.block + first % in.block_size * D;
#pragma unroll
    for (int i = 0; i < 2; ++i) load_across<D>(to.k[i], at + (row + 8 * i) * D, quad);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int slot = 2 * quad + i % 2 + i / 2 * 8;
      if (first + slot >= begin && first + slot < end) {
        load_down<D>(to.v[i], at + in.side + slot * D, row);
      } else {  // zero times whatever lies there could be NaN
#pragma unroll
        for (int j = 0; j < Tile<D>::VALUES; ++j) to.v[i][j] = 0;
      }
    }
  }

  DEVICE void attend(const Tile<D>& t, int tile) {
    float s[4] = {};
#pragma unroll
    for (int i = 0; i < D / 16; ++i) {
      const uint32_t a[4] = {t.k[0][2 * i], t.k[1][2 * i], t.k[0][2 * i + 1], t.k[1][2 * i + 1]};
      mma_halves<T>(s, a, q[2 * i], q[2 * i + 1]);
    }
    const int position = tile * TILE + row;
    const bool counts[2] = {position >= begin && position < end,
                            position + 8 >= begin && position + 8 < end};
    float p[4];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float low = counts[0] ? s[h] * in.scale : NONE;
      const float high = counts[1] ? s[2 + h] * in.scale : NONE;
      float best = fmaxf(low, high);
      for (int mask = 4; mask < LANES; mask *= 2) best = fmaxf(best, shuffle_xor(best, mask));
      best = fmaxf(best, top[h]);
      const float keep = power2(top[h] - best);
      p[h] = counts[0] ? power2(low - best) : 0.0f;
      p[2 + h] = counts[1] ? power2(high - best) : 0.0f;
      top[h] = best;
      sum[h] = fused(sum[h], keep, p[h] + p[2 + h]);
#pragma unroll
      for (int i = 0; i < D / 16; ++i) {
        acc[i][h] *= keep;
        acc[i][2 + h] *= keep;
      }
    }
    const uint32_t b0 = transpose8x8(pair_of<T>(p[0], p[1]));
    const uint32_t b1 = transpose8x8(pair_of<T>(p[2], p[3]));
#pragma unroll
    for (int i = 0; i < D / 16; ++i) {
      const uint32_t a[4] = {pick_bytes(t.v[0][i], t.v[1][i], 0x5410),
                             pick_bytes(t.v[0][i], t.v[1][i], 0x7632),
                             pick_bytes(t.v[2][i], t.v[3][i], 0x5410),
                             pick_bytes(t.v[2][i], t.v[3][i], 0x7632)};
      mma_halves<T>(acc[i], a, b0, b1);
    }
  }

  DEVICE void run(int tile, int last) {  // every WARPS-th tile before `last`
    if (tile >= last) return;
    Tile<D> even, odd;
    int next = block_of(tile + WARPS < last ? tile + WARPS : tile);
    fetch(even, tile, block_of(tile));
    for (;;) {  // the next tile's data and the block number after it are always under way
      const int second = tile + WARPS, third = tile + 2 * WARPS;
      if (second < last) {
        fetch(odd, second, next);
        next = block_of(third < last ? third : second);
      }
      attend(even, tile);
      if (second >= last) return;
      if (third < last) {
        fetch(even, third, next);
        next = block_of(third + WARPS < last ? third + WARPS : third);
      }
      attend(odd, second);
      if (third >= last) return;
      tile = third;
    }
  }
};

template <typename T, int D>
__global__ void __launch_bounds__(LANES * WARPS) decode(Inputs in, Outputs to) {
  SHARED(shared, WARPS * HEADS * (D + 2) * 4);
  SHARED(flag, 16);
  auto* values = reinterpret_cast<float*>(shared);  // [warp][head][d]
  float* tops = values + WARPS * HEADS * D;         // [warp][head]
  float* sums = tops + WARPS * HEADS;
  const int warp = threadIdx.x / LANES, lane = threadIdx.x % LANES;
  const int row = lane / 4, quad = lane % 4;
  const int groups = (in.share + HEADS - 1) / HEADS;
  const int kv_head = blockIdx.y / groups, group = blockIdx.y % groups;
  const int first_head = kv_head * in.share + group * HEADS;
  const int n_heads = in.share - group * HEADS < HEADS ? in.share - group * HEADS : HEADS;
  const int64_t batch = blockIdx.z;
  uint16_t* out = to.out + batch * to.row + first_head * to.head;

  const int end = in.seen[batch];
  if (end <= 0) {  // an empty row
    if (blockIdx.x == 0)
      for (int i = threadIdx.x; i < n_heads * D; i += LANES * WARPS)
        out[i / D * to.head + i % D] = 0;
    return;
  }
  const int begin = in.window > 0 && end > in.window ? end - in.window : 0;
  const int first_tile = begin / TILE, tiles = (end + TILE - 1) / TILE - first_tile;
  const int splits = (tiles + in.split - 1) / in.split;
  const int split = blockIdx.x;
  if (split >= splits) return;
  const int from = first_tile + split * in.split;
  const int last = split == splits - 1 ? first_tile + tiles : from + in.split;

  Walk<T, D> walk = {in, row, quad, in.cache + kv_head * in.kv_head, in.tables + batch * in.table,
                     begin, end, {}};
  if (row < n_heads)
    load_across<D>(walk.q, in.q + batch * in.q_row + (first_head + row) * in.q_head, quad);
  walk.run(from + warp, last);

#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int head = 2 * quad + h;
    float sum = walk.sum[h];
    for (int mask = 4; mask < LANES; mask *= 2) sum += shuffle_xor(sum, mask);
    if (row == 0) {
      tops[warp * HEADS + head] = walk.top[h];
      sums[warp * HEADS + head] = sum;
    }
#pragma unroll
    for (int i = 0; i < D / 8; ++i)
      values[(warp * HEADS + head) * D + place_down<D>(i, row)] = walk.acc[i / 2][h + i % 2 * 2];
  }
  sync_block();

  const int64_t pair = batch * gridDim.y + blockIdx.y;
  const int most = in.share < HEADS ? in.share : HEADS;
  const int64_t slot = (pair * gridDim.x + split) * most;
  for (int i = threadIdx.x; i < n_heads * D; i += LANES * WARPS) {
    const int head = i / D;
    float best = NONE, total = 0.0f, value = 0.0f;
    for (int w = 0; w < WARPS; ++w) best = fmaxf(best, tops[w * HEADS + head]);
    for (int w = 0; w < WARPS; ++w) {
      const float weight = power2(tops[w * HEADS + head] - best);
      total = fused(sums[w * HEADS + head], weight, total);
      value = fused(values[w * HEADS * D + i], weight, value);
    }
    if (splits == 1) {
      out[head * to.head + i % D] = bits_of(T{}, value / total);
    } else {
      to.partial[slot * D + i] = value;
      if (i % D == 0) {
        to.sums[(slot + head) * 2] = best;
        to.sums[(slot + head) * 2 + 1] = total;
      }
    }
  }
  if (splits == 1) return;

  auto* is_last = reinterpret_cast<int32_t*>(flag);
  sync_block();
  if (threadIdx.x == 0) *is_last = arrive(to.counters + pair) == splits - 1;
  sync_block();
  if (!*is_last) return;
  if (threadIdx.x == 0) to.counters[pair] = 0;  // for the next launch
  for (int i = threadIdx.x; i < n_heads * D; i += LANES * WARPS) {
    const int head = i / D;
    const float* of_row = to.partial + pair * gridDim.x * most * D + i;
    const float* of_sums = to.sums + (pair * gridDim.x * most + head) * 2;
    float best = NONE, total = 0.0f, value = 0.0f;
    for (int s = 0; s < splits; ++s) best = fmaxf(best, load_fresh(of_sums + s * most * 2));
    for (int s = 0; s < splits; ++s) {
      const float weight = power2(load_fresh(of_sums + s * most * 2) - best);
      total = fused(load_fresh(of_sums + s * most * 2 + 1), weight, total);
      value = fused(load_fresh(of_row + static_cast<int64_t>(s) * most * D), weight, value);
    }
    out[head * to.head + i % D] = bits_of(T{}, value / total);
  }
}

constexpr int INVALID = 1;  // cudaErrorInvalidValue

template <typename T>
int run(int64_t d, dim3 grid, const Inputs& in, const Outputs& out, void* stream) {
  constexpr int threads = LANES * WARPS;
  switch (d) {
    case 64: return launch(decode<T, 64>, grid, threads, stream, in, out);
    case 80: return launch(decode<T, 80>, grid, threads, stream, in, out);
    case 96: return launch(decode<T, 96>, grid, threads, stream, in, out);
    case 128: return launch(decode<T, 128>, grid, threads, stream, in, out);
    default: return INVALID;
  }
}

}  // namespace paged_attention_decode

extern "C" int paged_attention_decode_run(
    const void* q, int64_t q_row, int64_t q_head, const void* cache, int64_t side, int64_t block,
    int64_t kv_head, const void* tables, int64_t table, const void* seen, int64_t rows,
    int64_t heads, int64_t kv_heads, int64_t d, int64_t block_size, int64_t window,
    int64_t split_tiles, int64_t splits, float scale, int64_t kind, void* out, int64_t out_row,
    int64_t out_head, void* counters, void* partial, void* sums, void* stream) {
  using namespace paged_attention_decode;
  const int share = static_cast<int>(heads / kv_heads);
  const Inputs in = {static_cast<const uint16_t*>(q), q_row, q_head,
                     static_cast<const uint16_t*>(cache), side, block, kv_head,
                     static_cast<const int32_t*>(tables), table,
                     static_cast<const int32_t*>(seen), share,
                     static_cast<int>(block_size), static_cast<int>(window),
                     static_cast<int>(split_tiles), scale * 1.44269504088896341f};
  const Outputs to = {static_cast<uint16_t*>(out), out_row, out_head, static_cast<float*>(partial),
                      static_cast<float*>(sums), static_cast<int32_t*>(counters)};
  const dim3 grid(static_cast<unsigned>(splits),
                  static_cast<unsigned>(kv_heads * ((share + HEADS - 1) / HEADS)),
                  static_cast<unsigned>(rows));
  if (kind == FP16) return run<Fp16>(d, grid, in, to, stream);
  if (kind == BF16) return run<Bf16>(d, grid, in, to, stream);
  return INVALID;
}
