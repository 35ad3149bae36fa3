// The scheduler under dialect.h. It decides which lane runs next, and where lanes wait.

#include "shim.h"

#include "fibre.h"

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(at, len) ((void)(at), (void)(len))
#define ASAN_UNPOISON_MEMORY_REGION(at, len) ((void)(at), (void)(len))
#endif

namespace shim {

__thread View* view = nullptr;

namespace {

constexpr unsigned MAX_THREADS = 1024, MAX_WAVES = 32, MAX_LANES = 64, MAX_ARRAYS = 16;
/// Bytes for a block's shared memory: the largest default of any device.
constexpr size_t MAX_SHARED = 64 * 1024;
/// Guard bytes after each array in shared memory.
constexpr size_t GUARD = 64;
/// NaN as a float and as two f16 values, far out of range as an integer.
constexpr uint32_t POISON = 0xffe1ffe1;

enum State : uint8_t { Fresh, Ready, InWave, AtBarrier, Returned };

struct Wave {
    unsigned first, n_ready, n_live, n_waiting;
    int line;
    /// Lane `((turn * step + add) % wave) ^ flip` runs at position `turn` of the order.
    unsigned step, add, flip, turn;
    /// Two sets of exchanged values, because a lane may be one operation ahead.
    unsigned set;
    uint32_t values[2][MAX_LANES];
    /// Operands of matrix instructions: per 32 lanes, 16 rows and 8 columns of 32 bytes.
    alignas(32) int8_t lines[2][MAX_LANES / 32][24][32];
    /// Operands of matrix instructions: per 32 lanes, 16 rows and 8 columns of 8 floats.
    alignas(32) float floats[2][MAX_LANES / 32][24][8];
};

struct Array {
    const void* key;
    unsigned char* at;
    size_t len;
};

struct Block : View {
    const Kernel* kernel;
    void** params;
    Wave waves[MAX_WAVES];
    State states[MAX_THREADS];
    Fibre* fibres[MAX_THREADS];
    unsigned n_threads, n_waves, current;
    unsigned n_returned, n_at_barrier;
    int barrier_line;
    uint64_t seed, random;
    unsigned n_spins;

    Fibre main;
    Fibre* running;
    Fibre* free;
    Fibre pool[MAX_THREADS];
    char* stacks;

    Array arrays[MAX_ARRAYS];
    unsigned n_arrays;
    size_t used, dynamic_len, max_shared;
    bool wrong_matrix, wrong_lanes;
    alignas(64) unsigned char memory[MAX_SHARED + (MAX_ARRAYS + 2) * (GUARD + 64)];

    Fault fault;
    char text[512];
    sigjmp_buf on_fault;

    Block* next_idle;

