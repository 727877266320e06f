// The engine's own threads: a parallel loop that never waits on a barrier made for other machines.
// Each thread has a share of the loop, from one end to the other, so that it reads weights in a straight
// stream, and then helps with what others have left. Workers spin for a moment after each loop, then
// sleep on a futex; the caller works too, and waits only for pieces that somebody has begun.
#pragma once
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <type_traits>
#include <vector>
#include <immintrin.h>

class Pool {
 public:
  explicit Pool(int n_threads) : shares_(n_threads < 1 ? 1 : n_threads) {
    for (int i = 1; i < n_threads; ++i) workers_.emplace_back([this, i] { work(i); });
  }

  ~Pool() {
    stop_.store(true);
    epoch_.fetch_add(1);
    wake();
    for (auto& worker : workers_) worker.join();
  }

  bool alone() const { return workers_.empty(); }

  // Calls f(first, last) on pieces of [0, n) until all are done.
  template <class Body>
  void run(int n, int piece, Body&& f) {
    if (workers_.empty() || n <= piece) {
      if (n > 0) f(0, n);
      return;
    }
    body_ = &f;
    call_ = [](void* body, int first, int last) {
      (*static_cast<std::remove_reference_t<Body>*>(body))(first, last);
    };
    piece_.store(piece, std::memory_order_relaxed);
    done_.store(0, std::memory_order_relaxed);
    const int threads = static_cast<int>(shares_.size());
    for (int i = 0; i < threads; ++i) {
      const int first = static_cast<int>(int64_t(n) * i / threads);
      const int last = static_cast<int>(int64_t(n) * (i + 1) / threads);
      shares_[i].left.store(range(first, last), std::memory_order_release);
    }
    epoch_.fetch_add(1);
    if (asleep_.load() > 0) wake();
    const int others = n - take(0);
    while (done_.load(std::memory_order_acquire) != others) _mm_pause();
  }

 private:
  static constexpr int SPINS = 1500;  // about 40 microseconds

  struct alignas(64) Share {
    std::atomic<uint64_t> left{0};  // [first, last), 32 bits each
  };

  static uint64_t range(int first, int last) {
    return static_cast<uint64_t>(last) << 32 | static_cast<uint32_t>(first);
  }

  // Works until nothing is left; how much it was. A piece that was taken keeps the caller in `run`, so
  // what the loop does is read after that, and a worker that comes late touches nothing.
  int take(int thread) {
    int total = 0;
    const int piece = piece_.load(std::memory_order_relaxed);
    const int threads = static_cast<int>(shares_.size());
    for (int i = 0; i < threads; ++i) {
      auto& left = shares_[(thread + i) % threads].left;
      for (uint64_t was = left.load(std::memory_order_acquire);;) {
        const int first = static_cast<int>(was), end = static_cast<int>(was >> 32);
        if (first >= end) break;
        const int last = std::min(first + piece, end);
        if (!left.compare_exchange_weak(was, range(last, end), std::memory_order_acq_rel)) continue;
        call_(body_, first, last);
        total += last - first;
        was = left.load(std::memory_order_acquire);
      }
    }
    return total;
  }

  void work(int thread) {
    uint32_t seen = 0;
    for (;;) {
      int spins = 0;
      while (epoch_.load(std::memory_order_acquire) == seen) {
        if (++spins < SPINS) {
          _mm_pause();
          continue;
        }
        asleep_.fetch_add(1);
        syscall(SYS_futex, &epoch_, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
        asleep_.fetch_sub(1);
        spins = 0;
      }
      seen = epoch_.load(std::memory_order_acquire);
      if (stop_.load()) return;
      const int mine = take(thread);
      if (mine > 0) done_.fetch_add(mine, std::memory_order_release);
    }
  }

  void wake() {
    syscall(SYS_futex, &epoch_, FUTEX_WAKE_PRIVATE, 1 << 20, nullptr, nullptr, 0);
  }

  std::vector<Share> shares_;
  std::vector<std::thread> workers_;
  alignas(64) std::atomic<uint32_t> epoch_{0};
  alignas(64) std::atomic<int> done_{0};
  std::atomic<int> asleep_{0}, piece_{1};
  std::atomic<bool> stop_{false};
  void* body_ = nullptr;
  void (*call_)(void*, int, int) = nullptr;
};
