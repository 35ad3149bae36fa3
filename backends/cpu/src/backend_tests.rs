use std::sync::Mutex;

use hal::op::{self, MAX_COUNTED_TOKENS};
use hal::{Device, DeviceId, Program, RowPlace, TensorDesc, format::Format};

use super::*;
use crate::options::Numa;
use crate::topology::tests::Machine;

/// Returns `options` with a notice handler, and the list to which the handler adds its messages.
fn collect_notices(options: CpuOptions) -> (CpuOptions, Arc<Mutex<Vec<String>>>) {
    let notices = Arc::new(Mutex::new(Vec::new()));
    let list = Arc::clone(&notices);
    let notice = Notice::new(move |text| list.lock().unwrap().push(text.to_owned()));
    (CpuOptions { notice, ..options }, notices)
}

/// A program of 32 adds that each add 1 to `n_tokens` rows, after a matrix product that tells the
/// backend how many tokens the program is for.
fn counting_program(device: &Device, n_tokens: usize) -> (Program, Tensor) {
    let alloc = |label, rows| device.alloc(label, TensorDesc::new(rows, 64, Format::F32)).unwrap();
    let (w, x, sum) = (alloc("w", 64), alloc("x", n_tokens), alloc("sum", n_tokens));
    let y = device.alloc("y", TensorDesc::new(n_tokens, 64, Format::F32)).unwrap();
    let mut queue = device.queue("fill").unwrap();
    queue.write(&w, &vec![0; 64 * 64 * 4]).unwrap();
    queue.write(&x, bytemuck::cast_slice(&vec![1_f32; n_tokens * 64])).unwrap();
    queue.write(&sum, &vec![0; n_tokens * 64 * 4]).unwrap();
    let mut recorder = device.record("count");
    recorder.push(op::MatMul { w, x: x.clone(), bias: None, y }).unwrap();
    for _ in 0..32 {
        recorder.push(op::Add { a: x.clone(), x: sum.clone() }).unwrap();
    }
    (recorder.finish().unwrap(), sum)
}

/// A program for a long prompt ends soon after its cancellation; one whose active neurons are counted
/// runs to its end.
#[test]
fn a_long_program_can_be_cancelled() {
    let device = Device::new(CpuBackend::new(CpuOptions::default()), DeviceId(0), Bytes::MAX);
    let mut queue = device.queue("run").unwrap();
    for n_tokens in [MAX_COUNTED_TOKENS, MAX_COUNTED_TOKENS + 1] {
        let (program, sum) = counting_program(&device, n_tokens);
        let mut replay = |cancel: bool| {
            let run = queue.replay_cancellable(&program, &AtomicBool::new(cancel)).map(drop);
            let mut first = [0.0];
            queue.read_f32(&sum.rows(0..1), &mut first).unwrap();
            (run, first[0])
        };
        assert_eq!(replay(false), (Ok(()), 32.0));
        let cancelled = n_tokens > MAX_COUNTED_TOKENS;
        let expected = if cancelled { (Err(Error::Cancelled), 32.0) } else { (Ok(()), 64.0) };
        assert_eq!(replay(true), expected, "{n_tokens} tokens");
    }
}

/// With two NUMA nodes, weights are spread over both.
#[test]
fn two_nodes_pass_the_suite() {
    let topology = Topology::read(Machine::two_sockets().root()).unwrap();
    let options =
        CpuOptions { threads: Some(4), numa: Some(Numa::Distribute), ..Default::default() };
    let devices = [0, 1].map(|number| {
        let (options, notices) = collect_notices(options.clone());
        let backend = CpuBackend::with_topology(&topology, options);
        assert_eq!((backend.n_threads(), backend.nodes.len()), (4, 2));
        // Binding fails, with one message, if this machine has no CPUs with the second node's
        // numbers.
        assert!(notices.lock().unwrap().len() <= 1);
        Device::new(backend, DeviceId(number), Bytes::MAX)
    });
    let report = conformance::run_in_parallel(&devices, &conformance::representative());
    assert_eq!(report.n_failed(), 0, "\n{report}");
}

#[test]
fn a_refused_binding_is_reported() {
    let options = CpuOptions { strict: true, threads: Some(2), ..Default::default() };
    let (options, notices) =
        collect_notices(CpuOptions { cpus: Some(vec![5000, 5001]), ..options });
    let backend = CpuBackend::with_topology(&Topology::uniform(6000), options);
    let notices = notices.lock().unwrap();
    assert!(notices[0].starts_with("threads are not bound to CPUs: "), "{notices:?}");
    assert_eq!((notices.len(), backend.n_threads()), (1, 2));
}

