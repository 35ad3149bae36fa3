// Device memory and pinned memory. Both are host memory, with guard pages around each allocation.

#include "fake.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <deque>

namespace fake {

namespace {

/// Contents of unwritten memory: NaN as a float and as two f16 values, far out of range as an
/// integer.
constexpr uint32_t POISON = 0xffe1ffe1;
/// Bytes to poison at each end of allocations of at least twice this size, so that their other
/// pages stay unused.
constexpr size_t MAX_POISONED = size_t(16) << 20;
/// Number of freed address ranges that stay inaccessible, so that a use after free is detected.
constexpr size_t N_RESTING = 256;

struct Memory {
    std::mutex mutex;
    std::map<uintptr_t, Allocation> live;
    std::deque<std::pair<void*, size_t>> resting;
};
Memory& memory() {
    static Memory* memory = new Memory;
    return *memory;
}

size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

void poison(uintptr_t at, size_t len) {
    unsigned char* bytes = reinterpret_cast<unsigned char*>(at);
    for (size_t i = 0; i < len; i += 4) memcpy(bytes + i, &POISON, len - i < 4 ? len - i : 4);
}

bool is_poison(uintptr_t at, size_t len) {
    const unsigned char* bytes = reinterpret_cast<unsigned char*>(at);
    for (size_t i = 0; i < len; i++) {
        if (bytes[i] != reinterpret_cast<const unsigned char*>(&POISON)[i % 4]) return false;
    }
    return true;
}

} // namespace

int allocate(Device& device, Kind kind, size_t len, uintptr_t* at) {
    if (len == 0) return INVALID_VALUE;
    // As on devices, sizes are rounded up. A size that overflows counts as out of memory.
    if (len > SIZE_MAX / 2) return OUT_OF_MEMORY;
    size_t booked = 0;
    {
        std::lock_guard<std::mutex> lock(device.mutex);
        const size_t step = len < (size_t(1) << 20) ? 512 : size_t(device.settings.granule);
        if (kind == Kind::Device) booked = round_up(len, step);
        const uint64_t reported = device.settings.memory, hidden = device.settings.hidden;
        const uint64_t available = hidden < reported ? reported - hidden : 0;
        if (booked > available || device.used > available - booked) return OUT_OF_MEMORY;
        device.used += booked;
        if (device.used > device.most_used) device.most_used = device.used;
    }
    const size_t page = size_t(sysconf(_SC_PAGESIZE));
    const size_t inner = round_up(len, page), outer = inner + 2 * page;
    void* mapped = mmap(nullptr, outer, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    const bool fine = mapped != MAP_FAILED &&
                      mprotect(static_cast<char*>(mapped) + page, inner, PROT_READ | PROT_WRITE) == 0;
    if (!fine) {
        if (mapped != MAP_FAILED) munmap(mapped, outer);
        std::lock_guard<std::mutex> lock(device.mutex);
        device.used -= booked;
        return OUT_OF_MEMORY;
    }
    // Places the allocation at the end of its pages, so that a write past its end, rounded up to
    // 256 bytes, faults.
    const uintptr_t first = reinterpret_cast<uintptr_t>(mapped) + page;
    const uintptr_t start = first + inner - round_up(len, 256);
    poison(first, start - first);
    const size_t n_poisoned = len < 2 * MAX_POISONED ? len : MAX_POISONED;
    poison(start, n_poisoned);
    if (n_poisoned < len) poison(start + (len - MAX_POISONED) / 4 * 4, MAX_POISONED);
    poison(start + round_up(len, 4), round_up(len, 256) - round_up(len, 4));
    std::lock_guard<std::mutex> lock(memory().mutex);
    memory().live[start] = {start, len, booked, kind, &device, mapped, outer};
    *at = start;
    return SUCCESS;
}

int free_memory(Kind kind, uintptr_t at) {
    Allocation freed;
    {
        std::lock_guard<std::mutex> lock(memory().mutex);
        auto found = memory().live.find(at);
        if (found == memory().live.end() || found->second.kind != kind) return INVALID_VALUE;
        freed = found->second;
    }
    // Drivers wait for the device before they free memory.
    finish_all(*freed.device);
    const size_t page = size_t(sysconf(_SC_PAGESIZE));
    const uintptr_t first = reinterpret_cast<uintptr_t>(freed.mapped) + page;
    const uintptr_t end = freed.at + round_up(freed.len, 4);
    const bool intact = is_poison(first, freed.at - first) && is_poison(end, freed.at + round_up(freed.len, 256) - end);
    {
        std::lock_guard<std::mutex> lock(memory().mutex);
        memory().live.erase(at);
        mprotect(freed.mapped, freed.mapped_len, PROT_NONE);
        madvise(freed.mapped, freed.mapped_len, MADV_DONTNEED);
        memory().resting.emplace_back(freed.mapped, freed.mapped_len);
        if (memory().resting.size() > N_RESTING) {
            munmap(memory().resting.front().first, memory().resting.front().second);
            memory().resting.pop_front();
        }
    }
    if (freed.kind == Kind::Device) {
        std::lock_guard<std::mutex> lock(freed.device->mutex);
        freed.device->used -= freed.booked;
    }
    if (!intact) {
        freed.device->lose(ILLEGAL_ADDRESS, "a write outside of an allocation of " + std::to_string(freed.len) + " bytes");
        return ILLEGAL_ADDRESS;
    }
    return SUCCESS;
}

Allocation find_allocation(uintptr_t at) {
    std::lock_guard<std::mutex> lock(memory().mutex);
    auto after = memory().live.upper_bound(at);
    if (after == memory().live.begin()) return {};
    const Allocation& before = std::prev(after)->second;
    return at - before.at < before.len ? before : Allocation{};
}

std::vector<Range> live_ranges() {
    std::lock_guard<std::mutex> lock(memory().mutex);
    std::vector<Range> ranges;
    for (const auto& [at, allocation] : memory().live) ranges.push_back({at, allocation.len});
    return ranges;
}

bool is_live(uintptr_t at, size_t len) {
    const Allocation found = find_allocation(at);
    return found.len > 0 && len <= found.len - (at - found.at);
}

} // namespace fake
