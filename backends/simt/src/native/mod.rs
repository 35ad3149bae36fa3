//! [`Driver`] for both vendors: HIP has CUDA's calls under other names, so the differences are a
//! table of functions, how kernels are compiled, and how a thread selects its device ([`Vendor`]).

#![allow(unsafe_code, reason = "calls of a driver")]

mod calls;
mod handles;
mod health;

use std::borrow::Cow;
use std::ffi::{CString, c_int, c_uint, c_void};
use std::fmt;
use std::ptr;
use std::sync::Arc;

use hal::{Bytes, Error, MemoryReport, Result};

use crate::driver::{Arg, DevicePtr, Driver, Geometry, HostBlock};
use crate::error::failure;
use crate::facts::Facts;
pub use calls::{Calls, Function, GraphCalls, HandleCall, Launch, Raw};
pub use handles::{Event, Graph, Kernel, Module, Stream};
use handles::{Handle, OpenDevice};
use health::Health;
pub use health::Outcome;

/// The calls in which the vendors differ. An implementation releases the device when it is dropped,
/// after all objects created on the device.
pub trait Vendor: fmt::Debug + Send + Sync + 'static {
    /// The name of the call in [`Vendor::enter`], for messages.
    const ENTER: &'static str;
    /// Flags for coherent pinned host memory that the device can access.
    const HOST_FLAGS: c_uint;
    /// Option numbers for the compiler's error log when a module is loaded: the log's buffer and
    /// its length. `None` if the vendor has no such options.
    const LOG: Option<[c_int; 2]>;

    /// Makes this device current for the calling thread. Returns the driver's code.
    fn enter(&self) -> c_int;

    /// Identifies the driver's version and the kernels.
    fn version(&self) -> String;

    /// The driver's description of an error code: its name, and a sentence.
    fn text(&self, code: c_int) -> String;

    /// A unit of kernels in the form that the driver loads.
    ///
    /// # Errors
    /// [`Error::Driver`] if the unit does not exist or does not compile.
    fn image(&self, unit: &str) -> Result<Cow<'static, [u8]>>;
}

/// Maximum number of arguments of a kernel.
const MAX_ARGS: usize = 64;
/// Maximum length of the compiler's log, in bytes.
const LOG_BYTES: usize = 8 << 10;
/// Flag of streams that do not synchronise with the default stream.
const NON_BLOCKING: c_uint = 1;
/// Flag of events without a timestamp.
const NO_TIME: c_uint = 2;
/// Capture mode that does not restrict other threads.
const RELAXED: c_int = 2;

/// A device of a vendor.
#[derive(Debug)]
pub struct Native<V: Vendor> {
    shared: Arc<OpenDevice<V>>,
    facts: Facts,
}

impl<V: Vendor> Native<V> {
    /// Wraps a device opened by the vendor's crate.
    #[must_use]
    pub fn new(vendor: V, calls: Calls, facts: Facts) -> Native<V> {
        let health = Health::new(&facts.name);
        Native { shared: Arc::new(OpenDevice { vendor, calls, health }), facts }
    }

    fn graphs(&self) -> Result<&GraphCalls> {
        let calls = self.shared.make_current()?;
        calls.graphs.as_ref().ok_or_else(|| failure("graph", "this driver does not support graphs"))
    }

    fn check<F>(&self, call: &Function<F>, code: c_int) -> Result<()> {
        self.shared.check(call.name, code)
    }

    fn handle(&self, raw: Raw, destroy: HandleCall) -> Handle<V> {
        Handle::new(&self.shared, raw, destroy)
    }
}

impl<V: Vendor> Driver for Native<V> {
    type Stream = Stream<V>;
    type Event = Event<V>;
    type Module = Module<V>;
    type Function = Kernel;
    type Graph = Graph<V>;

    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn version(&self) -> String {
        self.shared.vendor.version()
    }

    fn memory(&self) -> Result<MemoryReport> {
        let calls = self.shared.make_current()?;
        match self.shared.memory() {
            Ok((free, total)) => {
                let [free, total] = [free, total].map(|n| Some(Bytes(n as u64)));
                Ok(MemoryReport { total, free })
            }
            Err(code) => {
                self.check(&calls.memory, code)?;
                Ok(MemoryReport { total: Some(self.facts.total), free: None })
            }
        }
    }

