// A whole step of a Llama-family model in one call: every layer over a mixed batch of decode and
// prefill tokens, then the logits of the rows that sample. Plain C ABI; see native.py.
#include <sys/mman.h>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <mutex>
#include <new>
#include <utility>
#include <vector>
#include "../linear_group/cpu.h"
#include "../native/pool.h"
#include "../paged_attention/cpu.h"
#include "../paged_attention/cpu_int8.h"
#include "../rms_norm/cpu.h"
#include "../rope/cpu.h"
#include "../silu_mul/cpu.h"

using linear_group::Into;
using linear_group::Rounded;
using linear_group::Weight;

namespace {

struct Layer {
  const float* attn_norm;
  const float* mlp_norm;
  const float* q_norm;  // [d] or null (Qwen3)
  const float* k_norm;
  const float* q_bias;  // or null
  const float* k_bias;
  const float* v_bias;
  Weight q, k, v, o, gate, up, down;
};

// Codes [vocab, hidden] as they are in the file, scales and shifts (or null) [vocab, hidden / 32].
struct Embedding {
  const uint8_t* codes;
  const uint16_t* scale;
  const uint16_t* shift;
  int32_t bits, vocab;
};

inline void embed_row(const Embedding& e, int32_t id, int hidden, float* x) {
  using linear_group::GROUP;
  const int groups = hidden / GROUP;
  const uint8_t* codes = e.codes + int64_t(id) * hidden;
  const float zero = e.shift ? 0.0f : static_cast<float>(1 << (e.bits - 1));
  for (int64_t g = 0, at = int64_t(id) * groups; g < groups; ++g, ++at, codes += GROUP, x += GROUP) {
    const float scale = _cvtsh_ss(e.scale[at]), shift = e.shift ? _cvtsh_ss(e.shift[at]) : 0.0f;
    for (int i = 0; i < GROUP; ++i) x[i] = scale * (static_cast<float>(codes[i]) - zero) + shift;
  }
}

struct Model {
  const Layer* layers;
  int32_t n_layers, hidden, heads, kv_heads, d, intermediate;
  float eps, scale;
  const float* turns;  // [positions, d / 2, 2]
  const float* norm;
  Weight head;
  Embedding embed;
  uint8_t* cache;  // per layer: see paged_attention/cpu.h and cpu_int8.h
  int32_t n_blocks, block_size, kv_bits;
  int32_t window;  // positions that a query sees, its own included; 0: all
};

struct Step {
  int32_t n_tokens, n_rows, n_logits;
  const int32_t* ids;        // [n_tokens], below the vocabulary's size
  const int32_t* positions;  // [n_tokens]
  const int32_t* row_of;     // [n_tokens]
  const int32_t* tables;     // block numbers of all rows
  const int32_t* table_at;   // [n_rows]: where each row's begin
  const int32_t* logits_of;  // [n_logits] token numbers
  float* logits;             // [n_logits, vocab]
};

// Memory that only grows; warm-up takes it to its final size.
template <class T>
class Buffer {
 public:
  ~Buffer() { std::free(data_); }
  T* take(int64_t n) {
    if (n > n_) {
      std::free(data_);
      n_ = n + n / 4;
      data_ = static_cast<T*>(std::aligned_alloc(64, (n_ * sizeof(T) + 63) / 64 * 64));
      if (!data_) throw std::bad_alloc();
    }
    return data_;
  }