    Block();
    void reset_fibres();
    unsigned draw(unsigned below);
    bool run();
    void start();
    void new_order(Wave& wave);
    int pick();
    int next();
    void set_fault(const char* format, va_list args);
    [[noreturn]] void stop(const char* format, ...) __attribute__((format(printf, 2, 3)));
    [[noreturn]] void stuck();
    void resume(unsigned to);
    void yield();
    void wait_for_wave(int line);
    void check_memory();
    void report(const char* format, ...) __attribute__((format(printf, 2, 3)));
    [[noreturn]] static void run_lanes();
};

/// The block, with its fibres, that a thread owns. When the thread ends, another thread may reuse
/// the block.
struct OwnedBlock {
    Block* block = nullptr;
    ~OwnedBlock();
    void take();
};
pthread_mutex_t idle_mutex = PTHREAD_MUTEX_INITIALIZER;
Block* idle = nullptr;
thread_local OwnedBlock own;

OwnedBlock::~OwnedBlock() {
    view = nullptr;
    if (block == nullptr) return;
    pthread_mutex_lock(&idle_mutex);
    block->next_idle = idle;
    idle = block;
    pthread_mutex_unlock(&idle_mutex);
}

void OwnedBlock::take() {
    pthread_mutex_lock(&idle_mutex);
    block = idle;
    if (block != nullptr) idle = block->next_idle;
    pthread_mutex_unlock(&idle_mutex);
    if (block == nullptr) block = new Block;
    block->reset_fibres();
    view = block;
}

Block& running_block() { return *static_cast<Block*>(view); }

Block::Block() {
    const size_t len = Fibre::SIZE * MAX_THREADS;
    void* at = mmap(nullptr, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) abort();
    stacks = static_cast<char*>(at);
    for (unsigned i = 0; i < MAX_THREADS; i++) pool[i].stack = stacks + i * Fibre::SIZE;
    n_threads = 0;
    kernel = nullptr;
}

void Block::reset_fibres() {
    free = nullptr;
    for (unsigned i = MAX_THREADS; i-- > 0;) {
        pool[i].stopped = nullptr;
        pool[i].next_free = free;
        free = &pool[i];
    }
}

/// A pseudo-random number below `below`; 0 in sequential order.
unsigned Block::draw(unsigned below) {
    if (seed == 0) return 0;
    random ^= random << 13;
    random ^= random >> 7;
    random ^= random << 17;
    return unsigned((random >> 32) * below >> 32);
}

void Block::new_order(Wave& w) {
    w.turn = 0;
    w.step = draw(wave / 2) * 2 + 1;
    w.add = draw(wave);
    w.flip = draw(wave);
}

/// Picks a wave that can run. If there is none, releases the threads at the barrier. Negative once
/// all threads have returned.
int Block::pick() {
    for (;;) {
        const unsigned first = draw(n_waves);
        for (unsigned i = 0; i < n_waves; i++) {
            const unsigned w = first + i < n_waves ? first + i : first + i - n_waves;
            if (waves[w].n_ready > 0) {
                current = w;
                new_order(waves[w]);
                return 0;
            }
        }
        if (n_returned == n_threads) return -1;
        if (n_at_barrier != n_threads) stuck();
        for (unsigned t = 0; t < n_threads; t++) {
            if (states[t] == AtBarrier) {
                states[t] = Ready;
                waves[t / wave].n_ready++;
            }
        }
        n_at_barrier = 0;
    }
}

/// The next lane to run; negative once all lanes have returned.
int Block::next() {
    for (;;) {
        Wave& w = waves[current];
        while (w.turn < wave) {
            const unsigned at = w.first + (((w.turn++ * w.step + w.add) & (wave - 1)) ^ w.flip);
            if (states[at] <= Ready) return int(at);
        }
        if (w.n_waiting == wave) {
            memset(states + w.first, Ready, wave);
            w.n_ready = wave;
            w.n_waiting = 0;
            w.set ^= 1;
            // Continues with this wave in one of 8 cases; otherwise any wave may run next.
            if (draw(8) == 0) {
                new_order(w);
                continue;
            }
        }
        if (pick() < 0) return -1;
    }
}

void Block::set_fault(const char* format, va_list args) {
    const int n = snprintf(text, sizeof text, "%s of unit %s, block (%u, %u, %u): ", kernel->name, kernel->unit, block.x, block.y,
                           block.z);
    vsnprintf(text + n, sizeof text - size_t(n), format, args);
    fault = Fault::Kernel;
}

/// Ends the launch with a fault. Called on the stack of a lane.
void Block::stop(const char* format, ...) {
    va_list args;
    va_start(args, format);
    set_fault(format, args);
    va_end(args);
    switch_fibre(*running, main);
    __builtin_unreachable();
}

void Block::stuck() {
    unsigned n_waiting = 0;
    int line = 0;
    for (unsigned w = 0; w < n_waves; w++) {
        if (waves[w].n_waiting > 0) line = waves[w].line;
        n_waiting += waves[w].n_waiting;
    }
    stop("divergence: of %u threads %u wait at a barrier (line %d), %u at a wave's operation (line %d), %u have returned",
         n_threads, n_at_barrier, barrier_line, n_waiting, line, n_returned);
}

void Block::resume(unsigned to) {
    Fibre* from = running;
    thread = to;
    if (states[to] == Fresh) {
        running = free;
        free = free->next_free;
        if (running->stopped == nullptr) running->begin(run_lanes);
    } else {
        running = fibres[to];
    }
    switch_fibre(*from, *running);
}

void Block::yield() {
    const unsigned self = thread;
    const int to = next();
    // `next` cannot be negative, because this lane has not returned.
    if (unsigned(to) != self) resume(unsigned(to));
}

/// The loop of a fibre: runs lanes one after the other. A lane that waits keeps the fibre's stack.
void Block::run_lanes() {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
    Block& b = running_block();
    for (;;) {
        const unsigned self = b.thread;
        b.states[self] = Ready;
        b.fibres[self] = b.running;
        b.kernel->run(b.kernel->function, b.params);
        b.states[self] = Returned;
        b.n_returned++;
        Wave& w = b.waves[self / b.wave];
        w.n_ready--;
        w.n_live--;
        if (b.running->overflowed()) b.stop("a stack overflowed");
        const int to = b.next();
        if (to >= 0 && b.states[to] == Fresh) {
            b.thread = unsigned(to);
            continue;
        }
        b.running->next_free = b.free;
        b.free = b.running;
        if (to >= 0) {
            b.resume(unsigned(to));
        } else {
            switch_fibre(*b.running, b.main);
        }
    }
}

void fill(unsigned char* at, size_t len) {
    for (size_t i = 0; i < len; i += 4) memcpy(at + i, &POISON, len - i < 4 ? len - i : 4);
}

[[maybe_unused]] bool is_filled(const unsigned char* at, size_t len) {
    unsigned char clean[GUARD];
    fill(clean, len);
    return memcmp(at, clean, len) == 0;
}

void Block::start() {
    memset(states, Fresh, n_threads);
    n_returned = n_at_barrier = n_arrays = n_spins = 0;
    barrier_line = 0;
    for (unsigned i = 0; i < n_waves; i++) {
        Wave& w = waves[i];
        w.first = i * wave;
        w.n_ready = w.n_live = wave;
        w.n_waiting = w.set = 0;
        w.line = 0;
    }
    ASAN_POISON_MEMORY_REGION(memory, sizeof memory);
    dynamic = memory;
    ASAN_UNPOISON_MEMORY_REGION(memory, dynamic_len);
    fill(memory, dynamic_len);
    used = (dynamic_len + 15) / 16 * 16 + GUARD;
#if !defined(__SANITIZE_ADDRESS__)
    fill(memory + dynamic_len, used - dynamic_len);
#endif
}

[[maybe_unused]] void Block::report(const char* format, ...) {
    va_list args;
    va_start(args, format);
    set_fault(format, args);
    va_end(args);
}

/// Checks the guard bytes after each shared array; called when a block has ended.
void Block::check_memory() {
#if !defined(__SANITIZE_ADDRESS__)
    if (!is_filled(memory + dynamic_len, GUARD)) report("a write past the end of dynamic shared memory");
    for (unsigned i = 0; i < n_arrays; i++) {
        const Array& a = arrays[i];
        if (!is_filled(a.at + a.len, GUARD)) report("a write past the end of a shared array of %zu bytes", a.len);
    }
#endif
}

/// Runs a block; false if it failed.
bool Block::run() {
    start();
    if (pick() < 0) return true;
    const int first = next();
    running = &main;
    resume(unsigned(first));
    if (fault == Fault::None) check_memory();
    return fault == Fault::None;
}

void Block::wait_for_wave(int line) {
    Wave& w = waves[thread / wave];
    if (w.n_live != wave) stop("line %d needs all lanes of the wave, but %u have returned", line, wave - w.n_live);
    if (w.n_waiting > 0 && w.line != line) stop("divergence: lanes of a wave are at lines %d and %d", w.line, line);
    w.line = line;
    w.n_waiting++;
    w.n_ready--;
    states[thread] = InWave;
    yield();
}

struct sigaction before;

/// Ends a kernel that accesses unmapped memory, as a device does.
[[maybe_unused]] void on_signal(int signal, siginfo_t* info, void* context) {
    View* v = view;
    if (v != nullptr && static_cast<Block*>(v)->kernel != nullptr) {
        Block& b = *static_cast<Block*>(v);
        b.fault = Fault::Address;
        snprintf(b.text, sizeof b.text, "%s of unit %s, block (%u, %u, %u), thread %u: an illegal address, %p", b.kernel->name,
                 b.kernel->unit, b.block.x, b.block.y, b.block.z, b.thread, info->si_addr);
        siglongjmp(b.on_fault, 1);
    }
    if (before.sa_flags & SA_SIGINFO) {
        before.sa_sigaction(signal, info, context);
    } else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
        before.sa_handler(signal);
    } else {
        // The signal is raised again and now ends the process.
        sigaction(signal, &before, nullptr);
    }
}

void catch_faults() {
#if !defined(__SANITIZE_ADDRESS__)
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, [] {
        struct sigaction ours = {};
        ours.sa_sigaction = on_signal;
        ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
        sigaction(SIGSEGV, &ours, &before);
    });
    // The handler needs a separate stack: the faulting stack may be too small for it.
    stack_t had = {};
    if (sigaltstack(nullptr, &had) == 0 && (had.ss_flags & SS_DISABLE)) {
        static thread_local struct Handler {
            char* stack = nullptr;
            ~Handler() {
                stack_t none = {};
                none.ss_flags = SS_DISABLE;
                sigaltstack(&none, nullptr);
                delete[] stack;
            }
        } handler;
        const size_t len = 64 * 1024;
        if (handler.stack == nullptr) handler.stack = new char[len];
        stack_t stack = {};
        stack.ss_sp = handler.stack;
        stack.ss_size = len;
        sigaltstack(&stack, nullptr);
    }
#endif
}