    fn alloc(&self, label: &str, len: u64) -> Result<DevicePtr> {
        let calls = self.shared.make_current()?;
        let mut at = 0;
        let size = usize::try_from(len).unwrap_or(usize::MAX);
        // SAFETY: the driver writes `at`, and only before it returns.
        let code = unsafe { (calls.alloc.call)(&raw mut at, size) };
        if Outcome::of(code) == Outcome::OutOfMemory {
            return Err(self.shared.out_of_memory(label, len));
        }
        self.check(&calls.alloc, code).map(|()| at)
    }

    fn free(&self, at: DevicePtr) {
        if let Ok(calls) = self.shared.make_current() {
            // SAFETY: `at` is memory of this device, which its owner frees once; both drivers wait
            // for earlier work. The next call reports a lost device.
            let _ = unsafe { (calls.free.call)(at) };
        }
    }

    fn alloc_host(&self, label: &str, len: usize) -> Result<HostBlock> {
        let calls = self.shared.make_current()?;
        let mut at: Raw = ptr::null_mut();
        // SAFETY: the driver writes `at`, and only before it returns.
        let code = unsafe { (calls.alloc_host.call)(&raw mut at, len, V::HOST_FLAGS) };
        if Outcome::of(code) == Outcome::OutOfMemory {
            // Pinnable host memory has run out; the driver does not report how much is left.
            let (device, label) = (self.facts.name.clone(), format!("{label} (pinned)"));
            let (requested, free) = (Bytes(len as u64), Bytes(0));
            return Err(Error::OutOfMemory { device, label, requested, free });
        }
        self.check(&calls.alloc_host, code)?;
        let mut device = 0;
        // SAFETY: `at` is the block just allocated, which is mapped because of its flags.
        let code = unsafe { (calls.device_pointer.call)(&raw mut device, at, 0) };
        if let Err(error) = self.check(&calls.device_pointer, code) {
            // SAFETY: no other code has the address yet.
            let _ = unsafe { (calls.free_host.call)(at) };
            return Err(error);
        }
        // SAFETY: the block has `len` bytes, and no other code has its address yet.
        unsafe { ptr::write_bytes(at.cast::<u8>(), 0, len) };
        Ok(HostBlock { host: at.cast(), device, len })
    }

    fn free_host(&self, block: HostBlock) {
        if let Ok(calls) = self.shared.make_current() {
            // SAFETY: the block came from `alloc_host`, and its owner frees it once.
            let _ = unsafe { (calls.free_host.call)(block.host.cast()) };
        }
    }

    fn stream(&self) -> Result<Stream<V>> {
        let calls = self.shared.make_current()?;
        let mut raw = ptr::null_mut();
        // SAFETY: the driver writes `raw`, and only before it returns.
        let code = unsafe { (calls.stream.call)(&raw mut raw, NON_BLOCKING) };
        self.check(&calls.stream, code)?;
        Ok(Stream(self.handle(raw, calls.destroy_stream)))
    }

    fn finish(&self, stream: &Stream<V>) -> Result<()> {
        let calls = self.shared.make_current()?;
        // SAFETY: the stream is live.
        let code = unsafe { (calls.finish.call)(stream.0.raw) };
        self.check(&calls.finish, code)
    }

    fn event(&self, timed: bool) -> Result<Event<V>> {
        let calls = self.shared.make_current()?;
        let mut raw = ptr::null_mut();
        let flags = if timed { 0 } else { NO_TIME };
        // SAFETY: the driver writes `raw`, and only before it returns.
        let code = unsafe { (calls.event.call)(&raw mut raw, flags) };
        self.check(&calls.event, code)?;
        Ok(Event(self.handle(raw, calls.destroy_event)))
    }

    fn record(&self, event: &Event<V>, stream: &Stream<V>) -> Result<()> {
        let calls = self.shared.make_current()?;
        // SAFETY: the event and the stream are live.
        let code = unsafe { (calls.record.call)(event.0.raw, stream.0.raw) };
        self.check(&calls.record, code)
    }