 private:
  T* data_ = nullptr;
  int64_t n_ = 0;
};

// Tiles that a thread takes at once.
inline int piece_of(int n_tiles) { return n_tiles < 64 ? 1 : 8; }

// A cache of either kind.
inline void write_position(const paged_attention::Cache& c, int block, int slot, int head,
                           const float* key, const float* value) {
  (c.bits == 8 ? paged_attention::int8::write : paged_attention::write)(c, block, slot, head, key,
                                                                        value);
}
inline void ask_begin(const paged_attention::Cache& c, const paged_attention::Place& place, int n_heads) {
  (c.bits == 8 ? paged_attention::int8::ask_first : paged_attention::ask_first)(c, place, n_heads);
}
inline void attend_all(const paged_attention::Cache& c, const int32_t* table, int head, int n_heads,
                       paged_attention::Query* queries, int each, float scale,
                       const paged_attention::Place* then) {
  (c.bits == 8 ? paged_attention::int8::all : paged_attention::all)(c, table, head, n_heads, queries,
                                                                    each, scale, then);
}

// One request's queries: paged_attention_run. then: what is read next, or null.
void attend_row(const paged_attention::Cache& cache, const int32_t* table, int n_seen, int n, int heads,
                const float* q, float scale, int window, float* out, const paged_attention::Place* then) {
  thread_local std::vector<paged_attention::Query> queries;
  const int share = heads / cache.kv_heads;
  queries.clear();
  for (int h = 0; h < cache.kv_heads; ++h)
    for (int t = 0; t < n; ++t)
      for (int head = h * share; head < (h + 1) * share; ++head) {
        const int64_t at = (int64_t(t) * heads + head) * cache.d;
        const int seen = n_seen - n + 1 + t;
        queries.push_back({q + at, out + at, window ? std::max(0, seen - window) : 0, seen});
      }
  attend_all(cache, table, 0, cache.kv_heads, queries.data(), n * share, scale, then);
}

template <int STREAMS>
uint64_t read_words(const uint64_t* p, int64_t n) {
  constexpr int WORDS = 8;  // a cache line
  const int64_t each = n / STREAMS;
  uint64_t seen[STREAMS][WORDS] = {};
  for (int64_t i = 0; i + WORDS <= each; i += WORDS)
    for (int s = 0; s < STREAMS; ++s)
      for (int k = 0; k < WORDS; ++k) seen[s][k] ^= p[s * each + i + k];
  uint64_t all = 0;
  for (const auto& stream : seen)
    for (const uint64_t word : stream) all ^= word;
  return all;
}

// Tokens [first, first + n) of one row, next to each other in the step.
struct Span {
  int first, n;
};

struct Decoder {
  Decoder(const Model& m, int n_threads) : model(m), pool(n_threads) {}
  Model model;
  Pool pool;
  Buffer<float> state, normed, qkv, mixed, gated, scale, totals;
  Buffer<int8_t> codes;
  Buffer<int32_t> sums;
  std::vector<Span> spans;

  Rounded rounded(const float* x, int n, int n_in, int64_t stride) {
    const int groups = n_in / linear_group::GROUP;
    const int64_t room = Rounded::room(n);
    const Rounded r{codes.take(room * n_in), scale.take(room * groups), sums.take(room * groups),
                    totals.take(room * groups), Rounded::width_of(n)};
    pool.run(n, 4, [&](int first, int last) {
      for (int i = first; i < last; ++i) linear_group::round_row(x + i * stride, n_in, i, r);
    });
    return r;
  }

  // Products that read the same x, side by side in y's rows.
  struct Product {
    const Weight* w;
    const float* bias;
    int64_t at;  // first column in y
  };

  template <int N>
  void multiply(const Product (&products)[N], const Rounded& x, int n, Into into, float* y,
                int64_t stride) {
    int ends[N], total = 0;
    for (int i = 0; i < N; ++i) ends[i] = total += linear_group::n_tiles(*products[i].w);
    pool.run(total, piece_of(total), [&](int first, int last) {
      int begin = 0;
      for (int i = 0; i < N; begin = ends[i++]) {
        const int from = std::max(first, begin), to = std::min(last, ends[i]);
        if (from < to)
          linear_group::run(*products[i].w, from - begin, to - begin, x, n, products[i].bias, into,
                            y + products[i].at, stride);
      }
    });
  }

