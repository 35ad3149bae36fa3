//! Memory of the fakes: counters, and detection of accesses outside of an allocation.

use std::ptr;

use thermocline_fakes::Vendor;

use super::device::{Arg, Device, ILLEGAL_ADDRESS, OUT_OF_MEMORY, open};

fn devices(ordinal: i32) -> impl Iterator<Item = Device> {
    [Vendor::Cuda, Vendor::Hip].into_iter().filter_map(move |vendor| open(vendor, ordinal))
}

#[test]
fn copies_outside_of_an_allocation_lose_the_device() {
    for device in devices(6) {
        let x = device.alloc(100);
        assert_eq!(device.try_write(x, &[7; 100]), 0);
        assert_eq!(device.read(x + 4 * 90, 10), [7; 10]);
        assert_eq!(device.try_write(x + 4, &[7; 100]), ILLEGAL_ADDRESS);
        // Every call now fails until the test resets the device.
        assert_eq!(device.finish(), ILLEGAL_ADDRESS);
        assert_eq!(device.try_alloc(4), Err(ILLEGAL_ADDRESS));
        device.fake.set("6:reset=1");
        let x = device.alloc(100);
        assert_eq!(device.free(x), 0);
        assert_eq!(device.try_write(x, &[7; 10]), ILLEGAL_ADDRESS, "freed memory");
        device.fake.set("6:reset=1");
        assert_eq!(device.try_write(64, &[7]), ILLEGAL_ADDRESS, "an address without memory");
        device.fake.set("6:reset=1");
    }
}

#[test]
fn kernels_that_write_outside_an_allocation_lose_the_device() {
    let past = ("shim_faults", "past_an_allocation");
    for device in devices(6) {
        // A whole number of pages, so that the next page is a guard.
        let n = 2048;
        let x = device.alloc(n);
        assert_eq!(device.run(past, 1, 64, 0, &[Arg::At(x), Arg::Word(n as u32 - 64)]), 0);
        assert_eq!(device.run(past, 1, 64, 0, &[Arg::At(x), Arg::Word(n as u32)]), ILLEGAL_ADDRESS);
        device.fake.set("6:reset=1");
        // A write to the rest of the last page causes no page fault; freeing the memory detects it.
        let x = device.alloc(n - 20);
        assert_eq!(device.run(past, 1, 64, 0, &[Arg::At(x), Arg::Word(n as u32 - 64)]), 0);
        assert_eq!(device.free(x), ILLEGAL_ADDRESS);
        device.fake.set("6:reset=1");
    }
}

#[test]
fn memory_is_counted() {
    for device in devices(7) {
        device.fake.set("7:memory=1048576");
        let half = device.try_alloc(600_000).expect("the allocation fits");
        assert_eq!(device.try_alloc(600_000), Err(OUT_OF_MEMORY));
        assert_eq!(device.try_alloc(usize::MAX), Err(OUT_OF_MEMORY));
        let (mut free, mut total) = (0usize, 0usize);
        // SAFETY: types as in the vendors' headers.
        let code = unsafe {
            let ask: unsafe extern "C" fn(*mut usize, *mut usize) -> i32 =
                device.find("cuMemGetInfo_v2", "hipMemGetInfo");
            ask(&raw mut free, &raw mut total)
        };
        assert_eq!((code, total, free), (0, 1 << 20, (1 << 20) - 600_064));
        assert_eq!(device.free(half), 0);
        assert_eq!(device.fake.count(7, "used"), 0);
        assert_ne!(device.free(half), 0, "freed twice");
        device.fake.set("7:reset=1");
    }
}

#[test]
fn new_memory_is_nan_and_pinned_memory_is_host_memory() {
    for device in devices(6) {
        let x = device.alloc(333);
        assert!(device.read(x, 333).iter().all(|word| f32::from_bits(*word).is_nan()));
        let (mut host, mut at) = (ptr::null_mut(), 0usize);
        // SAFETY: types as in the vendors' headers, and memory of the requested size.
        unsafe {
            let alloc: unsafe extern "C" fn(*mut super::device::Raw, usize, u32) -> i32 =
                device.find("cuMemHostAlloc", "hipHostMalloc");
            assert_eq!(alloc(&raw mut host, 4096, 3), 0);
            let find: unsafe extern "C" fn(*mut usize, super::device::Raw, u32) -> i32 =
                device.find("cuMemHostGetDevicePointer_v2", "hipHostGetDevicePointer");
            assert_eq!(find(&raw mut at, host, 0), 0);
            host.cast::<u32>().write(5);
            let other = ptr::with_exposed_provenance_mut(x);
            assert_ne!(find(&raw mut at, other, 0), 0, "not pinned");
        }
        assert_eq!(device.read(at, 1), [5]);
        assert_eq!(device.call("cuMemFreeHost", "hipHostFree", host), 0);
    }
}