Kernel* all = nullptr;

uint64_t greatest_common_divisor(uint64_t step, uint64_t n) {
    while (n > 0) {
        const uint64_t rest = step % n;
        step = n;
        n = rest;
    }
    return step;
}

} // namespace

void Export::add(Kernel* kernel) {
    kernel->next = all;
    all = kernel;
}

const Kernel* kernels() { return all; }

const Kernel* find(const char* unit, const char* name) {
    for (const Kernel* k = all; k != nullptr; k = k->next) {
        if (strcmp(k->unit, unit) == 0 && strcmp(k->name, name) == 0) return k;
    }
    return nullptr;
}

void barrier(int line) {
    Block& b = running_block();
    if (b.n_at_barrier > 0 && b.barrier_line != line) {
        b.stop("divergence: threads wait at barriers of lines %d and %d", b.barrier_line, line);
    }
    b.barrier_line = line;
    b.n_at_barrier++;
    b.waves[b.thread / b.wave].n_ready--;
    b.states[b.thread] = AtBarrier;
    b.yield();
}

uint32_t exchange(uint32_t v, unsigned from, int line) {
    Block& b = running_block();
    Wave& w = b.waves[b.thread / b.wave];
    uint32_t* values = w.values[w.set];
    values[b.thread & (b.wave - 1)] = v;
    b.wait_for_wave(line);
    // A wrong lane answers.
    return values[b.wrong_lanes ? from ^ 1 : from];
}