    fn has_happened(&self, event: &Event<V>) -> Result<bool> {
        let calls = self.shared.make_current()?;
        // SAFETY: the event is live.
        let code = unsafe { (calls.query.call)(event.0.raw) };
        if Outcome::of(code) == Outcome::Pending {
            return Ok(false);
        }
        self.check(&calls.query, code).map(|()| true)
    }

    fn wait(&self, event: &Event<V>) -> Result<()> {
        let calls = self.shared.make_current()?;
        // SAFETY: the event is live.
        let code = unsafe { (calls.wait.call)(event.0.raw) };
        self.check(&calls.wait, code)
    }

    fn seconds(&self, from: &Event<V>, to: &Event<V>) -> Result<f64> {
        let calls = self.shared.make_current()?;
        let mut milliseconds = 0.0f32;
        // SAFETY: both events are live; the driver writes the number, and only before it returns.
        let code = unsafe { (calls.elapsed.call)(&raw mut milliseconds, from.0.raw, to.0.raw) };
        self.check(&calls.elapsed, code)?;
        Ok(f64::from(milliseconds) / 1e3)
    }

    unsafe fn copy_in(
        &self,
        stream: &Stream<V>,
        dst: DevicePtr,
        src: *const u8,
        len: usize,
    ) -> Result<()> {
        let calls = self.shared.make_current()?;
        // SAFETY: the caller guarantees the conditions.
        let code = unsafe { (calls.copy_in.call)(dst, src.cast(), len, stream.0.raw) };
        self.check(&calls.copy_in, code)
    }

    unsafe fn copy_out(
        &self,
        stream: &Stream<V>,
        dst: *mut u8,
        src: DevicePtr,
        len: usize,
    ) -> Result<()> {
        let calls = self.shared.make_current()?;
        // SAFETY: the caller guarantees the conditions.
        let code = unsafe { (calls.copy_out.call)(dst.cast(), src, len, stream.0.raw) };
        self.check(&calls.copy_out, code)
    }

    unsafe fn copy(
        &self,
        stream: &Stream<V>,
        dst: DevicePtr,
        src: DevicePtr,
        len: usize,
    ) -> Result<()> {
        let calls = self.shared.make_current()?;
        // SAFETY: the caller guarantees the conditions.
        let code = unsafe { (calls.copy.call)(dst, src, len, stream.0.raw) };
        self.check(&calls.copy, code)
    }

    unsafe fn fill(
        &self,
        stream: &Stream<V>,
        dst: DevicePtr,
        word: u32,
        n_words: usize,
    ) -> Result<()> {
        let calls = self.shared.make_current()?;
        // SAFETY: the caller guarantees the conditions.
        let code = unsafe { (calls.fill.call)(dst, word, n_words, stream.0.raw) };
        self.check(&calls.fill, code)
    }

    fn module(&self, unit: &str) -> Result<Module<V>> {
        let image = self.shared.vendor.image(unit)?;
        let calls = self.shared.make_current()?;
        let mut log = vec![0u8; LOG_BYTES];
        let mut options = V::LOG.unwrap_or_default();
        // The second option's value is a number, not a pointer.
        let mut values: [Raw; 2] =
            [log.as_mut_ptr().cast(), ptr::without_provenance_mut::<c_void>(LOG_BYTES)];
        let n_options = if V::LOG.is_some() { 2 } else { 0 };
        let mut raw = ptr::null_mut();
        // SAFETY: the vendor's crate made a complete image; the image and the options live during
        // the call.
        let code = unsafe {
            let (options, values) = (options.as_mut_ptr(), values.as_mut_ptr());
            (calls.load.call)(&raw mut raw, image.as_ptr().cast(), n_options, options, values)
        };
        self.check(&calls.load, code).map_err(|error| with_log(error, unit, &log))?;
        Ok(Module { raw: self.handle(raw, calls.unload), _image: image })
    }

