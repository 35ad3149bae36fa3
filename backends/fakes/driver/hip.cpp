// A fake of HIP and hiprtc, for tests. It contains no part of AMD's libraries.

#define CALL(cuda, hip) EXPORTED int hip
#define STARTED \
    if (const int code = start()) return code
#define ENTER STARTED
#define BEGIN \
    STARTED;  \
    if (const int code = fake::ready()) return code
#define NO_DEVICES int(fake::NO_DEVICE)

#include "fake.h"

/// HIP initialises itself on the first call. Device 0 is then current.
static int start() {
    fake::World& world = fake::world();
    if (world.library.init != 0) return int(world.library.init);
    if (world.library.devices == 0) return fake::NO_DEVICE;
    if (fake::current == nullptr) fake::current = world.device(0);
    return fake::SUCCESS;
}

#include "calls.h"

fake::World& fake::world() {
    static World* world = new World("HIP", "THERMOCLINE_FAKE_HIP", 64 * 1024, 60032830);
    return *world;
}

EXPORTED int hipInit(unsigned flags) {
    if (flags != 0) return fake::INVALID_VALUE;
    return start();
}
EXPORTED int hipRuntimeGetVersion(int* version) {
    *version = int(fake::world().library.version);
    return fake::SUCCESS;
}
EXPORTED int hipDriverGetVersion(int* version) { return hipRuntimeGetVersion(version); }

EXPORTED int hipSetDevice(int ordinal) {
    DEVICE_OF(device, ordinal);
    fake::current = device;
    return fake::SUCCESS;
}
EXPORTED int hipGetDevice(int* ordinal) {
    STARTED;
    *ordinal = fake::current->ordinal;
    return fake::SUCCESS;
}

EXPORTED int hipDeviceGetAttribute(int* value, int which, int ordinal) {
    DEVICE_OF(device, ordinal);
    std::lock_guard<std::mutex> lock(device->mutex);
    const fake::Settings& s = device->settings;
    switch (which) {
    case 3: *value = 1; break;
    case 5: case 60: *value = 1000000; break;
    case 16: *value = int(s.integrated); break;
    case 18: *value = int(s.watchdog); break;
    case 19: *value = 4 << 20; break;
    case 26: case 56: *value = 1024; break;
    case 29: *value = 0x7fffffff; break;
    case 30: case 31: *value = 65535; break;
    case 63: *value = int(s.units); break;
    case 74: *value = int(fake::world().max_shared); break;
    case 87: *value = int(fake::world().library.wave); break;
    // The clock that kernels read, in kHz.
    case 10017: *value = 100000; break;
    default: *value = 0; break;
    }
    return fake::SUCCESS;
}

namespace {

/// Writes the name and the architecture; all other properties are 0. The offset of the
/// architecture depends on the version of the struct.
int put_properties(char* to, int ordinal, size_t size, size_t arch_at) {
    DEVICE_OF(device, ordinal);
    memset(to, 0, size);
    put_text(to, 256, std::string("FAKE HIP device ") + std::to_string(device->ordinal) + " (the CPU)");
    return put_text(to + arch_at, 256, fake::world().library.arch);
}

} // namespace

EXPORTED int hipGetDevicePropertiesR0600(void* to, int ordinal) {
    return put_properties(static_cast<char*>(to), ordinal, 1472, 1160);
}
EXPORTED int hipGetDeviceProperties(void* to, int ordinal) { return put_properties(static_cast<char*>(to), ordinal, 792, 396); }

namespace {

struct Name {
    int code;
    const char* name;
};
const Name NAMES[] = {
    {0, "hipSuccess"},
    {1, "hipErrorInvalidValue"},
    {2, "hipErrorOutOfMemory"},
    {3, "hipErrorNotInitialized"},
    {100, "hipErrorNoDevice"},
    {101, "hipErrorInvalidDevice"},
    {200, "hipErrorInvalidImage"},
    {201, "hipErrorInvalidContext"},
    {209, "hipErrorNoBinaryForGpu"},
    {214, "hipErrorECCNotCorrectable"},
    {400, "hipErrorInvalidHandle"},
    {500, "hipErrorNotFound"},
    {600, "hipErrorNotReady"},
    {700, "hipErrorIllegalAddress"},
    {701, "hipErrorLaunchOutOfResources"},
    {702, "hipErrorLaunchTimeOut"},
    {719, "hipErrorLaunchFailure"},
    {900, "hipErrorStreamCaptureUnsupported"},
    {901, "hipErrorStreamCaptureInvalidated"},
    {903, "hipErrorStreamCaptureUnmatched"},
    {907, "hipErrorCapturedEvent"},
    {999, "hipErrorUnknown"},
};

} // namespace

