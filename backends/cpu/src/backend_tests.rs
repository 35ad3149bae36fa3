use std::sync::Mutex;

use hal::{Device, DeviceId, TensorDesc, format::Format};

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
    let report = conformance::run_in_parallel(&devices, &conformance::without_long_prompts());
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