uint64_t ballot(bool p, int line) {
    Block& b = running_block();
    Wave& w = b.waves[b.thread / b.wave];
    uint32_t* values = w.values[w.set];
    values[b.thread & (b.wave - 1)] = p;
    b.wait_for_wave(line);
    uint64_t bits = 0;
    for (unsigned i = 0; i < b.wave; i++) bits |= uint64_t(values[i]) << i;
    return bits;
}

/// A matrix product of bytes, with the element layout that kernels-cuda/dialect.h documents.
__attribute__((optimize("O3"))) void mma_s8(int d[4], const unsigned a[4], const unsigned b[2], int line) {
    Block& bl = running_block();
    Wave& w = bl.waves[bl.thread / bl.wave];
    const unsigned lane = bl.thread & (bl.wave - 1), g = lane % 32 / 4, t = lane % 4;
    int8_t(*lines)[32] = w.lines[w.set][lane / 32];
    for (unsigned half = 0; half < 2; half++) {
        for (unsigned upper = 0; upper < 2; upper++) memcpy(&lines[g + 8 * upper][4 * t + 16 * half], &a[2 * half + upper], 4);
        memcpy(&lines[16 + g][4 * t + 16 * half], &b[half], 4);
    }
    bl.wait_for_wave(line);
    for (unsigned i = 0; i < 4; i++) {
        const int8_t *row = lines[g + i / 2 * 8], *column = lines[16 + 2 * t + i % 2];
        int sum = 0;
        for (unsigned k = 0; k < 32; k++) sum += row[k] * column[k];
        d[i] = int(unsigned(d[i]) + unsigned(sum) + bl.wrong_matrix);
    }
}

/// A matrix product of floats that uses only the upper 10 mantissa bits.
__attribute__((optimize("O3"))) void mma_tf32(float d[4], const unsigned a[4], const unsigned b[2], int line) {
    Block& bl = running_block();
    Wave& w = bl.waves[bl.thread / bl.wave];
    const unsigned lane = bl.thread & (bl.wave - 1), g = lane % 32 / 4, t = lane % 4;
    float(*lines)[8] = w.floats[w.set][lane / 32];
    const auto put = [](float& to, unsigned word) {
        word &= 0xffffe000u;
        memcpy(&to, &word, 4);
    };
    for (unsigned half = 0; half < 2; half++) {
        for (unsigned upper = 0; upper < 2; upper++) put(lines[g + 8 * upper][t + 4 * half], a[2 * half + upper]);
        put(lines[16 + g][t + 4 * half], b[half]);
    }
    bl.wait_for_wave(line);
    for (unsigned i = 0; i < 4; i++) {
        const float *row = lines[g + i / 2 * 8], *column = lines[16 + 2 * t + i % 2];
        float sum = 0;
        for (unsigned k = 0; k < 8; k++) sum += row[k] * column[k];
        d[i] += bl.wrong_matrix ? 1.001f * sum : sum;
    }
}

