// The engine's own threads: a parallel loop that never waits on a barrier made for other machines.
// Workers spin for a moment after each loop, then sleep on a futex; the caller works too.
#pragma once
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <atomic>
#include <thread>
#include <vector>
#include <immintrin.h>

class Pool {
 public:
  explicit Pool(int n_threads) {
    for (int i = 1; i < n_threads; ++i) workers_.emplace_back([this] { work(); });
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
    auto call = [](void* body, int first, int last) { (*static_cast<Body*>(body))(first, last); };
    body_ = &f;
    call_ = call;
    n_ = n;
    piece_ = piece;
    next_.store(0, std::memory_order_relaxed);
    busy_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
    epoch_.fetch_add(1);  // publishes the above
    if (asleep_.load() > 0) wake();
    take();
    // A worker that never got the core still has to say so: it must not read the next loop's body.
    while (busy_.load(std::memory_order_acquire) > 0) _mm_pause();
  }

 private:
  static constexpr int SPINS = 1500;  // about 40 microseconds

  void take() {
    for (;;) {
      const int first = next_.fetch_add(piece_, std::memory_order_relaxed);
      if (first >= n_) return;
      const int last = first + piece_;
      call_(body_, first, last < n_ ? last : n_);
    }
  }

  void work() {
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
      ++seen;
      if (stop_.load()) return;
      take();
      busy_.fetch_sub(1, std::memory_order_release);
    }
  }

  void wake() {
    syscall(SYS_futex, &epoch_, FUTEX_WAKE_PRIVATE, 1 << 20, nullptr, nullptr, 0);
  }

  std::vector<std::thread> workers_;
  std::atomic<uint32_t> epoch_{0};
  std::atomic<int> next_{0}, busy_{0}, asleep_{0};
  std::atomic<bool> stop_{false};
  void* body_ = nullptr;
  void (*call_)(void*, int, int) = nullptr;
  int n_ = 0, piece_ = 1;
};
