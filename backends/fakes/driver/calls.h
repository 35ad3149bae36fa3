// Functions that CUDA's driver and HIP have under different names, written as
// CALL(name in CUDA, name in HIP)(parameters). cuda.cpp and hip.cpp include this file and define
// CALL, STARTED, ENTER and BEGIN.

#include "fake.h"

#include <string.h>

#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace {

/// The stream of a handle. Null and the two special handles (1 and 2) are the device's default
/// stream.
fake::Stream* stream_of(void* handle) {
    const uintptr_t number = reinterpret_cast<uintptr_t>(handle);
    if (number > 2) {
        return fake::is_handle(fake::Type::Stream, handle) ? static_cast<fake::Stream*>(handle) : nullptr;
    }
    fake::Device& device = *fake::current;
    std::unique_lock<std::mutex> lock(device.mutex);
    if (!device.default_stream) {
        device.default_stream = std::make_shared<fake::Stream>(device);
        device.streams.insert(device.default_stream);
    }
    return device.default_stream.get();
}

fake::Event* event_of(void* handle) {
    return fake::is_handle(fake::Type::Event, handle) ? static_cast<fake::Event*>(handle) : nullptr;
}

/// Rejects calls that are not allowed during a capture.
int not_in_capture(fake::Stream& stream) {
    if (!stream.is_capturing) return fake::SUCCESS;
    stream.capture_is_invalid = true;
    return fake::CAPTURE_UNSUPPORTED;
}

int finish(fake::Stream& stream) {
    if (const int code = not_in_capture(stream)) return code;
    stream.finish();
    return stream.device.state();
}

/// A synchronous copy, which runs after all other work of the device.
int copy_now(uintptr_t dst, bool dst_on_device, uintptr_t src, bool src_on_device, size_t len) {
    fake::Stream* stream = stream_of(nullptr);
    fake::finish_all(*fake::current);
    if (const int code = fake::copy(*stream, dst, dst_on_device, src, src_on_device, len)) return code;
    return finish(*stream);
}

} // namespace

#define STREAM(name, handle)                     \
    fake::Stream* const name = stream_of(handle); \
    if (name == nullptr) return fake::INVALID_HANDLE
#define EVENT(name, handle)                     \
    fake::Event* const name = event_of(handle); \
    if (name == nullptr) return fake::INVALID_HANDLE

// Memory.

CALL(cuMemGetInfo_v2, hipMemGetInfo)(size_t* free, size_t* total) {
    BEGIN;
    std::lock_guard<std::mutex> lock(fake::current->mutex);
    *total = fake::current->settings.memory;
    *free = *total > fake::current->used ? *total - fake::current->used : 0;
    return fake::SUCCESS;
}
CALL(cuMemAlloc_v2, hipMalloc)(uintptr_t* at, size_t len) {
    BEGIN;
    fake::block(*fake::current);
    return fake::allocate(*fake::current, fake::Kind::Device, len, at);
}
CALL(cuMemFree_v2, hipFree)(uintptr_t at) {
    ENTER;
    const int code = at == 0 ? int(fake::SUCCESS) : fake::free_memory(fake::Kind::Device, at);
    const int lost = fake::ready();
    return lost != fake::SUCCESS ? lost : code;
}
CALL(cuMemHostAlloc, hipHostMalloc)(void** at, size_t len, unsigned) {
    BEGIN;
    fake::block(*fake::current);
    return fake::allocate(*fake::current, fake::Kind::Pinned, len, reinterpret_cast<uintptr_t*>(at));
}
CALL(cuMemFreeHost, hipHostFree)(void* at) {
    BEGIN;
    return fake::free_memory(fake::Kind::Pinned, reinterpret_cast<uintptr_t>(at));
}
CALL(cuMemHostGetDevicePointer_v2, hipHostGetDevicePointer)(uintptr_t* at, void* host, unsigned flags) {
    BEGIN;
    const fake::Allocation found = fake::find_allocation(reinterpret_cast<uintptr_t>(host));
    if (flags != 0 || found.len == 0 || found.kind != fake::Kind::Pinned) return fake::INVALID_VALUE;
    *at = reinterpret_cast<uintptr_t>(host);
    return fake::SUCCESS;
}

// Copies and fills.

