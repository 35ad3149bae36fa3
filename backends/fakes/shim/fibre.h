#pragma once
// Fibres: several stacks, between which one thread switches.

#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

/// Saves the current stack pointer to `from` and continues at stack pointer `to`.
extern "C" void shim_switch(void** from, void* to);

#if defined(__x86_64__)
asm(R"(
    .text
    .globl shim_switch
    .hidden shim_switch
    .type shim_switch, @function
shim_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size shim_switch, . - shim_switch
)");
#elif defined(__aarch64__)
asm(R"(
    .text
    .globl shim_switch
    .hidden shim_switch
    .type shim_switch, %function
shim_switch:
    sub sp, sp, #160
    stp x19, x20, [sp, #0]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x19, x20, [sp, #0]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
    .size shim_switch, . - shim_switch
)");
#else
#error "the shim switches stacks on x86-64 and aarch64 only"
#endif

namespace shim {

struct Fibre {
    /// Not a power of two, because stacks with the same alignment would compete for the same cache
    /// sets.
    static constexpr size_t SIZE = 64 * 1024 + 832;
    static constexpr uint64_t CANARY = 0x7368696d20656e64;

    /// Stack pointer of a fibre that is not running.
    void* stopped = nullptr;
    char* stack = nullptr;
    size_t size = SIZE;
    Fibre* next_free = nullptr;

    /// Prepares the fibre to start with `entry`, which never returns.
    void begin(void (*entry)()) {
        *reinterpret_cast<uint64_t*>(stack) = CANARY;
        const uintptr_t top = (reinterpret_cast<uintptr_t>(stack) + size) & ~uintptr_t(15);
#if defined(__x86_64__)
        // The stack holds six registers, the return address, and a return address for `entry`.
        void** at = reinterpret_cast<void**>(top) - 8;
        for (int i = 0; i < 8; i++) at[i] = nullptr;
        at[6] = reinterpret_cast<void*>(entry);
#else
        void** at = reinterpret_cast<void**>(top) - 20;
        for (int i = 0; i < 20; i++) at[i] = nullptr;
        at[11] = reinterpret_cast<void*>(entry);
#endif
        stopped = at;
    }
    bool overflowed() const { return *reinterpret_cast<const uint64_t*>(stack) != CANARY; }
};

inline void switch_fibre(Fibre& from, Fibre& to) {
#if defined(__SANITIZE_ADDRESS__)
    void* fake = nullptr;
    __sanitizer_start_switch_fiber(&fake, to.stack, to.size);
    shim_switch(&from.stopped, to.stopped);
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#else
    shim_switch(&from.stopped, to.stopped);
#endif
}

} // namespace shim
