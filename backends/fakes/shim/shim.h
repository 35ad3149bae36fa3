#pragma once
// Runs kernels on one thread of the CPU: a fibre for each thread of a block that waits, blocks one after another.
//
// Found as errors: a barrier that not all threads of a block reach, or not at the same line; a wave's operation that not all
// its lanes reach, or not at the same line; writes past the end of shared memory; a stack that is too deep.
// Made likely to be found: a missing barrier, since a seed shuffles blocks, waves and lanes at each step; reads of what
// nobody wrote, since shared memory begins as NaN.
// Not modelled: the order in which other blocks and other devices see writes, time, registers, banks, caches.
// This is no device: a pass is no claim about one.

#include <stddef.h>
#include <stdint.h>

#include <utility>

namespace shim {

struct Index {
    unsigned x, y, z;
};

/// What the running thread knows of itself.
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
/// An array in the running block's shared memory: the same for each key.
void* shared(const void* key, size_t len, size_t align);
void pause();
uint64_t nanoseconds();

/// A kernel of a unit.
struct Kernel {
    const char* unit;
    const char* name;
    /// For each parameter: p a pointer, u an unsigned, f a float.
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

/// Puts a kernel on the list of all.
struct Export {
    Kernel kernel;
    template <class... A>
    Export(const char* unit, const char* name, void (*function)(A...))
        : kernel{unit, name, Signature<A...>::kinds, Signature<A...>::run, reinterpret_cast<void (*)()>(function), nullptr} {
        add(&kernel);
    }
    static void add(Kernel* kernel);
};

/// The kernel, or null.
const Kernel* find(const char* unit, const char* name);
/// All kernels, a list.
const Kernel* kernels();

struct Launch {
    Index grid, block;
    /// Bytes of dynamic shared memory.
    size_t shared;
    /// 32 or 64.
    unsigned wave;
    /// 0: everything in order.
    uint64_t seed;
    /// Bytes that a block may have in all.
    size_t most_shared = 48 * 1024;
    /// Whether matrix units multiply wrongly.
    bool wrong_matrix = false;
};

/// Why a launch failed.
enum class Fault { None, Geometry, Kernel, Address };

struct Outcome {
    Fault fault;
    /// Valid until the thread's next launch.
    const char* text;
};

/// Runs a kernel to its end. `params` are pointers to the values, as drivers take them.
Outcome launch(const Kernel& kernel, const Launch& launch, void** params);

} // namespace shim
