#pragma once
// Shared code of the fake drivers of CUDA and HIP, for tests only. Their devices use host memory,
// and the shim runs their kernels. They do not model the timing of a real device.

#include "../shim/shim.h"

#include <stddef.h>
#include <stdint.h>

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace fake {

/// Codes of CUDA's driver; HIP uses the same numbers.
enum Code : int {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    NOT_READY = 600,
    ILLEGAL_ADDRESS = 700,
    NOT_REGISTERED = 713,
    LAUNCH_FAILED = 719,
    CAPTURE_UNSUPPORTED = 900,
    CAPTURE_INVALIDATED = 901,
    CAPTURE_UNMATCHED = 903,
    CAPTURED_EVENT = 907,
};
const char* code_name(int code);

/// Settings of a device, which tests change.
struct Settings {
    /// Bytes.
    uint64_t memory = uint64_t(4) << 30;
    /// Bytes of `memory` that are reported as free but cannot be allocated.
    uint64_t hidden = 0;
    /// Allocations of at least 1 MiB take multiples of this many bytes.
    uint64_t granule = 512;
    /// Seed of the order of lanes, waves and blocks; 0 for sequential order.
    uint64_t seed = 1;
    /// Delay before each work item.
    uint64_t delay_us = 0;
    /// The device is lost after this many launches, including those of graphs.
    uint64_t lost_after = UINT64_MAX;
    uint64_t lost_code = LAUNCH_FAILED;
    /// One launch call fails after this many launch calls.
    uint64_t refuse_after = UINT64_MAX;
    uint64_t refuse_code = 701;
    /// Kernels after this many launches wait until `release`.
    uint64_t hang_after = UINT64_MAX;
    uint64_t watchdog = 0;
    uint64_t integrated = 0;
    /// Number of multiprocessors.
    uint64_t units = 4;
    /// Whether graphs omit the last captured work, and whether launching a graph blocks until the
    /// graph has run.
    uint64_t short_graphs = 0, blocking_graphs = 0;
    /// Whether allocations, loaded modules and new streams wait for all work, as drivers may do.
    uint64_t blocking_calls = 0;
    /// Whether matrix instructions give wrong results.
    uint64_t wrong_matrix = 0;
    /// Compute capability.
    uint64_t major = 8, minor = 6;
};

/// Settings of the library, which tests change.
struct Library {
    uint64_t devices = 1;
    uint64_t version = 0;
    /// Code that initialisation returns.
    uint64_t init = SUCCESS;
    /// Lanes per wave.
    uint64_t wave = 32;
    /// Whether hiprtc rejects every program.
    uint64_t refuse_compiling = 0;
    /// Whether hiprtc ends its process instead of compiling.
    uint64_t crash_compiling = 0;
    std::string arch = "gfx1100";
    /// The kernel file whose kernels read wrong lanes and have wrong matrix instructions; empty for none.
    std::string wrong_unit;
    /// Folder to which launches are written; empty for none.
    std::string record;
    /// File to which a line for each launch is appended; empty for none.
    std::string log;
};

struct Stream;

struct Device {
    int ordinal = 0;
    Settings settings;
    std::mutex mutex;
    std::condition_variable changed;
    uint64_t used = 0;
    int lost = SUCCESS;
    std::set<std::shared_ptr<Stream>> streams;
    std::shared_ptr<Stream> default_stream;
    uint64_t n_launches = 0, n_launch_calls = 0, n_graphs = 0, n_copies = 0, bytes_in = 0, bytes_out = 0;
    uint64_t most_used = 0;

    /// Loses the device: every later call fails with `code`.
    void lose(int code, const std::string& why);
    int state();
};

constexpr int MAX_DEVICES = 10;

struct World {
    /// "CUDA" or "HIP".
    const char* vendor;
    /// Shared memory per block, in bytes.
    size_t max_shared;
    Library library;
    Device devices[MAX_DEVICES];

    World(const char* vendor, const char* variable, size_t max_shared, uint64_t version);
    /// Sets `key=value` and `N:key=value` (device N only), separated by blanks; false if a key is
    /// unknown or a value is invalid.
    bool configure(const char* text);
    bool set(Device* device, const std::string& key, const std::string& value);
    uint64_t count(int device, const std::string& what);
    Device* device(int ordinal);
};
/// The only instance of this library's state.
World& world();

// Memory.

enum class Kind { Device, Pinned };
struct Allocation {
    uintptr_t at;
    size_t len;
    /// Bytes that it takes of the device's memory.
    size_t booked;
    Kind kind;
    Device* device;
    /// The whole mapping, with guard pages before and after.
    void* mapped;
    size_t mapped_len;
};
int allocate(Device& device, Kind kind, size_t len, uintptr_t* at);
int free_memory(Kind kind, uintptr_t at);
/// Whether a range is inside one live allocation.
bool is_live(uintptr_t at, size_t len);
/// The live allocation that contains an address, or an allocation of length 0.
Allocation find_allocation(uintptr_t at);

// Work.

/// A work item of a stream. Any code other than SUCCESS loses the device.
struct Op {
    std::function<int(Device&)> run;
};

struct Stream {
    Device& device;
    bool is_capturing = false, capture_is_invalid = false;
    int capture_mode = 0;
    std::vector<Op> captured;

    explicit Stream(Device& device);
    ~Stream();
    void push(Op op);
    void finish();
    bool is_idle();
    static std::shared_ptr<Stream> start(Device& device);
    void end();

  private:
    struct Queue;
    std::shared_ptr<Queue> queue;
};

/// Adds work to the stream's capture, or to its queue if it is not capturing.
int enqueue(Stream& stream, std::function<int(Device&)> run);
void finish_all(Device& device);
/// Waits for all work of the device, if the setting `blocking_calls` is set.
void block(Device& device);

struct Recording {
    std::mutex mutex;
    std::condition_variable happened;
    bool is_done = false;
    /// Time of completion, in nanoseconds.
    uint64_t at = 0;
};
struct Event {
    Device& device;
    bool is_timed;
    bool is_captured = false;
    std::shared_ptr<Recording> recording;
};
int record(Event& event, Stream& stream);
int query(Event& event);
int wait(Event& event);
int elapsed(float* milliseconds, Event& from, Event& to);
int wait_in(Stream& stream, Event& event);

/// What an executor writes about a failure.
struct Text {
    char bytes[1024];
};
/// An allocation that a kernel may access.
struct Range {
    uint64_t at, len;
};
struct Geometry {
    shim::Index grid, block;
    /// Bytes of dynamic shared memory.
    uint64_t shared;
    uint64_t seed;
};
struct Arguments {
    Geometry geometry;
    /// 8 bytes for each parameter.
    const uint64_t* values;
    uint64_t n_values;
    const Range* ranges;
    uint64_t n_ranges;
};
/// Runs kernels instead of the shim (`fake_set_executor`): `Table` in src/executor.rs.
struct Executor {
    /// A number for the module, or 0.
    uint64_t (*load)(int device, const char* image, Text* log);
    void (*unload)(uint64_t module);
    /// Writes the sizes of a kernel's parameters, at most 64; returns their number, negative without such a kernel.
    int (*parameters)(uint64_t module, const char* name, uint32_t* sizes);
    /// A code.
    int (*launch)(uint64_t module, const char* name, const Arguments* arguments, Text* fault);
};
/// Null while the shim runs kernels.
const Executor* executor();
/// All live allocations, in the order of their addresses.
std::vector<Range> live_ranges();

struct Module {
    Device& device;
    std::string unit;
    /// Guards `functions`.
    std::mutex mutex;
    std::map<std::string, std::unique_ptr<struct Function>> functions;
    /// The executor's number, or 0.
    uint64_t executed = 0;

    ~Module();
};
struct Function {
    Device& device;
    /// Null if the executor runs it.
    const shim::Kernel* kernel;
    uint64_t executed = 0;
    std::string name;
    /// Size of each parameter in bytes.
    std::vector<uint32_t> sizes;
};
/// Loads a module from an image, which is text whose first line is `// unit NAME`.
int load(Device& device, const char* image, Module** module, std::string* log);
int function(Module& module, const char* name, Function** out);

struct Graph {
    std::vector<Op> ops;
};
int begin_capture(Stream& stream, int mode);
int end_capture(Stream& stream, Graph** graph);
int launch_graph(Stream& stream, const Graph& graph);

int copy(Stream& stream, uintptr_t dst, bool dst_on_device, uintptr_t src, bool src_on_device, size_t len);
int fill(Stream& stream, uintptr_t dst, uint32_t value, size_t size_of_value, size_t n);
int launch(Stream& stream, Function& function, shim::Index grid, shim::Index block, size_t shared, void** params);

// Handles. All live handles are registered, so that calls can reject destroyed ones.

enum class Type { Stream, Event, Module, Function, Graph, ReadyGraph, Program };
void* add_handle(Type type, void* object);
bool is_handle(Type type, void* object);
bool remove_handle(Type type, void* object);
uint64_t n_handles(Type type);

/// The current device of this thread.
extern thread_local Device* current;
/// The error that any call returns if this thread has no current device or the device is lost.
int ready();

} // namespace fake