  void normalise(const float* x, const float* weight, int n, float* y) {
    pool.run(n, 8, [&](int first, int last) {
      for (int i = first; i < last; ++i)
        rms_norm::row(x + int64_t(i) * model.hidden, weight, model.hidden, model.eps,
                      y + int64_t(i) * model.hidden);
    });
  }

  // Splits the step's tokens so that a span and its query heads fill one walk over the cache.
  void find_spans(const Step& s) {
    const int most = std::max(1, paged_attention::MOST / (model.heads / model.kv_heads));
    spans.clear();
    for (int t = 0; t < s.n_tokens; ++t)
      if (t > 0 && s.row_of[t] == s.row_of[t - 1] && spans.back().n < most) ++spans.back().n;
      else spans.push_back({t, 1});
  }

  void turn_and_write(const Step& s, const Layer& layer, const paged_attention::Cache& cache,
                      float* qkv, int64_t width) {
    const Model& m = model;
    pool.run(s.n_tokens, 8, [&](int first, int last) {
      for (int t = first; t < last; ++t) {
        float* row = qkv + t * width;
        const float* turn = m.turns + int64_t(s.positions[t]) * m.d;
        for (int h = 0; h < m.heads + m.kv_heads; ++h) {
          const float* weight = h < m.heads ? layer.q_norm : layer.k_norm;
          if (weight) rms_norm::row(row + h * m.d, weight, m.d, m.eps, row + h * m.d);
          rope::head(row + h * m.d, turn, m.d);
        }
        const int32_t* table = s.tables + s.table_at[s.row_of[t]];
        const int block = table[s.positions[t] / m.block_size];
        const float* keys = row + m.heads * m.d;
        for (int h = 0; h < m.kv_heads; ++h)
          write_position(cache, block, s.positions[t] % m.block_size, h, keys + h * m.d,
                                 keys + (m.kv_heads + h) * m.d);
      }
    });
  }

  // One thread takes all key heads of a span, whose keys lie side by side; more threads share them.
  // While it is at the last block of one, the first of the next is on its way.
  void attend(const Step& s, const paged_attention::Cache& cache, const float* qkv, int64_t width,
              float* out) {
    const Model& m = model;
    const int share = m.heads / m.kv_heads, together = pool.alone() ? m.kv_heads : 1;
    const int parts = m.kv_heads / together;
    auto place_of = [&](int i) -> paged_attention::Place {
      const int token = spans[i / parts].first;
      return {table_of(s, token), from(s, token) / simd::LANES * simd::LANES, i % parts * together};
    };
    pool.run(static_cast<int>(spans.size()) * parts, 1, [&](int first, int last) {
      thread_local std::vector<paged_attention::Query> queries;
      paged_attention::Place place = place_of(first);
      ask_begin(cache, place, together);
      for (int i = first; i < last; ++i) {
        const Span span = spans[i / parts];
        const int begin = i % parts * together;
        queries.clear();
        for (int h = begin; h < begin + together; ++h)
          for (int t = span.first; t < span.first + span.n; ++t)
            for (int head = h * share; head < (h + 1) * share; ++head)
              queries.push_back({qkv + t * width + head * m.d,
                                 out + (int64_t(t) * m.heads + head) * m.d, from(s, t),
                                 s.positions[t] + 1});
        if (i + 1 < last) place = place_of(i + 1);
        attend_all(cache, table_of(s, span.first), begin, together, queries.data(), span.n * share,
                   m.scale, i + 1 < last ? &place : nullptr);
      }
    });
  }

  static const int32_t* table_of(const Step& s, int token) {
    return s.tables + s.table_at[s.row_of[token]];
  }

  // The first position that a token sees.
  int from(const Step& s, int token) const {
    return model.window ? std::max(0, s.positions[token] + 1 - model.window) : 0;
  }