EXPORTED const char* hipGetErrorName(int code) {
    for (const Name& each : NAMES) {
        if (each.code == code) return each.name;
    }
    return "hipErrorUnknown";
}
EXPORTED const char* hipGetErrorString(int code) { return fake::code_name(code); }

// hiprtc: the name of a program is the name of its unit, and the compiled code is text that
// contains that name.

namespace {

struct Program {
    std::string unit, source, log, code;
};
constexpr int RTC_SUCCESS = 0, RTC_INVALID_INPUT = 3, RTC_INVALID_PROGRAM = 4, RTC_COMPILATION = 6;

Program* program_of(void* handle) {
    return fake::is_handle(fake::Type::Program, handle) ? static_cast<Program*>(handle) : nullptr;
}
#define PROGRAM(name, handle)                 \
    Program* const name = program_of(handle); \
    if (name == nullptr) return RTC_INVALID_PROGRAM

} // namespace

EXPORTED int hiprtcVersion(int* major, int* minor) {
    *major = 6;
    *minor = 0;
    return RTC_SUCCESS;
}
EXPORTED const char* hiprtcGetErrorString(int code) {
    switch (code) {
    case RTC_SUCCESS: return "HIPRTC_SUCCESS";
    case RTC_INVALID_INPUT: return "HIPRTC_ERROR_INVALID_INPUT";
    case RTC_INVALID_PROGRAM: return "HIPRTC_ERROR_INVALID_PROGRAM";
    case RTC_COMPILATION: return "HIPRTC_ERROR_COMPILATION";
    default: return "HIPRTC_ERROR_INTERNAL_ERROR";
    }
}
EXPORTED int hiprtcCreateProgram(void** out, const char* source, const char* name, int n_headers, const char**, const char**) {
    if (source == nullptr || n_headers < 0) return RTC_INVALID_INPUT;
    *out = fake::add_handle(fake::Type::Program, new Program{name == nullptr ? "" : name, source, "", ""});
    return RTC_SUCCESS;
}
EXPORTED int hiprtcCompileProgram(void* handle, int n_options, const char** options) {
    PROGRAM(program, handle);
    if (fake::world().library.crash_compiling != 0) abort();
    std::string arch;
    for (int i = 0; i < n_options; i++) {
        if (strncmp(options[i], "--offload-arch=", 15) == 0) arch = options[i] + 15;
    }
    bool known = false;
    for (const shim::Kernel* k = shim::kernels(); k != nullptr; k = k->next) {
        // The source must contain a kernel of its unit.
        const bool has = program->source.find(std::string("(") + k->name) != std::string::npos;
        known = known || (program->unit == k->unit && has);
    }
    program->log = fake::world().library.refuse_compiling != 0 ? "FAKE: error: rejected because of the setting refuse_compiling\n"
                   : !known ? "FAKE: error: no kernels of unit " + program->unit + " were compiled for the CPU\n"
                   : arch != fake::world().library.arch ? "FAKE: error: no code for " + arch + "\n"
                                                        : "";
    if (!program->log.empty()) return RTC_COMPILATION;
    program->code = "// unit " + program->unit + "\nFAKE code for " + arch + "\n";
    return RTC_SUCCESS;
}
EXPORTED int hiprtcGetProgramLogSize(void* handle, size_t* size) {
    PROGRAM(program, handle);
    *size = program->log.size() + 1;
    return RTC_SUCCESS;
}
EXPORTED int hiprtcGetProgramLog(void* handle, char* to) {
    PROGRAM(program, handle);
    memcpy(to, program->log.c_str(), program->log.size() + 1);
    return RTC_SUCCESS;
}
EXPORTED int hiprtcGetCodeSize(void* handle, size_t* size) {
    PROGRAM(program, handle);
    *size = program->code.size() + 1;
    return RTC_SUCCESS;
}
EXPORTED int hiprtcGetCode(void* handle, char* to) {
    PROGRAM(program, handle);
    memcpy(to, program->code.c_str(), program->code.size() + 1);
    return RTC_SUCCESS;
}
EXPORTED int hiprtcDestroyProgram(void** handle) {
    if (!fake::remove_handle(fake::Type::Program, *handle)) return RTC_INVALID_PROGRAM;
    delete static_cast<Program*>(*handle);
    *handle = nullptr;
    return RTC_SUCCESS;
}