    fn function(&self, module: &Module<V>, name: &str) -> Result<Kernel> {
        let calls = self.shared.make_current()?;
        let text = CString::new(name)
            .map_err(|_| failure(calls.function.name, "the name contains NUL"))?;
        let mut raw = ptr::null_mut();
        // SAFETY: the module is live, and the name ends in NUL.
        let code = unsafe { (calls.function.call)(&raw mut raw, module.raw.raw, text.as_ptr()) };
        let named = |error| with_log(error, name, &[]);
        self.check(&calls.function, code).map_err(named).map(|()| Kernel(raw))
    }

    unsafe fn launch(
        &self,
        stream: &Stream<V>,
        function: Kernel,
        geometry: Geometry,
        args: &[Arg],
    ) -> Result<()> {
        let calls = self.shared.make_current()?;
        let mut pointers: [Raw; MAX_ARGS] = [ptr::null_mut(); MAX_ARGS];
        if args.len() > MAX_ARGS {
            return Err(failure(
                calls.launch.name,
                format!("{} arguments; at most {MAX_ARGS} are supported", args.len()),
            ));
        }
        for (pointer, arg) in pointers.iter_mut().zip(args) {
            *pointer = arg_pointer(arg);
        }
        let Geometry { grid: [x, y, z], block, shared } = geometry;
        // SAFETY: there is one pointer per argument, to a value of the type that the caller
        // guarantees; the driver copies the values before it returns.
        let code = unsafe {
            let (to, stream) = (pointers.as_mut_ptr(), stream.0.raw);
            let none = ptr::null_mut();
            (calls.launch.call)(function.0, x, y, z, block, 1, 1, shared, stream, to, none)
        };
        self.check(&calls.launch, code)
    }

    fn begin_capture(&self, stream: &Stream<V>) -> Result<()> {
        let calls = self.graphs()?;
        // SAFETY: the stream is live.
        let code = unsafe { (calls.begin_capture.call)(stream.0.raw, RELAXED) };
        self.check(&calls.begin_capture, code)
    }

    fn end_capture(&self, stream: &Stream<V>) -> Result<Graph<V>> {
        let calls = self.graphs()?;
        let mut graph = ptr::null_mut();
        // SAFETY: the stream is live; the driver writes the handle, and only before it returns.
        let code = unsafe { (calls.end_capture.call)(stream.0.raw, &raw mut graph) };
        self.check(&calls.end_capture, code)?;
        let recorded = self.handle(graph, calls.destroy_graph);
        let mut instance = ptr::null_mut();
        // SAFETY: the call above created the graph.
        let code = unsafe { (calls.instantiate.call)(&raw mut instance, recorded.raw, 0) };
        self.check(&calls.instantiate, code)?;
        Ok(Graph { instance: self.handle(instance, calls.destroy_instance), _recorded: recorded })
    }

    unsafe fn launch_graph(&self, stream: &Stream<V>, graph: &Graph<V>) -> Result<()> {
        let calls = self.graphs()?;
        // SAFETY: the graph and the stream are live; the caller guarantees the rest.
        let code = unsafe { (calls.launch_graph.call)(graph.instance.raw, stream.0.raw) };
        self.check(&calls.launch_graph, code)
    }
}

fn arg_pointer(arg: &Arg) -> Raw {
    match arg {
        Arg::Ptr(at) => ptr::from_ref(at).cast_mut().cast(),
        Arg::U32(number) => ptr::from_ref(number).cast_mut().cast(),
        Arg::F32(number) => ptr::from_ref(number).cast_mut().cast(),
    }
}

/// Adds the unit or kernel of the failed call, and the compiler's log, to an error.
fn with_log(error: Error, what: &str, log: &[u8]) -> Error {
    let Error::Driver { call, code, message } = error else { return error };
    let end = log.iter().position(|byte| *byte == 0).unwrap_or(log.len());
    let log = String::from_utf8_lossy(&log[..end]);
    let log = log.lines().map(str::trim).filter(|line| !line.is_empty());
    let message = [message.as_str()].into_iter().chain(log).collect::<Vec<_>>().join("; ");
    Error::Driver { call: format!("{call} of {what}"), code, message }
}
