// Error messages, settings, counters, modules and handles.

#include "fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <atomic>
#include <sstream>

namespace fake {

const char* code_name(int code) {
    switch (code) {
    case SUCCESS: return "success";
    case INVALID_VALUE: return "invalid value";
    case OUT_OF_MEMORY: return "out of memory";
    case NOT_INITIALIZED: return "not initialized";
    case NO_DEVICE: return "no device";
    case INVALID_DEVICE: return "invalid device";
    case INVALID_IMAGE: return "invalid image";
    case INVALID_CONTEXT: return "invalid context";
    case INVALID_HANDLE: return "invalid handle";
    case NOT_FOUND: return "not found";
    case NOT_READY: return "not ready";
    case ILLEGAL_ADDRESS: return "illegal address";
    case NOT_REGISTERED: return "host memory not registered";
    case LAUNCH_FAILED: return "launch failed";
    case CAPTURE_UNSUPPORTED: return "not permitted during a capture";
    case CAPTURE_INVALIDATED: return "the capture is invalid";
    case CAPTURE_UNMATCHED: return "no capture was started";
    case CAPTURED_EVENT: return "the event was captured";
    default: return "an injected failure";
    }
}

World::World(const char* vendor, const char* variable, size_t max_shared, uint64_t version)
    : vendor(vendor), max_shared(max_shared) {
    library.version = version;
    for (int i = 0; i < MAX_DEVICES; i++) devices[i].ordinal = i;
    const char* text = getenv(variable);
    if (text != nullptr && !configure(text)) fprintf(stderr, "FAKE %s: unknown key or invalid value in %s=%s\n", vendor, variable, text);
}

bool World::set(Device* device, const std::string& key, const std::string& text) {
    if (device == nullptr) {
        if (key == "arch") return library.arch = text, true;
        if (key == "wrong_unit") return library.wrong_unit = text, true;
        if (key == "record") return library.record = text, true;
        if (key == "log") return library.log = text, true;
    }
    char* end = nullptr;
    const uint64_t value = strtoull(text.c_str(), &end, 10);
    if (text.empty() || *end != 0) return false;
    if (device == nullptr) {
        if (key == "devices" && value <= MAX_DEVICES) return library.devices = value, true;
        if (key == "version") return library.version = value, true;
        if (key == "init") return library.init = value, true;
        if (key == "wave" && (value == 32 || value == 64)) return library.wave = value, true;
        if (key == "refuse_compiling") return library.refuse_compiling = value, true;
        if (key == "crash_compiling") return library.crash_compiling = value, true;
        bool known = true;
        for (Device& each : devices) known = known && set(&each, key, text);
        return known;
    }
    if (key == "reset") {
        // Ends the queued work first, so that it cannot lose the device after the reset.
        set(device, "release", "1");
        finish_all(*device);
    }
    std::lock_guard<std::mutex> lock(device->mutex);
    Settings& s = device->settings;
    if (key == "memory") return s.memory = value, true;
    if (key == "hidden") return s.hidden = value, true;
    if (key == "granule" && value > 0) return s.granule = value, true;
    if (key == "seed") return s.seed = value, true;
    if (key == "delay_us") return s.delay_us = value, true;
    if (key == "refuse_code") return s.refuse_code = value, true;
    if (key == "lost_code") return s.lost_code = value, true;
    if (key == "watchdog") return s.watchdog = value, true;
    if (key == "integrated") return s.integrated = value, true;
    if (key == "units") return s.units = value, true;
    if (key == "wrong_matrix") return s.wrong_matrix = value, true;
    if (key == "short_graphs") return s.short_graphs = value, true;
    if (key == "blocking_calls") return s.blocking_calls = value, true;
    if (key == "blocking_graphs") return s.blocking_graphs = value, true;
    if (key == "major") return s.major = value, true;
    if (key == "minor") return s.minor = value, true;
    // These count from now on.
    if (key == "lost_after") return s.lost_after = device->n_launches + value, true;
    if (key == "refuse_after") return s.refuse_after = device->n_launch_calls + value, true;
    if (key == "hang_after") return s.hang_after = device->n_launches + value, true;
    if (key == "lost") return device->lost = int(value), device->changed.notify_all(), true;
    if (key == "release") return s.hang_after = UINT64_MAX, device->changed.notify_all(), true;
    if (key == "reset") return s = Settings{}, device->lost = SUCCESS, device->changed.notify_all(), true;
    return false;
}

bool World::configure(const char* text) {
    std::istringstream words(text);
    std::string word;
    bool known = true;
    while (words >> word) {
        Device* device = nullptr;
        const size_t colon = word.find(':'), equals = word.find('=');
        if (equals == std::string::npos) {
            known = false;
            continue;
        }
        if (colon == 1 && word[0] >= '0' && word[0] < '0' + MAX_DEVICES) {
            device = &devices[word[0] - '0'];
        }
        const size_t start = device != nullptr ? 2 : 0;
        known = set(device, word.substr(start, equals - start), word.substr(equals + 1)) && known;
    }
    return known;
}

Device* World::device(int ordinal) {
    return ordinal >= 0 && uint64_t(ordinal) < library.devices ? &devices[ordinal] : nullptr;
}

uint64_t World::count(int ordinal, const std::string& what) {
    if (ordinal < 0 || ordinal >= MAX_DEVICES) return UINT64_MAX;
    Device& d = devices[ordinal];
    std::lock_guard<std::mutex> lock(d.mutex);
    if (what == "launches") return d.n_launches;
    if (what == "graphs") return d.n_graphs;
    if (what == "copies") return d.n_copies;
    if (what == "bytes_in") return d.bytes_in;
    if (what == "bytes_out") return d.bytes_out;
    if (what == "used") return d.used;
    if (what == "most_used") return d.most_used;
    if (what == "lost") return uint64_t(d.lost);
    if (what == "streams") return n_handles(Type::Stream);
    if (what == "events") return n_handles(Type::Event);
    if (what == "modules") return n_handles(Type::Module);
    return UINT64_MAX;
}

namespace {
std::atomic<const Executor*> chosen_executor{nullptr};
} // namespace

const Executor* executor() { return chosen_executor.load(); }

int load(Device& device, const char* image, Module** module, std::string* log) {
    const char* start = "// unit ";
    if (image == nullptr || strncmp(image, start, strlen(start)) != 0) {
        *log = "FAKE: no `// unit NAME` in the first line";
        return INVALID_IMAGE;
    }
    const char* name = image + strlen(start);
    const std::string unit(name, strcspn(name, "\r\n"));
    if (executor() != nullptr) {
        Text text = {};
        const uint64_t number = executor()->load(device.ordinal, image, &text);
        *log = text.bytes;
        if (number == 0) return INVALID_IMAGE;
        *module = new Module{device, unit, {}, {}, number};
        return SUCCESS;
    }
    bool known = false;
    for (const shim::Kernel* k = shim::kernels(); k != nullptr; k = k->next) known = known || unit == k->unit;
    if (!known) {
        *log = "FAKE: no kernels of unit " + unit + " were compiled for the CPU";
        return INVALID_IMAGE;
    }
    *module = new Module{device, unit, {}, {}, 0};
    return SUCCESS;
}

Module::~Module() {
    if (executed != 0) executor()->unload(executed);
}

int function(Module& module, const char* name, Function** out) {
    Function made{module.device, nullptr, module.executed, name, {}};
    if (module.executed != 0) {
        uint32_t sizes[64];
        const int n = executor()->parameters(module.executed, name, sizes);
        if (n < 0) return NOT_FOUND;
        made.sizes.assign(sizes, sizes + n);
    } else {
        made.kernel = shim::find(module.unit.c_str(), name);
        if (made.kernel == nullptr) return NOT_FOUND;
        for (const char* kind = made.kernel->kinds; *kind != 0; kind++) made.sizes.push_back(uint32_t(shim::size_of(*kind)));
    }
    std::lock_guard<std::mutex> lock(module.mutex);
    auto& slot = module.functions[name];
    if (!slot) {
        slot.reset(new Function(made));
        add_handle(Type::Function, slot.get());
    }
    *out = slot.get();
    return SUCCESS;
}

namespace {

struct Handles {
    std::mutex mutex;
    std::set<std::pair<Type, void*>> live;
};
Handles& handles() {
    static Handles* handles = new Handles;
    return *handles;
}

} // namespace

void* add_handle(Type type, void* object) {
    std::lock_guard<std::mutex> lock(handles().mutex);
    handles().live.emplace(type, object);
    return object;
}

bool is_handle(Type type, void* object) {
    std::lock_guard<std::mutex> lock(handles().mutex);
    return handles().live.count({type, object}) > 0;
}

bool remove_handle(Type type, void* object) {
    std::lock_guard<std::mutex> lock(handles().mutex);
    return handles().live.erase({type, object}) > 0;
}

uint64_t n_handles(Type type) {
    std::lock_guard<std::mutex> lock(handles().mutex);
    uint64_t n = 0;
    for (const auto& handle : handles().live) n += handle.first == type;
    return n;
}

} // namespace fake

extern "C" {

/// For tests: applies settings (`World::configure`); 0 if all keys and values are valid.
__attribute__((visibility("default"))) int fake_configure(const char* text) {
    return fake::world().configure(text) ? 0 : 1;
}

/// For tests: from now on, modules are loaded and run by `executor`, which lives as long as the process.
__attribute__((visibility("default"))) void fake_set_executor(const fake::Executor* executor) {
    fake::chosen_executor = executor;
}

/// For tests: a counter of a device.
__attribute__((visibility("default"))) uint64_t fake_count(int device, const char* what) {
    return fake::world().count(device, what);
}

}