  // state [n_tokens, hidden] goes through layer `number`.
  void layer(const Step& s, int number, float* state) {
    const Model& m = model;
    const Layer& l = m.layers[number];
    const int n = s.n_tokens, q_width = m.heads * m.d, kv_width = m.kv_heads * m.d;
    const int64_t width = q_width + 2 * kv_width, wide = 2 * int64_t(m.intermediate);
    const int64_t piece = m.kv_bits == 8 ? paged_attention::int8::piece_bytes(m.d)
                                         : 4 * int64_t(simd::LANES) * m.d;  // of 16 positions
    const int64_t layer_bytes = piece * m.n_blocks * m.kv_heads * (m.block_size / simd::LANES);
    const paged_attention::Cache cache{reinterpret_cast<uint16_t*>(m.cache + number * layer_bytes),
                                       m.n_blocks, m.kv_heads, m.block_size, m.d, m.kv_bits};
    float* x = normed.take(int64_t(n) * m.hidden);
    float* heads = qkv.take(n * width);
    float* out = mixed.take(int64_t(n) * q_width);
    float* hidden = gated.take(n * wide);

    normalise(state, l.attn_norm, n, x);
    multiply<3>({{&l.q, l.q_bias, 0}, {&l.k, l.k_bias, q_width}, {&l.v, l.v_bias, q_width + kv_width}},
                rounded(x, n, m.hidden, m.hidden), n, Into::store, heads, width);
    turn_and_write(s, l, cache, heads, width);
    attend(s, cache, heads, width, out);
    multiply<1>({{&l.o, nullptr, 0}}, rounded(out, n, q_width, q_width), n, Into::add, state, m.hidden);
    normalise(state, l.mlp_norm, n, x);
    multiply<2>({{&l.gate, nullptr, 0}, {&l.up, nullptr, m.intermediate}},
                rounded(x, n, m.hidden, m.hidden), n, Into::store, hidden, wide);
    pool.run(n, 4, [&](int first, int last) {
      for (int i = first; i < last; ++i) {
        float* row = hidden + i * wide;
        silu_mul::row(row, row + m.intermediate, m.intermediate, row);
      }
    });
    multiply<1>({{&l.down, nullptr, 0}}, rounded(hidden, n, m.intermediate, wide), n, Into::add, state,
                m.hidden);
  }

  void run(const Step& s) {
    find_spans(s);
    float* hidden = state.take(int64_t(s.n_tokens) * model.hidden);
    pool.run(s.n_tokens, 8, [&](int first, int last) {
      for (int t = first; t < last; ++t)
        embed_row(model.embed, s.ids[t], model.hidden, hidden + int64_t(t) * model.hidden);
    });
    for (int i = 0; i < model.n_layers; ++i) layer(s, i, hidden);
    if (s.n_logits == 0) return;
    float* x = normed.take(int64_t(s.n_logits) * model.hidden);
    for (int i = 0; i < s.n_logits; ++i)
      rms_norm::row(hidden + int64_t(s.logits_of[i]) * model.hidden, model.norm, model.hidden,
                    model.eps, x + int64_t(i) * model.hidden);
    multiply<1>({{&model.head, nullptr, 0}}, rounded(x, s.n_logits, model.hidden, model.hidden),
                s.n_logits, Into::store, s.logits, model.head.n_out);
  }
};

std::mutex g_sizes_lock;
std::map<void*, size_t> g_sizes;  // of what native_alloc gave

}  // namespace