void* shared(const void* key, size_t len, size_t align) {
    Block& b = running_block();
    for (unsigned i = 0; i < b.n_arrays; i++) {
        if (b.arrays[i].key == key) return b.arrays[i].at;
    }
    if (b.n_arrays == MAX_ARRAYS) b.stop("more than %u shared arrays", MAX_ARRAYS);
    const size_t at = (b.used + align - 1) / align * align;
    size_t total = b.dynamic_len + len;
    for (unsigned i = 0; i < b.n_arrays; i++) total += b.arrays[i].len;
    if (total > b.max_shared) b.stop("%zu bytes of shared memory needed, at most %zu available", total, b.max_shared);
    b.arrays[b.n_arrays++] = {key, b.memory + at, len};
    b.used = at + len + GUARD;
    ASAN_UNPOISON_MEMORY_REGION(b.memory + at, len);
#if defined(__SANITIZE_ADDRESS__)
    fill(b.memory + at, len);
#else
    fill(b.memory + at, len + GUARD);
#endif
    return b.memory + at;
}

void pause() {
    Block& b = running_block();
    if (++b.n_spins % 64 == 0) sched_yield();
    b.yield();
}

uint64_t nanoseconds() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return uint64_t(now.tv_sec) * 1000000000u + uint64_t(now.tv_nsec);
}

Outcome launch(const Kernel& kernel, const Launch& l, void** params) {
    if (own.block == nullptr) own.take();
    Block& b = *own.block;
    const bool block_fits = l.block.x > 0 && l.block.x <= MAX_THREADS && l.block.x % 64 == 0 && l.block.y == 1 && l.block.z == 1;
    if (!block_fits || l.grid.x == 0 || l.grid.y == 0 || l.grid.z == 0 || (l.wave != 32 && l.wave != 64) ||
        l.max_shared > MAX_SHARED || l.shared > l.max_shared) {
        snprintf(b.text, sizeof b.text, "%s of unit %s: invalid launch of (%u, %u, %u) blocks of (%u, %u, %u) threads, %zu bytes",
                 kernel.name, kernel.unit, l.grid.x, l.grid.y, l.grid.z, l.block.x, l.block.y, l.block.z, l.shared);
        return {Fault::Geometry, b.text};
    }
    catch_faults();
    b.params = params;
    b.size = l.block;
    b.grid = l.grid;
    b.wave = l.wave;
    b.n_threads = l.block.x;
    b.n_waves = l.block.x / l.wave;
    b.dynamic_len = l.shared;
    b.max_shared = l.max_shared;
    b.wrong_matrix = l.wrong_matrix;
    b.wrong_lanes = l.wrong_lanes;
    b.seed = l.seed;
    b.random = l.seed * 0x9e3779b97f4a7c15u | 1;
    b.fault = Fault::None;
    const uint64_t n_blocks = uint64_t(l.grid.x) * l.grid.y * l.grid.z;
    uint64_t step = 1, at = 0;
    if (l.seed != 0) {
        step = b.draw(unsigned(n_blocks > 0xffffffffu ? 0xffffffffu : n_blocks)) | 1;
        while (greatest_common_divisor(step, n_blocks) != 1) step += 2;
        at = b.draw(0xffffffffu) % n_blocks;
    }
    bool fine = true;
    b.kernel = &kernel;
    if (sigsetjmp(b.on_fault, 1) == 0) {
        for (uint64_t i = 0; fine && i < n_blocks; i++) {
            b.block = {unsigned(at % l.grid.x), unsigned(at / l.grid.x % l.grid.y), unsigned(at / l.grid.x / l.grid.y)};
            fine = b.run();
            at = (at + step) % n_blocks;
        }
    } else {
        fine = false;
    }
    b.kernel = nullptr;
    if (!fine) {
        // The fault interrupted functions that still have frames on the fibres' stacks.
        b.reset_fibres();
        return {b.fault, b.text};
    }
    return {Fault::None, ""};
}

} // namespace shim
