// Replays recorded launches (driver/queue.cpp writes them), each allocation in memory of its exact
// size: for sanitisers. scripts/check_kernels_asan compiles it with the kernels.

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
            fprintf(stderr, "a recorded launch ends too early\n");
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

struct Piece {
    uint64_t was;
    size_t len;
    void* now;
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
    std::vector<Piece> pieces(in.word());
    for (Piece& piece : pieces) {
        piece.was = in.word();
        piece.len = in.word();
        if (posix_memalign(&piece.now, 256, piece.len) != 0) abort();
        in.bytes(piece.now, piece.len);
    }
    const std::string kinds = in.text();
    std::vector<uint64_t> values(kinds.size());
    std::vector<void*> params;
    for (size_t i = 0; i < kinds.size(); i++) {
        values[i] = in.word();
        for (const Piece& piece : pieces) {
            if (kinds[i] == 'p' && values[i] - piece.was < piece.len) {
                values[i] = values[i] - piece.was + reinterpret_cast<uintptr_t>(piece.now);
                break;
            }
        }
        params.push_back(&values[i]);
    }
    fclose(in.file);
    const shim::Kernel* kernel = shim::find(unit.c_str(), name.c_str());
    if (kernel == nullptr || kinds != kernel->kinds) {
        fprintf(stderr, "%s: the kernel is another one now\n", path);
        return false;
    }
    const shim::Launch launch = {{unsigned(how[0]), unsigned(how[1]), unsigned(how[2])},
                                 {unsigned(how[3]), 1, 1},
                                 size_t(how[4]),
                                 unsigned(how[5]),
                                 how[6]};
    const shim::Outcome outcome = shim::launch(*kernel, launch, params.data());
    for (const Piece& piece : pieces) free(piece.now);
    if (outcome.fault != shim::Fault::None) fprintf(stderr, "%s: %s\n", path, outcome.text);
    return outcome.fault == shim::Fault::None;
}

} // namespace

/// Paths on the standard input, one per line.
int main() {
    bool fine = true;
    char path[4096];
    while (fgets(path, sizeof path, stdin) != nullptr) {
        path[strcspn(path, "\n")] = 0;
        // Printed first, so that a sanitiser's report follows the launch that caused it.
        fprintf(stderr, "%s\n", path);
        fine = run(path) && fine;
    }
    return fine ? 0 : 1;
}
