// Streams (one thread each), events, graphs, copies and launches.

#include "fake.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <thread>

namespace fake {

thread_local Device* current = nullptr;

int ready() {
    if (current == nullptr) return INVALID_CONTEXT;
    return current->state();
}

int Device::state() {
    std::lock_guard<std::mutex> lock(mutex);
    return lost;
}

void Device::lose(int code, const std::string& why) {
    std::lock_guard<std::mutex> lock(mutex);
    if (lost != SUCCESS) return;
    lost = code;
    // Wakes kernels that hang.
    changed.notify_all();
    fprintf(stderr, "FAKE %s device %d: %s: %s\n", world().vendor, ordinal, code_name(code), why.c_str());
}

struct Stream::Queue {
    Device& device;
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<Op> ops;
    uint64_t n_given = 0, n_done = 0;
    bool is_ended = false;

    explicit Queue(Device& device) : device(device) {}

    void run_ops() {
        for (;;) {
            Op op;
            {
                std::unique_lock<std::mutex> lock(mutex);
                changed.wait(lock, [&] { return !ops.empty() || is_ended; });
                if (ops.empty()) return;
                op = std::move(ops.front());
                ops.pop_front();
            }
            uint64_t delay = 0;
            {
                std::lock_guard<std::mutex> lock(device.mutex);
                delay = device.settings.delay_us;
            }
            if (delay > 0) std::this_thread::sleep_for(std::chrono::microseconds(delay));
            const int code = op.run(device);
            if (code != SUCCESS) device.lose(code, "work in a stream failed");
            // Releases the op's resources before its completion is visible.
            op.run = nullptr;
            std::lock_guard<std::mutex> lock(mutex);
            n_done++;
            changed.notify_all();
        }
    }
};

Stream::Stream(Device& device) : device(device), queue(std::make_shared<Queue>(device)) {
    std::thread([queue = queue] { queue->run_ops(); }).detach();
}

Stream::~Stream() { end(); }

void Stream::end() {
    std::lock_guard<std::mutex> lock(queue->mutex);
    queue->is_ended = true;
    queue->changed.notify_all();
}

std::shared_ptr<Stream> Stream::start(Device& device) {
    auto stream = std::make_shared<Stream>(device);
    // Registers the handle before the device lists the stream, because a listed stream without a
    // valid handle counts as destroyed and is removed.
    add_handle(Type::Stream, stream.get());
    std::lock_guard<std::mutex> lock(device.mutex);
    device.streams.insert(stream);
    return stream;
}

void Stream::push(Op op) {
    std::lock_guard<std::mutex> lock(queue->mutex);
    queue->ops.push_back(std::move(op));
    queue->n_given++;
    queue->changed.notify_all();
}

void Stream::finish() {
    std::unique_lock<std::mutex> lock(queue->mutex);
    // Waits only for the work queued so far, because another thread may keep adding work.
    const uint64_t n = queue->n_given;
    queue->changed.wait(lock, [&] { return queue->n_done >= n; });
}

bool Stream::is_idle() {
    std::lock_guard<std::mutex> lock(queue->mutex);
    return queue->n_done == queue->n_given;
}

int enqueue(Stream& stream, std::function<int(Device&)> run) {
    // Ops check for themselves whether the device is lost: copies and launches then do nothing,
    // but events still complete.
    if (stream.is_capturing) {
        if (stream.capture_is_invalid) return CAPTURE_INVALIDATED;
        stream.captured.push_back({std::move(run)});
        return SUCCESS;
    }
    stream.push({std::move(run)});
    return SUCCESS;
}

void finish_all(Device& device) {
    std::vector<std::shared_ptr<Stream>> streams;
    {
        std::lock_guard<std::mutex> lock(device.mutex);
        streams.assign(device.streams.begin(), device.streams.end());
    }
    for (auto& stream : streams) stream->finish();
}

void block(Device& device) {
    bool blocks;
    {
        std::lock_guard<std::mutex> lock(device.mutex);
        blocks = device.settings.blocking_calls != 0;
    }
    if (blocks) finish_all(device);
}

int record(Event& event, Stream& stream) {
    if (&event.device != &stream.device) return INVALID_HANDLE;
    event.is_captured = stream.is_capturing;
    auto recording = std::make_shared<Recording>();
    event.recording = recording;
    return enqueue(stream, [recording](Device&) {
        std::lock_guard<std::mutex> lock(recording->mutex);
        recording->is_done = true;
        recording->at = shim::nanoseconds();
        recording->happened.notify_all();
        return SUCCESS;
    });
}

int query(Event& event) {
    if (event.is_captured) return CAPTURED_EVENT;
    if (!event.recording) return SUCCESS;
    std::lock_guard<std::mutex> lock(event.recording->mutex);
    return event.recording->is_done ? SUCCESS : NOT_READY;
}

int wait(Event& event) {
    if (event.is_captured) return CAPTURED_EVENT;
    if (!event.recording) return SUCCESS;
    auto recording = event.recording;
    std::unique_lock<std::mutex> lock(recording->mutex);
    recording->happened.wait(lock, [&] { return recording->is_done; });
    return SUCCESS;
}

int elapsed(float* milliseconds, Event& from, Event& to) {
    if (!from.is_timed || !to.is_timed || !from.recording || !to.recording) return INVALID_HANDLE;
    for (Event* event : {&from, &to}) {
        if (const int code = query(*event)) return code;
    }
    *milliseconds = float(double(int64_t(to.recording->at - from.recording->at)) / 1e6);
    return SUCCESS;
}

int wait_in(Stream& stream, Event& event) {
    // Captures across several streams are not modelled.
    if (stream.is_capturing || event.is_captured) return CAPTURE_UNSUPPORTED;
    if (!event.recording) return SUCCESS;
    auto recording = event.recording;
    return enqueue(stream, [recording](Device&) {
        std::unique_lock<std::mutex> lock(recording->mutex);
        recording->happened.wait(lock, [&] { return recording->is_done; });
        return SUCCESS;
    });
}

int begin_capture(Stream& stream, int mode) {
    if (stream.is_capturing) return INVALID_VALUE;
    if (mode < 0 || mode > 2) return INVALID_VALUE;
    stream.is_capturing = true;
    stream.capture_is_invalid = false;
    stream.capture_mode = mode;
    stream.captured.clear();
    return SUCCESS;
}

int end_capture(Stream& stream, Graph** graph) {
    if (!stream.is_capturing) return CAPTURE_UNMATCHED;
    stream.is_capturing = false;
    *graph = nullptr;
    if (stream.capture_is_invalid) return CAPTURE_INVALIDATED;
    *graph = new Graph{std::move(stream.captured)};
    stream.captured.clear();
    return SUCCESS;
}

int launch_graph(Stream& stream, const Graph& graph) {
    // A graph launched in a capture would be a child node, which is not modelled.
    if (stream.is_capturing) return CAPTURE_UNSUPPORTED;
    auto ops = std::make_shared<std::vector<Op>>(graph.ops);
    bool is_short, blocks;
    {
        std::lock_guard<std::mutex> lock(stream.device.mutex);
        is_short = stream.device.settings.short_graphs;
        blocks = stream.device.settings.blocking_graphs;
    }
    if (is_short && ops->size() > 1) ops->pop_back();
    const int code = enqueue(stream, [ops](Device& device) {
        {
            std::lock_guard<std::mutex> lock(device.mutex);
            device.n_graphs++;
        }
        for (const Op& op : *ops) {
            if (const int code = op.run(device)) return code;
        }
        return int(SUCCESS);
    });
    if (code == SUCCESS && blocks) stream.finish();
    return code;
}

int copy(Stream& stream, uintptr_t dst, bool dst_on_device, uintptr_t src, bool src_on_device, size_t len) {
    return enqueue(stream, [=](Device& device) {
        if (device.state() != SUCCESS || len == 0) return int(SUCCESS);
        const bool fine = (!dst_on_device || is_live(dst, len)) && (!src_on_device || is_live(src, len));
        if (!fine) {
            device.lose(ILLEGAL_ADDRESS, "a copy of " + std::to_string(len) + " bytes leaves its allocation");
            return int(ILLEGAL_ADDRESS);
        }
        {
            std::lock_guard<std::mutex> lock(device.mutex);
            device.n_copies++;
            device.bytes_in += src_on_device ? 0 : len;
            device.bytes_out += dst_on_device ? 0 : len;
        }
        memmove(reinterpret_cast<void*>(dst), reinterpret_cast<const void*>(src), len);
        return int(SUCCESS);
    });
}

int fill(Stream& stream, uintptr_t dst, uint32_t value, size_t size_of_value, size_t n) {
    if (dst % size_of_value != 0) return INVALID_VALUE;
    return enqueue(stream, [=](Device& device) {
        if (device.state() != SUCCESS || n == 0) return int(SUCCESS);
        if (n > SIZE_MAX / size_of_value || !is_live(dst, n * size_of_value)) {
            device.lose(ILLEGAL_ADDRESS, "a fill leaves its allocation");
            return int(ILLEGAL_ADDRESS);
        }
        char* at = reinterpret_cast<char*>(dst);
        for (size_t i = 0; i < n; i++) memcpy(at + i * size_of_value, &value, size_of_value);
        return int(SUCCESS);
    });
}

namespace {

/// Writes a launch, and the allocations that its arguments point to, to a file for
/// scripts/check_kernels_asan. Words are little-endian.
void log_launch(const std::string& path, const std::string& name, shim::Index grid, shim::Index block) {
    static std::mutex mutex;
    std::lock_guard<std::mutex> lock(mutex);
    FILE* file = fopen(path.c_str(), "a");
    if (file == nullptr) return;
    fprintf(file, "%s %u %u %u %u\n", name.c_str(), grid.x, grid.y, grid.z, block.x);
    fclose(file);
}

void write_launch(const std::string& folder, const shim::Kernel& kernel, const shim::Launch& l, void** params) {
    static std::mutex mutex;
    static std::map<std::string, unsigned> written;
    // Writes only four of the first launches of a kernel, because most launches are alike.
    constexpr unsigned CHOSEN[] = {1, 4, 16, 64};
    constexpr size_t MAX_BYTES = size_t(4) << 20;
    std::lock_guard<std::mutex> lock(mutex);
    const std::string name = std::string(kernel.unit) + "-" + kernel.name;
    const unsigned number = ++written[name];
    bool is_chosen = false;
    for (unsigned chosen : CHOSEN) is_chosen = is_chosen || number == chosen;
    if (!is_chosen) return;
    std::map<uintptr_t, Allocation> reached;
    size_t total = 0;
    for (size_t i = 0; kernel.kinds[i] != 0; i++) {
        if (kernel.kinds[i] != 'p') continue;
        const Allocation found = find_allocation(*static_cast<uintptr_t*>(params[i]));
        if (found.len > 0 && reached.emplace(found.at, found).second) total += found.len;
    }
    if (total > MAX_BYTES) return;
    const std::string path = folder + "/" + name + "-" + std::to_string(getpid()) + "-" + std::to_string(number);
    FILE* file = fopen((path + ".part").c_str(), "wb");
    if (file == nullptr) return;
    const auto word = [&](uint64_t v) { fwrite(&v, 8, 1, file); };
    const auto text = [&](const char* v) {
        word(strlen(v));
        fwrite(v, 1, strlen(v), file);
    };
    text(kernel.unit);
    text(kernel.name);
    for (uint64_t v : {uint64_t(l.grid.x), uint64_t(l.grid.y), uint64_t(l.grid.z), uint64_t(l.block.x), uint64_t(l.shared),
                       uint64_t(l.wave), uint64_t(l.seed)}) {
        word(v);
    }
    word(reached.size());
    for (const auto& [at, allocation] : reached) {
        word(at);
        word(allocation.len);
        fwrite(reinterpret_cast<const void*>(at), 1, allocation.len, file);
    }
    text(kernel.kinds);
    for (size_t i = 0; kernel.kinds[i] != 0; i++) {
        uint64_t v = 0;
        memcpy(&v, params[i], shim::size_of(kernel.kinds[i]));
        word(v);
    }
    fclose(file);
    rename((path + ".part").c_str(), path.c_str());
}

} // namespace

int launch(Stream& stream, Function& function, shim::Index grid, shim::Index block, size_t shared, void** params) {
    Device& device = stream.device;
    if (&function.device != &device) return INVALID_HANDLE;
    const uint64_t n_threads = uint64_t(block.x) * block.y * block.z;
    if (n_threads == 0 || n_threads > 1024 || grid.x == 0 || grid.y == 0 || grid.z == 0) return INVALID_VALUE;
    if (grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535 || shared > world().max_shared) return INVALID_VALUE;
    {
        std::lock_guard<std::mutex> lock(device.mutex);
        if (device.n_launch_calls++ == device.settings.refuse_after) return int(device.settings.refuse_code);
    }
    const shim::Kernel* kernel = function.kernel;
    const uint64_t executed = function.executed;
    const std::string name = function.name;
    // Like a real driver, copies the argument values during the call.
    auto values = std::make_shared<std::vector<uint64_t>>();
    for (size_t i = 0; i < function.sizes.size(); i++) {
        if (params == nullptr || params[i] == nullptr) return INVALID_VALUE;
        uint64_t value = 0;
        memcpy(&value, params[i], function.sizes[i]);
        values->push_back(value);
    }
    return enqueue(stream, [=](Device& device) {
        uint64_t number, seed, lost_after, lost_code, wrong_matrix;
        {
            std::unique_lock<std::mutex> lock(device.mutex);
            if (device.lost != SUCCESS) return int(SUCCESS);
            number = device.n_launches++;
            device.changed.wait(lock, [&] { return number < device.settings.hang_after || device.lost != SUCCESS; });
            seed = device.settings.seed;
            wrong_matrix = device.settings.wrong_matrix;
            lost_after = device.settings.lost_after;
            lost_code = device.settings.lost_code;
        }
        if (number >= lost_after) {
            device.lose(int(lost_code), "the setting lost_after");
            return int(lost_code);
        }
        if (!world().library.log.empty()) log_launch(world().library.log, name, grid, block);
        std::vector<void*> pointers;
        for (uint64_t& value : *values) pointers.push_back(&value);
        const uint64_t order = seed == 0 ? 0 : (seed << 32 | (number & 0xffffffffu)) | uint64_t(1) << 63;
        if (executed != 0) {
            const std::vector<Range> ranges = live_ranges();
            const Arguments arguments = {{grid, block, shared, order}, values->data(), values->size(), ranges.data(), ranges.size()};
            Text text = {};
            const int code = executor()->launch(executed, name.c_str(), &arguments, &text);
            if (code != SUCCESS) device.lose(code, text.bytes);
            return code;
        }
        const unsigned wave = unsigned(world().library.wave);
        const std::string& wrong_unit = world().library.wrong_unit;
        const std::string unit = kernel->unit;
        const bool wrong = !wrong_unit.empty() && unit.substr(0, unit.find('.')) == wrong_unit;
        const shim::Launch how = {grid, block, shared, wave, order, world().max_shared, wrong_matrix != 0 || wrong, wrong};
        if (!world().library.record.empty()) write_launch(world().library.record, *kernel, how, pointers.data());
        const shim::Outcome outcome = shim::launch(*kernel, how, pointers.data());
        if (outcome.fault == shim::Fault::None) return int(SUCCESS);
        const int code = outcome.fault == shim::Fault::Address ? ILLEGAL_ADDRESS : LAUNCH_FAILED;
        device.lose(code, outcome.text);
        return code;
    });
}

} // namespace fake
