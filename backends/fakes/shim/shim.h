#pragma once
// Runs kernels on one CPU thread. Each waiting thread of a block has a fibre; blocks run one after
// another.
//
// The shim detects:
// - a barrier that not all threads of a block reach, or that they reach at different lines;
// - a wave operation that not all of its lanes reach, or that they reach at different lines;
// - writes past the end of shared memory;
// - a stack overflow.
// It makes these errors likely to show:
// - a missing barrier, because a seed shuffles blocks, waves and lanes at each step;
// - reads of unwritten memory, because shared memory is initialised with NaN.
// It does not model the order in which other blocks and other devices see writes, time, registers,
// banks or caches. A passing test proves nothing about a real device.

#include <stddef.h>
#include <stdint.h>

#include <utility>

namespace shim {

struct Index {
    unsigned x, y, z;
};

/// Indices of the running thread, sizes, and the dynamic shared memory of its block.
struct View {
    Index block, size, grid;
    unsigned wave, thread;
    unsigned char* dynamic;
};
extern __thread View* view __attribute__((tls_model("initial-exec")));

void barrier(int line);
uint32_t exchange(uint32_t v, unsigned from, int line);
uint64_t ballot(bool p, int line);
void mma_s8(int d[4], const unsigned a[4], const unsigned b[2], int line);
void mma_tf32(float d[4], const unsigned a[4], const unsigned b[2], int line);
/// An array in the running block's shared memory. Calls with the same key give the same array.
void* shared(const void* key, size_t len, size_t align);
void pause();
uint64_t nanoseconds();

struct Kernel {
    const char* unit;
    const char* name;
    /// Type of each parameter: p a pointer, u an unsigned, f a float.
    const char* kinds;
    void (*run)(void (*function)(), void** params);
    void (*function)();
    const Kernel* next;
};

inline size_t size_of(char kind) { return kind == 'p' ? 8 : 4; }

template <class T> struct Kind;
template <class T> struct Kind<T*> { static constexpr char kind = 'p'; };
template <> struct Kind<unsigned> { static constexpr char kind = 'u'; };
template <> struct Kind<float> { static constexpr char kind = 'f'; };

template <class... A> struct Signature {
    static constexpr char kinds[] = {Kind<A>::kind..., 0};
    static void run(void (*function)(), void** params) {
        call(reinterpret_cast<void (*)(A...)>(function), params, std::index_sequence_for<A...>{});
    }
    template <size_t... I> static void call(void (*function)(A...), void** params, std::index_sequence<I...>) {
        function(*static_cast<A*>(params[I])...);
    }
};

/// Adds a kernel to the list of all kernels.
struct Export {
    Kernel kernel;
    template <class... A>
    Export(const char* unit, const char* name, void (*function)(A...))
        : kernel{unit, name, Signature<A...>::kinds, Signature<A...>::run, reinterpret_cast<void (*)()>(function), nullptr} {
        add(&kernel);
    }
    static void add(Kernel* kernel);
};

/// The kernel of this unit and name, or null.
const Kernel* find(const char* unit, const char* name);
const Kernel* kernels();

struct Launch {
    Index grid, block;
    /// Bytes of dynamic shared memory.
    size_t shared;
    /// Lanes per wave: 32 or 64.
    unsigned wave;
    /// Seed of the order of blocks, waves and lanes; 0 for sequential order.
    uint64_t seed;
    /// Shared memory available to a block, in bytes.
    size_t max_shared = 48 * 1024;
    /// Whether matrix instructions give wrong results.
    bool wrong_matrix = false;
    /// Whether exchanges between lanes give the value of a wrong lane.
    bool wrong_lanes = false;
};

/// Why a launch failed.
enum class Fault { None, Geometry, Kernel, Address };

struct Outcome {
    Fault fault;
    /// Valid until the thread's next launch.
    const char* text;
};

/// Runs a kernel to its end. `params` are pointers to the values, as for the drivers.
Outcome launch(const Kernel& kernel, const Launch& launch, void** params);

} // namespace shim