CALL(cuMemcpyHtoDAsync_v2, hipMemcpyHtoDAsync)(uintptr_t dst, const void* src, size_t len, void* handle) {
    BEGIN;
    STREAM(stream, handle);
    return fake::copy(*stream, dst, true, reinterpret_cast<uintptr_t>(src), false, len);
}
CALL(cuMemcpyDtoHAsync_v2, hipMemcpyDtoHAsync)(void* dst, uintptr_t src, size_t len, void* handle) {
    BEGIN;
    STREAM(stream, handle);
    return fake::copy(*stream, reinterpret_cast<uintptr_t>(dst), false, src, true, len);
}
CALL(cuMemcpyDtoDAsync_v2, hipMemcpyDtoDAsync)(uintptr_t dst, uintptr_t src, size_t len, void* handle) {
    BEGIN;
    STREAM(stream, handle);
    return fake::copy(*stream, dst, true, src, true, len);
}
CALL(cuMemcpyHtoD_v2, hipMemcpyHtoD)(uintptr_t dst, const void* src, size_t len) {
    BEGIN;
    return copy_now(dst, true, reinterpret_cast<uintptr_t>(src), false, len);
}
CALL(cuMemcpyDtoH_v2, hipMemcpyDtoH)(void* dst, uintptr_t src, size_t len) {
    BEGIN;
    return copy_now(reinterpret_cast<uintptr_t>(dst), false, src, true, len);
}
CALL(cuMemcpyDtoD_v2, hipMemcpyDtoD)(uintptr_t dst, uintptr_t src, size_t len) {
    BEGIN;
    return copy_now(dst, true, src, true, len);
}
CALL(cuMemsetD32Async, hipMemsetD32Async)(uintptr_t dst, unsigned word, size_t n, void* handle) {
    BEGIN;
    STREAM(stream, handle);
    return fake::fill(*stream, dst, word, 4, n);
}
CALL(cuMemsetD8Async, hipMemsetD8Async)(uintptr_t dst, unsigned char byte, size_t n, void* handle) {
    BEGIN;
    STREAM(stream, handle);
    return fake::fill(*stream, dst, byte, 1, n);
}

// Streams.

CALL(cuStreamCreate, hipStreamCreateWithFlags)(void** out, unsigned flags) {
    BEGIN;
    if (flags > 1) return fake::INVALID_VALUE;
    fake::block(*fake::current);
    *out = fake::Stream::start(*fake::current).get();
    return fake::SUCCESS;
}
CALL(cuStreamCreateWithPriority, hipStreamCreateWithPriority)(void** out, unsigned flags, int) {
    BEGIN;
    if (flags > 1) return fake::INVALID_VALUE;
    fake::block(*fake::current);
    *out = fake::Stream::start(*fake::current).get();
    return fake::SUCCESS;
}
CALL(cuStreamDestroy_v2, hipStreamDestroy)(void* handle) {
    ENTER;
    if (!fake::is_handle(fake::Type::Stream, handle)) return fake::INVALID_HANDLE;
    fake::Stream& stream = *static_cast<fake::Stream*>(handle);
    fake::Device& device = stream.device;
    std::lock_guard<std::mutex> lock(device.mutex);
    // Once the handle is gone, another thread that destroys a stream may remove this stream from
    // the list.
    if (!fake::remove_handle(fake::Type::Stream, handle)) return fake::INVALID_HANDLE;
    stream.end();
    // The stream completes its work. A later call removes it from the list when it is idle.
    for (auto it = device.streams.begin(); it != device.streams.end();) {
        const bool ended = *it != device.default_stream && !fake::is_handle(fake::Type::Stream, it->get());
        it = ended && (*it)->is_idle() ? device.streams.erase(it) : std::next(it);
    }
    return device.lost;
}
CALL(cuStreamSynchronize, hipStreamSynchronize)(void* handle) {
    BEGIN;
    STREAM(stream, handle);
    return finish(*stream);
}
CALL(cuStreamQuery, hipStreamQuery)(void* handle) {
    BEGIN;
    STREAM(stream, handle);
    if (const int code = not_in_capture(*stream)) return code;
    return stream->is_idle() ? stream->device.state() : int(fake::NOT_READY);
}
CALL(cuStreamWaitEvent, hipStreamWaitEvent)(void* handle, void* event_handle, unsigned) {
    BEGIN;
    STREAM(stream, handle);
    EVENT(event, event_handle);
    return fake::wait_in(*stream, *event);
}
CALL(cuLaunchHostFunc, hipLaunchHostFunc)(void* handle, void (*call)(void*), void* data) {
    BEGIN;
    STREAM(stream, handle);
    return fake::enqueue(*stream, [=](fake::Device&) {
        call(data);
        return fake::SUCCESS;
    });
}

// Events.

