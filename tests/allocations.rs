//! Checks that decode allocates no host memory after the first tokens, and that hostile files do not
//! make the program allocate much. This is a separate program, because the allocator is global to a
//! process.
#![allow(unsafe_code, reason = "an allocator that counts")]
// Clippy exempts test functions from this lint, but not their helpers.
#![allow(clippy::unwrap_used)]

#[path = "allocations/hostile_keys.rs"]
mod hostile_keys;
#[path = "support/mod.rs"]
#[allow(dead_code, reason = "shared with the other tests")]
mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cpu::{CpuBackend, CpuOptions};
use hal::format::Format;
use hal::{Bytes, Device, DeviceId};
use thermocline::engine::{Engine, EngineOptions, Feed, LogitsRequest, Sequence};

use support::Tiny;

struct CountingAllocator;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);
/// Size of the largest allocation since a test set it to 0, in bytes.
static LARGEST_ALLOCATION: AtomicUsize = AtomicUsize::new(0);
/// Held by the running test, because the counters are global.
static ALONE: Mutex<()> = Mutex::new(());

// SAFETY: every call is passed to the system allocator with the same arguments; the counter does
// not allocate.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        LARGEST_ALLOCATION.fetch_max(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller upholds the contract of `GlobalAlloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the contract of `GlobalAlloc`.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        LARGEST_ALLOCATION.fetch_max(size, Ordering::Relaxed);
        // SAFETY: the caller upholds the contract of `GlobalAlloc`.
        unsafe { System.realloc(ptr, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Decodes a token of each sequence and returns the number of allocations.
fn decode(engine: &mut Engine, sequences: &mut [Sequence], token: u32, watch: bool) -> usize {
    let tokens = [token];
    let mut sum = 0.0;
    // The caller owns the list of feeds. This one is on the stack, so it allocates nothing.
    let before = match sequences {
        [one] => {
            let mut feeds = [Feed { sequence: one, tokens: &tokens, want: LogitsRequest::Last }];
            let before = ALLOCATIONS.load(Ordering::SeqCst);
            step(engine, &mut feeds, &mut sum, watch);
            before
        }
        [a, b, c] => {
            let mut feeds = [a, b, c].map(|sequence| Feed {
                sequence,
                tokens: &tokens,
                want: LogitsRequest::Last,
            });
            let before = ALLOCATIONS.load(Ordering::SeqCst);
            step(engine, &mut feeds, &mut sum, watch);
            before
        }
        _ => panic!("one or three sequences"),
    };
    let after = ALLOCATIONS.load(Ordering::SeqCst);
    assert!(sum.is_finite());
    after - before
}

fn step(engine: &mut Engine, feeds: &mut [Feed<'_>], sum: &mut f32, watch: bool) {
    let sink = &mut |_: usize, _: usize, logits: &[f32]| *sum += logits[0];
    let interrupt = AtomicBool::new(false);
    if watch {
        engine.step_watched(feeds, &interrupt, sink).unwrap();
    } else {
        engine.step(feeds, &interrupt, sink).unwrap();
    }
}

#[test]
fn a_decoded_token_allocates_nothing_on_the_cpu() {
    let _alone = ALONE.lock().unwrap();
    for (activation, rank) in [("relu", 0), ("silu", 0), ("relu", 32)] {
        let model = Tiny { activation, rank, format: Format::Q4_0, ..Tiny::default() }.model();
        for n in [1, 3] {
            let backend = CpuBackend::new(CpuOptions { threads: Some(2), ..Default::default() });
            let device = Device::new(backend, DeviceId(0), Bytes::MAX);
            let options = EngineOptions { n_ctx: 512, n_seq: n, ..EngineOptions::default() };
            let mut engine = Engine::load(
                Arc::clone(&model),
                vec![device],
                options,
                None,
                Arc::new(|_: &str| {}),
                &|_, _| {},
            )
            .unwrap();
            let mut sequences: Vec<_> = (0..n).map(|_| engine.new_sequence()).collect();
            // Buffers grow to their final sizes with the first tokens; a worker allocates when its
            // thread starts.
            for token in 0..4 {
                decode(&mut engine, &mut sequences, token, false);
                std::thread::sleep(Duration::from_millis(100));
            }
            // These tokens cross the borders of KV cache blocks.
            let counts: Vec<usize> =
                (4..80).map(|token| decode(&mut engine, &mut sequences, token, false)).collect();
            assert_eq!(counts, [0; 76], "{activation}, rank {rank}, {n} sequences");
            // The first watched step records programs.
            let watched = decode(&mut engine, &mut sequences, 4, true);
            assert!(watched > 0, "{activation}, rank {rank}, {n} sequences");
            let counts: Vec<usize> =
                (4..24).map(|token| decode(&mut engine, &mut sequences, token, true)).collect();
            assert_eq!(counts, [0; 20], "watched: {activation}, rank {rank}, {n} sequences");
            engine.stop_watching();
            let counts: Vec<usize> =
                (4..24).map(|token| decode(&mut engine, &mut sequences, token, false)).collect();
            assert_eq!(counts, [0; 20], "after the watch: {activation}, rank {rank}");
            assert!(engine.take_stats().unwrap().active > 0.0);
        }
    }
}
