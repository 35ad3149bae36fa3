use std::sync::Mutex;

use hal::{Device, DeviceId, TensorDesc, format::Format};

use super::*;
use crate::options::Numa;
use crate::topology::tests::Machine;

/// Options whose notices are collected.
fn heard(options: CpuOptions) -> (CpuOptions, Arc<Mutex<Vec<String>>>) {
    let heard = Arc::new(Mutex::new(Vec::new()));
    let ear = Arc::clone(&heard);
    let notice = Notice::new(move |text| ear.lock().unwrap().push(text.to_owned()));
    (CpuOptions { notice, ..options }, heard)
}

/// Two nodes: one ticket each, weights placed over both, results as on one node.
#[test]
fn two_nodes_pass_the_suite() {
    let topology = Topology::read(Machine::two_sockets().root()).unwrap();
    let options =
        CpuOptions { threads: Some(4), numa: Some(Numa::Distribute), ..Default::default() };
    let (options, heard) = heard(options);
    let backend = CpuBackend::on(&topology, options);
    assert_eq!((backend.n_threads(), backend.nodes.len()), (4, 2));
    // The second node's CPUs do not exist, unless this machine is large.
    assert!(heard.lock().unwrap().len() <= 1);
    conformance::check(&Device::new(backend, DeviceId(0), Bytes::MAX));
}

#[test]
fn what_the_system_refuses_is_told() {
    let options = CpuOptions { strict: true, threads: Some(2), ..Default::default() };
    let (options, heard) = heard(CpuOptions { cpus: Some(vec![5000, 5001]), ..options });
    let backend = CpuBackend::on(&Topology::alike(6000), options);
    let heard = heard.lock().unwrap();
    assert!(heard[0].starts_with("threads are not bound to CPUs: "), "{heard:?}");
    assert_eq!((heard.len(), backend.n_threads()), (1, 2));
}

#[test]
fn locked_memory_is_locked_or_it_is_told() {
    let (options, heard) = heard(CpuOptions { threads: Some(1), lock: true, ..Default::default() });
    let device = Device::new(CpuBackend::new(options), DeviceId(0), Bytes::MAX);
    let locked = || {
        let status = crate::files::text(std::path::Path::new("/proc/self/status"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmLck:"))?;
        line.trim().strip_suffix(" kB")?.parse::<u64>().ok()
    };
    let Some(before) = locked() else { return };
    let tensor = device.alloc("x", TensorDesc::new(2 << 10, 1 << 10, Format::F32)).unwrap();
    let grown = locked().unwrap() >= before + (8 << 10);
    assert_eq!(grown, heard.lock().unwrap().is_empty());
    drop(tensor);
    assert!(locked().unwrap() < before + (8 << 10));
}