#[test]
#[cfg(target_os = "linux")] // which says in a file what is locked
fn memory_is_locked_or_the_failure_is_reported() {
    let (options, notices) =
        collect_notices(CpuOptions { threads: Some(1), lock: true, ..Default::default() });
    let device = Device::new(CpuBackend::new(options), DeviceId(0), Bytes::MAX);
    let locked = || {
        let status = crate::files::read_text(std::path::Path::new("/proc/self/status"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmLck:"))?;
        line.trim().strip_suffix(" kB")?.parse::<u64>().ok()
    };
    let Some(before) = locked() else { return };
    let tensor = device.alloc("x", TensorDesc::new(2 << 10, 1 << 10, Format::F32)).unwrap();
    let grown = locked().unwrap() >= before + (8 << 10);
    assert_eq!(grown, notices.lock().unwrap().is_empty());
    drop(tensor);
    assert!(locked().unwrap() < before + (8 << 10));
}

/// Rows of a stored pack that begin on pages, or where a table says, give the products of adjacent
/// rows.
#[test]
fn rows_on_pages_are_multiplied_as_adjacent_rows_are() {
    let device = Device::new(CpuBackend::new(CpuOptions::default()), DeviceId(0), Bytes::MAX);
    let (n_rows, n_cols) = (50, 512);
    let values = (0..n_rows * 3 * n_cols).map(|i| half::f16::from_f32((i % 97) as f32 - 48.0));
    let bytes: Vec<u8> = values.flat_map(|value| value.to_le_bytes()).collect();
    let source = Source::Owned(Arc::new(bytes));
    let source = HostRows::new(source, n_rows, 3 * n_cols, Format::F16).unwrap();
    let alloc =
        |label, rows, cols| device.alloc(label, TensorDesc::new(rows, cols, Format::F32)).unwrap();
    let (x, y) = (alloc("x", 1, n_cols), alloc("y", 1, n_rows));
    let mut queue = device.queue("run").unwrap();
    let input: Vec<f32> = (0..n_cols).map(|i| (i % 31) as f32).collect();
    queue.write(&x, bytemuck::cast_slice(&input)).unwrap();
    let mut products = |page_rows, in_table| {
        let pack = PackDesc { page_rows, ..PackDesc::whole(source.desc()) };
        let stored = hal::pack::stored_plain(&pack).unwrap();
        let mut packed = AlignedBytes::new(stored.len);
        let range = packed.range.clone();
        device.pack_into(&pack, &source, &mut packed.bytes[range]).unwrap();
        let bundle = if in_table {
            let (memory, table) = in_reverse(packed.as_ref(), 4096);
            device.adopt_rows(&pack, Arc::new(memory), table).unwrap()
        } else {
            device.adopt(&pack, Arc::new(packed)).unwrap()
        };
        let all = [0, 1, 2].map(|part| {
            let w = bundle.columns(part * n_cols..(part + 1) * n_cols);
            let mut recorder = device.record("product");
            recorder.push(op::MatMul { w, x: x.clone(), bias: None, y: y.clone() }).unwrap();
            queue.replay(&recorder.finish().unwrap()).unwrap().wait().unwrap();
            let mut out = vec![0.0; n_rows];
            queue.read_f32(&y, &mut out).unwrap();
            out
        });
        (stored.len, all)
    };
    let (adjacent, on_pages) = (products(false, false), products(true, false));
    assert_eq!((adjacent.0, on_pages.0), (n_rows * 3072, n_rows * 4096));
    assert_eq!(adjacent.1, on_pages.1);
    assert_eq!(adjacent.1, products(true, true).1);
    assert!(adjacent.1.iter().flatten().any(|&product| product != 0.0));
}

#[test]
fn places_outside_of_the_memory_are_rejected() {
    let device = Device::new(CpuBackend::new(CpuOptions::default()), DeviceId(0), Bytes::MAX);
    let pack =
        PackDesc { page_rows: true, ..PackDesc::whole(TensorDesc::new(3, 1536, Format::F16)) };
    let adopt = |start, n_rows| {
        let memory: SharedBytes = Arc::new(AlignedBytes::new(5 * 4096));
        let table = RowPlace::in_order(start, 4096, n_rows).unwrap();
        device.adopt_rows(&pack, memory, table)
    };
    assert!(adopt(8192, 3).is_ok());
    assert!(matches!(adopt(12288, 3), Err(Error::Shape { .. })));
    assert!(matches!(adopt(0, 4), Err(Error::Shape { .. })));
}

/// Rows `pitch` bytes apart, in reverse order behind an empty place, and their table.
fn in_reverse(rows: &[u8], pitch: usize) -> (AlignedBytes, RowTable) {
    let mut memory = AlignedBytes::new(rows.len() + pitch);
    let (start, n_rows) = (memory.range.start, rows.len() / pitch);
    let table = RowPlace::in_order(0, pitch as u64, n_rows).unwrap();
    for (number, (row, place)) in rows.chunks_exact(pitch).zip(&*table).enumerate() {
        let at = (n_rows - number) * pitch;
        memory.bytes[start + at..][..pitch].copy_from_slice(row);
        place.set(at as u64);
    }
    (memory, table)
}

/// Bytes whose address is a multiple of 64.
struct AlignedBytes {
    bytes: Vec<u8>,
    range: Range<usize>,
}

impl AlignedBytes {
    fn new(len: usize) -> AlignedBytes {
        let bytes = vec![0; len + ALIGN];
        let start = bytes.as_ptr().align_offset(ALIGN);
        AlignedBytes { bytes, range: start..start + len }
    }
}

impl AsRef<[u8]> for AlignedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[self.range.clone()]
    }
}
