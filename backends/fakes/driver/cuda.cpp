// A fake of CUDA's driver, for tests. It contains no part of NVIDIA's library.

#define CALL(cuda, hip) EXPORTED int cuda
#define STARTED \
    if (!is_started) return fake::NOT_INITIALIZED
/// Begins calls that also work without a usable device.
#define ENTER STARTED
#define BEGIN \
    STARTED;  \
    if (const int code = fake::ready()) return code
#define NO_DEVICES int(fake::SUCCESS)

#include <atomic>

static std::atomic<bool> is_started{false};

#include "calls.h"

fake::World& fake::world() {
    static World* world = new World("CUDA", "THERMOCLINE_FAKE_CUDA", 48 * 1024, 12040);
    return *world;
}

EXPORTED int cuInit(unsigned flags) {
    if (flags != 0) return fake::INVALID_VALUE;
    if (fake::world().library.init != 0) return int(fake::world().library.init);
    if (fake::world().library.devices == 0) return fake::NO_DEVICE;
    is_started = true;
    return fake::SUCCESS;
}

EXPORTED int cuDriverGetVersion(int* version) {
    *version = int(fake::world().library.version);
    return fake::SUCCESS;
}

EXPORTED int cuDeviceGetAttribute(int* value, int which, int ordinal) {
    DEVICE_OF(device, ordinal);
    std::lock_guard<std::mutex> lock(device->mutex);
    const fake::Settings& s = device->settings;
    switch (which) {
    case 1: case 2: case 3: *value = 1024; break;
    case 4: *value = 64; break;
    case 5: *value = 0x7fffffff; break;
    case 6: case 7: *value = 65535; break;
    case 8: case 81: case 97: *value = int(fake::world().max_shared); break;
    case 10: *value = 32; break;
    case 12: case 82: *value = 65536; break;
    case 13: case 36: *value = 1000000; break;
    case 16: *value = int(s.units); break;
    case 17: *value = int(s.watchdog); break;
    case 18: *value = int(s.integrated); break;
    case 19: case 31: case 41: *value = 1; break;
    case 33: *value = ordinal + 1; break;
    case 37: *value = 256; break;
    case 38: *value = 4 << 20; break;
    case 39: *value = 2048; break;
    case 75: *value = int(s.major); break;
    case 76: *value = int(s.minor); break;
    // All others, including 115 (memory pools), are 0: not supported.
    default: *value = 0; break;
    }
    return fake::SUCCESS;
}

EXPORTED int cuDeviceGetUuid_v2(char* uuid, int ordinal) {
    DEVICE_OF(device, ordinal);
    memset(uuid, 0, 16);
    memcpy(uuid, "FAKE CUDA", 9);
    uuid[15] = char(device->ordinal);
    return fake::SUCCESS;
}

// The handle of a context is its device.

EXPORTED int cuDevicePrimaryCtxRetain(void** context, int ordinal) {
    DEVICE_OF(device, ordinal);
    *context = device;
    return device->state();
}
EXPORTED int cuDevicePrimaryCtxRelease_v2(int ordinal) {
    DEVICE_OF(device, ordinal);
    return device->state();
}
EXPORTED int cuCtxSetCurrent(void* context) {
    STARTED;
    for (fake::Device& device : fake::world().devices) {
        if (context == nullptr || context == &device) {
            fake::current = static_cast<fake::Device*>(context);
            return fake::SUCCESS;
        }
    }
    return fake::INVALID_CONTEXT;
}
EXPORTED int cuCtxGetCurrent(void** context) {
    STARTED;
    *context = fake::current;
    return fake::SUCCESS;
}
EXPORTED int cuCtxGetDevice(int* ordinal) {
    BEGIN;
    *ordinal = fake::current->ordinal;
    return fake::SUCCESS;
}

EXPORTED int cuFuncSetAttribute(void* function, int, int) {
    BEGIN;
    return fake::is_handle(fake::Type::Function, function) ? fake::SUCCESS : fake::INVALID_HANDLE;
}

namespace {

struct Name {
    int code;
    const char* name;
};
const Name NAMES[] = {
    {0, "CUDA_SUCCESS"},
    {1, "CUDA_ERROR_INVALID_VALUE"},
    {2, "CUDA_ERROR_OUT_OF_MEMORY"},
    {3, "CUDA_ERROR_NOT_INITIALIZED"},
    {46, "CUDA_ERROR_DEVICE_UNAVAILABLE"},
    {100, "CUDA_ERROR_NO_DEVICE"},
    {101, "CUDA_ERROR_INVALID_DEVICE"},
    {200, "CUDA_ERROR_INVALID_IMAGE"},
    {201, "CUDA_ERROR_INVALID_CONTEXT"},
    {214, "CUDA_ERROR_ECC_UNCORRECTABLE"},
    {218, "CUDA_ERROR_INVALID_PTX"},
    {400, "CUDA_ERROR_INVALID_HANDLE"},
    {500, "CUDA_ERROR_NOT_FOUND"},
    {600, "CUDA_ERROR_NOT_READY"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS"},
    {701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"},
    {702, "CUDA_ERROR_LAUNCH_TIMEOUT"},
    {719, "CUDA_ERROR_LAUNCH_FAILED"},
    {802, "CUDA_ERROR_SYSTEM_NOT_READY"},
    {803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"},
    {900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"},
    {901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"},
    {903, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED"},
    {907, "CUDA_ERROR_CAPTURED_EVENT"},
    {999, "CUDA_ERROR_UNKNOWN"},
};

} // namespace

EXPORTED int cuGetErrorName(int code, const char** text) {
    *text = nullptr;
    for (const Name& each : NAMES) {
        if (each.code == code) *text = each.name;
    }
    return *text == nullptr ? fake::INVALID_VALUE : fake::SUCCESS;
}
EXPORTED int cuGetErrorString(int code, const char** text) {
    if (cuGetErrorName(code, text) != 0) return fake::INVALID_VALUE;
    *text = fake::code_name(code);
    return fake::SUCCESS;
}
