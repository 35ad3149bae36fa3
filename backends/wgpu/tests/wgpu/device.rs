//! Tests of opening a device, its memory and its loss, and of the cache of compiled shaders.

use std::sync::Arc;

use hal::format::Format;
use hal::{Backend, Bytes, Device, DeviceId, Error, TensorDesc};
use thermocline_wgpu::{Options, adapters};

use crate::support::{BUDGET, add_repeatedly, device, open, read, row};

#[test]
fn device_names_are_distinct() {
    let found = adapters();
    for (i, adapter) in found.iter().enumerate() {
        assert!(!adapter.description().is_empty());
        assert!(found[..i].iter().all(|other| other.name() != adapter.name()));
        let later = &found[i..];
        assert!(!adapter.is_software() || later.iter().all(|other| other.is_software()));
    }
}

#[test]
fn the_ledger_counts_the_size_of_buffers() {
    let Some(backend) = open(&Options::default()) else { return };
    let device = Device::new(Arc::clone(&backend) as _, DeviceId(5), BUDGET);
    let used = device.ledger().used();
    assert!(
        used == backend.overhead_bytes() && used > Bytes(0),
        "opening a device allocates the tables of the formats"
    );
    let small = Device::new(backend, DeviceId(6), Bytes(100));
    assert!(matches!(small.alloc_f32("too large", 1, 1), Err(Error::OutOfMemory { .. })));
    for (n_rows, n_cols, format, bytes) in [
        (1, 1, Format::F32, 256),
        (3, 7, Format::F16, 256),
        (64, 33, Format::F16, 64 * 68),
        (5, 96, Format::Q8_0, 768),
        (1000, 64, Format::F32, 256_000),
    ] {
        let desc = TensorDesc::new(n_rows, n_cols, format);
        assert_eq!(device.alloc_size(&desc), Bytes(bytes), "{desc}");
        let before = device.ledger().used();
        let tensor = device.alloc("tensor", desc).expect("it fits");
        assert_eq!(device.ledger().used() - before, Bytes(bytes), "{desc}");
        drop(tensor);
    }
}

#[test]
fn reported_memory_is_plausible() {
    let Some(device) = device() else { return };
    let report = device.memory().expect("a report");
    let (total, free) = (report.total, report.free);
    assert!(total.is_none_or(|total| total > Bytes(1 << 20) && free.is_none_or(|f| f <= total)));
}

/// Allocating a tensor larger than any buffer is an error, not a panic.
#[test]
fn a_tensor_larger_than_any_buffer_is_refused() {
    let Some(backend) = open(&Options::default()) else { return };
    let device = Device::new(Arc::clone(&backend) as _, DeviceId(3), Bytes::MAX);
    let desc = TensorDesc::new(1 << 30, 1 << 20, Format::F32);
    let refused = device.alloc("too large", desc);
    assert!(
        matches!(refused, Err(Error::Driver { .. } | Error::OutOfMemory { .. })),
        "{refused:?}"
    );
    assert_eq!(device.ledger().used(), backend.overhead_bytes());
}

/// After the loss of a device every call returns the same error, and every wait ends.
#[test]
fn every_call_on_a_lost_device_is_an_error() {
    let Some(backend) = open(&Options::default()) else { return };
    let device = Device::new(Arc::clone(&backend) as _, DeviceId(2), BUDGET);
    let mut queue = device.queue("lost").expect("a queue");
    let (a, x) = (row(&device, &mut queue, &[1.0; 8]), row(&device, &mut queue, &[2.0; 8]));
    let program = add_repeatedly(&device, &a, &x, 1);
    let run = queue.replay(&program).expect("a run");
    backend.mark_lost("pulled out");
    let lost = |error: Error| matches!(error, Error::DeviceLost { .. });
    assert!(run.wait().is_err_and(lost));
    assert!(queue.replay(&program).is_err_and(lost));
    assert!(queue.finish().is_err_and(lost));
    assert!(queue.write(&x, &[0; 32]).is_err_and(lost));
    assert!(device.alloc_f32("late", 1, 8).is_err_and(lost));
    assert!(device.memory().is_err_and(lost));
    assert!(device.queue("late").is_err_and(lost));
    assert!(backend.memory().is_err_and(lost));
}

#[test]
fn compiled_shaders_are_cached_if_the_driver_exports_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let options = Options { pipeline_cache: Some(folder.path().to_owned()), ..Options::default() };
    let run = || {
        let device = Device::new(open(&options)?, DeviceId(4), BUDGET);
        let mut queue = device.queue("cache").expect("a queue");
        let (a, x) = (row(&device, &mut queue, &[1.0; 8]), row(&device, &mut queue, &[2.0; 8]));
        queue.replay(&add_repeatedly(&device, &a, &x, 3)).expect("a run").wait().expect("its end");
        assert_eq!(read(&mut queue, &x, 8), [5.0; 8]);
        Some(())
    };
    if run().is_none() {
        return;
    }
    let files = || {
        std::fs::read_dir(folder.path()).expect("the folder").map(|f| f.expect("an entry").path())
    };
    let written = || {
        let time = |file: std::path::PathBuf| file.metadata().and_then(|file| file.modified());
        files().map(|file| time(file).expect("a time")).max()
    };
    let before = written();
    run();
    assert_eq!(written(), before, "the cache is used, so nothing is added");
    for bytes in [&b"TCWGPU01 damaged"[..], b"", &[0; 4096]] {
        for file in files() {
            // A damaged cache is not used.
            std::fs::write(&file, bytes).expect("a write");
        }
        run();
        let is_replaced =
            |file: std::path::PathBuf| std::fs::read(file).is_ok_and(|file| file != bytes);
        assert!(files().all(is_replaced), "a damaged cache is replaced");
    }
    assert!(files().all(|file| file.extension().is_none()), "no temporary file is left");
    eprintln!("{} files in the cache", files().count());
}