extern "C" {

const char* native_name() { return SIMD_NAME; }

// Memory in huge pages where the system gives them; null if there is none.
// From the system itself: memory that the process has used before lies in small pages, and stays there.
void* native_alloc(int64_t n_bytes) {
  constexpr size_t HUGE = 2 << 20;
  const size_t size = (n_bytes + HUGE - 1) / HUGE * HUGE;
  void* whole = mmap(nullptr, size + HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (whole == MAP_FAILED) return nullptr;
  const uintptr_t begin = reinterpret_cast<uintptr_t>(whole);
  const uintptr_t at = (begin + HUGE - 1) / HUGE * HUGE;
  if (at > begin) munmap(whole, at - begin);
  void* p = reinterpret_cast<void*>(at);
  if (begin + HUGE > at) munmap(static_cast<char*>(p) + size, begin + HUGE - at);
  madvise(p, size, MADV_HUGEPAGE);
  const std::lock_guard<std::mutex> lock(g_sizes_lock);
  g_sizes[p] = size;
  return p;
}
void native_free(void* p) {
  const std::lock_guard<std::mutex> lock(g_sizes_lock);
  const auto found = g_sizes.find(p);
  if (found == g_sizes.end()) return;
  munmap(p, found->second);
  g_sizes.erase(found);
}

int64_t linear_group_bytes(const Weight* w) {
  return linear_group::n_tiles(*w) * linear_group::tile_bytes(*w);
}

// Reads n_bytes, a multiple of 256, in four streams or in one: what the memory gives one thread.
uint64_t native_read(const uint64_t* p, int64_t n_bytes, int32_t streams) {
  return streams == 4 ? read_words<4>(p, n_bytes / 8) : read_words<1>(p, n_bytes / 8);
}

// Reads n blocks of n_bytes, a multiple of 64, in the order of their numbers; ask: each while the one before
// it is read. What the memory gives one thread of blocks that lie so.
uint64_t native_read_blocks(const uint64_t* p, const int32_t* numbers, int64_t n, int64_t n_bytes,
                            int32_t ask) {
  uint64_t seen[8] = {};
  for (int64_t i = 0; i < n; ++i) {
    const uint64_t* block = p + numbers[i] * (n_bytes / 8);
    const uint64_t* next = p + numbers[std::min(i + 1, n - 1)] * (n_bytes / 8);
    for (int64_t at = 0; at < n_bytes / 8; at += 8) {
      if (ask) simd::ask(next + at);
      for (int k = 0; k < 8; ++k) seen[k] ^= block[at + k];
    }
  }
  uint64_t all = 0;
  for (const uint64_t word : seen) all ^= word;
  return all;
}

// 16 independent chains of n fused multiply-adds of 16 lanes: what the processor computes at most.
float native_multiply(int64_t n) {
  constexpr int CHAINS = 16;
  simd::F chain[CHAINS];
  for (int i = 0; i < CHAINS; ++i) chain[i] = simd::set(float(i));
  const simd::F by = simd::set(0.5f);
  for (int64_t k = 0; k < n; ++k)
    for (int i = 0; i < CHAINS; ++i) chain[i] = simd::fma(chain[i], by, by);
  float all = 0;
  for (int i = 0; i < CHAINS; ++i) all += simd::sum(chain[i]);
  return all;
}

Pool* pool_new(int32_t n_threads) { return new (std::nothrow) Pool(n_threads); }
void pool_free(Pool* pool) { delete pool; }

// y [n, n_out] = x [n, n_in] @ w.T + bias (or null). pool: null for the calling thread alone.
void linear_group_run(const Weight* w, const float* x, int32_t n, const float* bias, float* y,
                      Pool* pool) {
  const int groups = linear_group::n_groups(*w);
  thread_local Buffer<int8_t> codes;
  thread_local Buffer<float> scale, totals;
  thread_local Buffer<int32_t> sums;
  const int64_t room = Rounded::room(n);
  const Rounded r{codes.take(room * w->n_in), scale.take(room * groups), sums.take(room * groups),
                  totals.take(room * groups), Rounded::width_of(n)};
  for (int i = 0; i < n; ++i) linear_group::round_row(x + int64_t(i) * w->n_in, w->n_in, i, r);
  const int n_tiles = linear_group::n_tiles(*w);
  auto part = [&](int first, int last) {
    linear_group::run(*w, first, last, r, n, bias, Into::store, y, w->n_out);
  };
  if (pool) pool->run(n_tiles, piece_of(n_tiles), std::move(part));
  else part(0, n_tiles);
}

// The same for many weights of one shape, one after the other, as a step does without a call between.
void linear_group_run_all(const Weight* weights, int32_t n_weights, const float* x, int32_t n,
                          float* y, Pool* pool) {
  for (int i = 0; i < n_weights; ++i) linear_group_run(weights + i, x, n, nullptr, y, pool);
}

void rms_norm_run(const float* x, const float* weight, int32_t n, int32_t d, float eps, float* y) {
  for (int i = 0; i < n; ++i) rms_norm::row(x + int64_t(i) * d, weight, d, eps, y + int64_t(i) * d);
}
void rope_run(float* x, const float* turns, int32_t n, int32_t heads, int32_t d) {
  for (int i = 0; i < n; ++i)
    for (int h = 0; h < heads; ++h)
      rope::head(x + (int64_t(i) * heads + h) * d, turns + int64_t(i) * d, d);
}
void silu_mul_run(const float* x, int32_t n, int32_t f, float* y) {
  for (int i = 0; i < n; ++i)
    silu_mul::row(x + 2 * int64_t(i) * f, x + (2 * int64_t(i) + 1) * f, f, y + int64_t(i) * f);
}
void paged_attention_write(const paged_attention::Cache* cache, int32_t block, int32_t slot,
                           const float* keys, const float* values) {  // [kv_heads, d] each
  for (int h = 0; h < cache->kv_heads; ++h)
    write_position(*cache, block, slot, h, keys + h * cache->d, values + h * cache->d);
}
// The same keys and values to every slot of every block, so a benchmark's.
void paged_attention_write_all(const paged_attention::Cache* cache, const float* keys,
                               const float* values) {
  for (int block = 0; block < cache->n_blocks; ++block)
    for (int slot = 0; slot < cache->block_size; ++slot)
      paged_attention_write(cache, block, slot, keys, values);
}
// q and out [n, heads, d]: queries at the last n positions of n_seen. window: 0 for none.
void paged_attention_run(const paged_attention::Cache* cache, const int32_t* table, int32_t n_seen,
                         int32_t n, int32_t heads, const float* q, float scale, int32_t window,
                         float* out) {
  attend_row(*cache, table, n_seen, n, heads, q, scale, window, out, nullptr);
}

// One query of n requests, each over n_seen positions, one after the other as a step does it; tables
// [n, blocks of n_seen]. The same q [heads, d] for all of them, so a benchmark's.
void paged_attention_run_all(const paged_attention::Cache* cache, const int32_t* tables, int32_t n,
                             int32_t n_seen, int32_t heads, const float* q, float scale,
                             float* out) {
  const int blocks = (n_seen + cache->block_size - 1) / cache->block_size;
  paged_attention::Place place{tables, 0, 0};
  if (n > 0) ask_begin(*cache, place, cache->kv_heads);
  for (int i = 0; i < n; ++i) {
    place.table = tables + int64_t(i + 1) * blocks;
    attend_row(*cache, tables + int64_t(i) * blocks, n_seen, 1, heads, q, scale, 0, out,
               i + 1 < n ? &place : nullptr);
  }
}

Decoder* decoder_new(const Model* model, int32_t n_threads) {
  return new (std::nothrow) Decoder(*model, n_threads);
}
void decoder_free(Decoder* decoder) { delete decoder; }

// 0; 1 when memory ran out (nothing of the step may be trusted then); 2 for an id that is no token.
int32_t decoder_run(Decoder* decoder, const Step* step) {
  for (int i = 0; i < step->n_tokens; ++i)
    if (step->ids[i] < 0 || step->ids[i] >= decoder->model.embed.vocab) return 2;
  try {
    decoder->run(*step);
    return 0;
  } catch (const std::bad_alloc&) {
    return 1;
  }
}

}  // extern "C"