CALL(cuEventCreate, hipEventCreateWithFlags)(void** out, unsigned flags) {
    BEGIN;
    *out = fake::add_handle(fake::Type::Event, new fake::Event{*fake::current, (flags & 2) == 0, false, nullptr});
    return fake::SUCCESS;
}
CALL(cuEventDestroy_v2, hipEventDestroy)(void* handle) {
    ENTER;
    if (!fake::remove_handle(fake::Type::Event, handle)) return fake::INVALID_HANDLE;
    delete static_cast<fake::Event*>(handle);
    return fake::current == nullptr ? int(fake::SUCCESS) : fake::current->state();
}
CALL(cuEventRecord, hipEventRecord)(void* event_handle, void* handle) {
    BEGIN;
    EVENT(event, event_handle);
    STREAM(stream, handle);
    return fake::record(*event, *stream);
}
CALL(cuEventQuery, hipEventQuery)(void* handle) {
    BEGIN;
    EVENT(event, handle);
    const int code = fake::query(*event);
    return code == fake::SUCCESS ? event->device.state() : code;
}
CALL(cuEventSynchronize, hipEventSynchronize)(void* handle) {
    BEGIN;
    EVENT(event, handle);
    const int code = fake::wait(*event);
    return code == fake::SUCCESS ? event->device.state() : code;
}
CALL(cuEventElapsedTime, hipEventElapsedTime)(float* milliseconds, void* from_handle, void* to_handle) {
    BEGIN;
    EVENT(from, from_handle);
    EVENT(to, to_handle);
    return fake::elapsed(milliseconds, *from, *to);
}

// Kernels.

CALL(cuModuleLoadDataEx, hipModuleLoadDataEx)
(void** out, const void* image, unsigned n_options, int* options, void** values) {
    BEGIN;
    fake::block(*fake::current);
    fake::Module* module = nullptr;
    std::string log;
    const int code = fake::load(*fake::current, static_cast<const char*>(image), &module, &log);
    if (code == fake::SUCCESS) *out = fake::add_handle(fake::Type::Module, module);
    // Option 5 is the buffer for the error log, option 6 its size.
    char* buffer = nullptr;
    size_t size = 0;
    for (unsigned i = 0; i < n_options; i++) {
        if (options[i] == 5) buffer = static_cast<char*>(values[i]);
        if (options[i] == 6) size = size_t(reinterpret_cast<uintptr_t>(values[i]));
    }
    if (buffer != nullptr && size > 0) {
        const size_t n = log.size() < size - 1 ? log.size() : size - 1;
        memcpy(buffer, log.data(), n);
        buffer[n] = 0;
    }
    return code;
}
CALL(cuModuleLoadData, hipModuleLoadData)(void** out, const void* image) {
    BEGIN;
    fake::block(*fake::current);
    fake::Module* module = nullptr;
    std::string log;
    const int code = fake::load(*fake::current, static_cast<const char*>(image), &module, &log);
    if (code == fake::SUCCESS) *out = fake::add_handle(fake::Type::Module, module);
    return code;
}
CALL(cuModuleUnload, hipModuleUnload)(void* handle) {
    ENTER;
    if (!fake::remove_handle(fake::Type::Module, handle)) return fake::INVALID_HANDLE;
    fake::Module* module = static_cast<fake::Module*>(handle);
    fake::finish_all(module->device);
    for (auto& function : module->functions) fake::remove_handle(fake::Type::Function, function.second.get());
    delete module;
    return fake::SUCCESS;
}
CALL(cuModuleGetFunction, hipModuleGetFunction)(void** out, void* handle, const char* name) {
    BEGIN;
    if (!fake::is_handle(fake::Type::Module, handle)) return fake::INVALID_HANDLE;
    fake::Function* function = nullptr;
    const int code = fake::function(*static_cast<fake::Module*>(handle), name, &function);
    if (code == fake::SUCCESS) *out = function;
    return code;
}
CALL(cuLaunchKernel, hipModuleLaunchKernel)
(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, void* handle,
 void** params, void** extra) {
    BEGIN;
    STREAM(stream, handle);
    if (!fake::is_handle(fake::Type::Function, function)) return fake::INVALID_HANDLE;
    if (extra != nullptr) return fake::INVALID_VALUE;
    return fake::launch(*stream, *static_cast<fake::Function*>(function), {gx, gy, gz}, {bx, by, bz}, shared, params);
}

// Graphs.

