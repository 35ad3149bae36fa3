// Replays the launches that driver/queue.cpp wrote, for sanitisers: each allocation has memory of
// its exact size. scripts/check_kernels_asan compiles this file with the kernels.

#include "../shim/shim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <string>
#include <vector>

namespace {

struct Reader {
    FILE* file;

    void bytes(void* to, size_t n) {
        if (fread(to, 1, n, file) != n) {
            fprintf(stderr, "a recorded launch is truncated; record the launches again\n");
            exit(2);
        }
    }
    uint64_t word() {
        uint64_t v;
        bytes(&v, 8);
        return v;
    }
    std::string text() {
        std::string v(word(), 0);
        bytes(v.data(), v.size());
        return v;
    }
};

struct Allocation {
    /// Address in the recording process.
    uint64_t recorded_at;
    size_t len;
    void* at;
};

bool run(const char* path) {
    Reader in{fopen(path, "rb")};
    if (in.file == nullptr) {
        perror(path);
        return false;
    }
    const std::string unit = in.text(), name = in.text();
    uint64_t how[7];
    for (uint64_t& v : how) v = in.word();
    std::vector<Allocation> allocations(in.word());
    for (Allocation& each : allocations) {
        each.recorded_at = in.word();
        each.len = in.word();
        if (posix_memalign(&each.at, 256, each.len) != 0) abort();
        in.bytes(each.at, each.len);
    }
    const std::string kinds = in.text();
    std::vector<uint64_t> values(kinds.size());
    std::vector<void*> params;
    for (size_t i = 0; i < kinds.size(); i++) {
        values[i] = in.word();
        for (const Allocation& each : allocations) {
            if (kinds[i] == 'p' && values[i] - each.recorded_at < each.len) {
                values[i] = values[i] - each.recorded_at + reinterpret_cast<uintptr_t>(each.at);
                break;
            }
        }
        params.push_back(&values[i]);
    }
    fclose(in.file);
    const shim::Kernel* kernel = shim::find(unit.c_str(), name.c_str());
    if (kernel == nullptr || kinds != kernel->kinds) {
        fprintf(stderr, "%s: the kernel's name or parameters have changed; record the launches again\n", path);
        return false;
    }
    const shim::Launch launch = {{unsigned(how[0]), unsigned(how[1]), unsigned(how[2])},
                                 {unsigned(how[3]), 1, 1},
                                 size_t(how[4]),
                                 unsigned(how[5]),
                                 how[6]};
    const shim::Outcome outcome = shim::launch(*kernel, launch, params.data());
    for (const Allocation& each : allocations) free(each.at);
    if (outcome.fault != shim::Fault::None) fprintf(stderr, "%s: %s\n", path, outcome.text);
    return outcome.fault == shim::Fault::None;
}

} // namespace

/// Replays the launches whose paths are on standard input, one per line.
int main() {
    bool fine = true;
    char path[4096];
    while (fgets(path, sizeof path, stdin) != nullptr) {
        path[strcspn(path, "\n")] = 0;
        // Prints the path before the launch, so that a sanitiser's report follows it.
        fprintf(stderr, "%s\n", path);
        fine = run(path) && fine;
    }
    return fine ? 0 : 1;
}