CALL(cuStreamBeginCapture_v2, hipStreamBeginCapture)(void* handle, int mode) {
    BEGIN;
    if (handle == nullptr) return fake::CAPTURE_UNSUPPORTED;
    STREAM(stream, handle);
    return fake::begin_capture(*stream, mode);
}
CALL(cuStreamEndCapture, hipStreamEndCapture)(void* handle, void** out) {
    BEGIN;
    STREAM(stream, handle);
    fake::Graph* graph = nullptr;
    const int code = fake::end_capture(*stream, &graph);
    *out = graph;
    if (graph != nullptr) fake::add_handle(fake::Type::Graph, graph);
    return code;
}
CALL(cuStreamIsCapturing, hipStreamIsCapturing)(void* handle, int* status) {
    BEGIN;
    STREAM(stream, handle);
    *status = !stream->is_capturing ? 0 : stream->capture_is_invalid ? 2 : 1;
    return fake::SUCCESS;
}
CALL(cuGraphInstantiateWithFlags, hipGraphInstantiateWithFlags)(void** out, void* graph, unsigned long long) {
    BEGIN;
    if (!fake::is_handle(fake::Type::Graph, graph)) return fake::INVALID_HANDLE;
    *out = fake::add_handle(fake::Type::ReadyGraph, new fake::Graph(*static_cast<fake::Graph*>(graph)));
    return fake::SUCCESS;
}
CALL(cuGraphGetNodes, hipGraphGetNodes)(void* graph, void** nodes, size_t* n) {
    BEGIN;
    if (!fake::is_handle(fake::Type::Graph, graph) || nodes != nullptr) return fake::INVALID_VALUE;
    *n = static_cast<fake::Graph*>(graph)->ops.size();
    return fake::SUCCESS;
}
CALL(cuGraphUpload, hipGraphUpload)(void* ready, void*) {
    BEGIN;
    return fake::is_handle(fake::Type::ReadyGraph, ready) ? fake::SUCCESS : fake::INVALID_HANDLE;
}
CALL(cuGraphLaunch, hipGraphLaunch)(void* ready, void* handle) {
    BEGIN;
    STREAM(stream, handle);
    if (!fake::is_handle(fake::Type::ReadyGraph, ready)) return fake::INVALID_HANDLE;
    return fake::launch_graph(*stream, *static_cast<fake::Graph*>(ready));
}
CALL(cuGraphDestroy, hipGraphDestroy)(void* graph) {
    ENTER;
    if (!fake::remove_handle(fake::Type::Graph, graph)) return fake::INVALID_HANDLE;
    delete static_cast<fake::Graph*>(graph);
    return fake::SUCCESS;
}
CALL(cuGraphExecDestroy, hipGraphExecDestroy)(void* ready) {
    ENTER;
    if (!fake::remove_handle(fake::Type::ReadyGraph, ready)) return fake::INVALID_HANDLE;
    delete static_cast<fake::Graph*>(ready);
    return fake::SUCCESS;
}
CALL(cuCtxSynchronize, hipDeviceSynchronize)() {
    BEGIN;
    fake::finish_all(*fake::current);
    return fake::current->state();
}

// Devices.

namespace {

/// Writes at most `len` bytes of text, including the NUL.
int put_text(char* to, int len, const std::string& text) {
    if (len <= 0) return fake::INVALID_VALUE;
    const size_t n = text.size() < size_t(len) - 1 ? text.size() : size_t(len) - 1;
    memcpy(to, text.data(), n);
    to[n] = 0;
    return fake::SUCCESS;
}

} // namespace

#define DEVICE_OF(name, ordinal)                           \
    STARTED;                                               \
    fake::Device* const name = fake::world().device(ordinal); \
    if (name == nullptr) return fake::INVALID_DEVICE

CALL(cuDeviceGetCount, hipGetDeviceCount)(int* n) {
    STARTED;
    *n = int(fake::world().library.devices);
    return *n == 0 ? NO_DEVICES : int(fake::SUCCESS);
}
CALL(cuDeviceGet, hipDeviceGet)(int* out, int ordinal) {
    DEVICE_OF(device, ordinal);
    *out = device->ordinal;
    return fake::SUCCESS;
}
CALL(cuDeviceGetName, hipDeviceGetName)(char* to, int len, int ordinal) {
    DEVICE_OF(device, ordinal);
    return put_text(to, len, std::string("FAKE ") + fake::world().vendor + " device " + std::to_string(device->ordinal) + " (the CPU)");
}
CALL(cuDeviceGetPCIBusId, hipDeviceGetPCIBusId)(char* to, int len, int ordinal) {
    DEVICE_OF(device, ordinal);
    return put_text(to, len, std::string("0000:0") + "123456789a"[device->ordinal] + ":00.0");
}
CALL(cuDeviceTotalMem_v2, hipDeviceTotalMem)(size_t* len, int ordinal) {
    DEVICE_OF(device, ordinal);
    std::lock_guard<std::mutex> lock(device->mutex);
    *len = device->settings.memory;
    return fake::SUCCESS;
}
