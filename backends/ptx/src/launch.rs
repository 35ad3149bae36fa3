//! A launch: its blocks, some of which run in turn.

use std::time::{Duration, Instant};

use fakes::{Geometry, Range};

use crate::code::Special;
use crate::counts::Counter;
use crate::fault::{Fault, FaultKind};
use crate::memory::Memory;
use crate::module::{Entry, Module};
use crate::order::{Order, Published};
use crate::registers::{Class, LANES};
use crate::shared::Shared;
use crate::warp::{Located, Stop, Warp};

/// Blocks that run in turn, so that a block that waits does not stop the others.
const RESIDENT: u64 = 3;
/// Instructions of a warp before another block gets a turn.
const TURN: u64 = 50_000;
/// Instructions of the warps of a launch; the largest of the suite execute about a tenth.
const MAX_INSTRUCTIONS: u64 = 4_000_000_000;
/// How long a warp that polls pauses; the host needs the CPU to answer.
const PAUSE: Duration = Duration::from_micros(5);
/// Shared memory of a block without an opt-in, in bytes.
const MAX_SHARED: u64 = 48 << 10;

/// What the warps of a block use.
pub(crate) struct Surroundings<'a> {
    pub(crate) entry: &'a Entry,
    pub(crate) memory: &'a Memory,
    pub(crate) shared: &'a mut Shared,
    pub(crate) order: &'a mut Order,
    pub(crate) published: &'a mut Published,
    pub(crate) started: Instant,
    /// Counts what is executed, if a test wants to know.
    pub(crate) counter: Option<&'a mut Counter>,
}

/// A running block. It is used again for the next.
#[derive(Default)]
struct Block {
    index: [u32; 3],
    warps: Vec<Warp>,
    shared: Shared,
    order: Order,
    is_running: bool,
    /// The warp that is next.
    turn: usize,
}

/// Runs a kernel to its end, and counts what it executes if there is a counter.
///
/// # Errors
/// The first fault.
///
/// # Safety
/// All `ranges` are memory of this process that is readable and writable until the call returns.
#[allow(unsafe_code, reason = "kernels access memory by address")]
pub(crate) unsafe fn launch(
    module: &Module,
    entry: &Entry,
    geometry: &Geometry,
    values: &[u64],
    ranges: &[Range],
    mut counter: Option<&mut Counter>,
) -> Result<(), Box<Fault>> {
    let located = |block: [u32; 3], at: Located| {
        let text = module.text.lines().nth(at.line.saturating_sub(1) as usize).unwrap_or("");
        let text = if at.line == 0 { "" } else { text.trim() };
        Box::new(Fault {
            kind: at.kind,
            unit: module.unit.clone(),
            entry: entry.name.clone(),
            line: at.line,
            text: text.to_owned(),
            block,
            thread: at.thread,
        })
    };
    let refused = |text: String| {
        located([0; 3], Located { kind: FaultKind::Geometry(text), line: 0, thread: 0 })
    };
    check(entry, geometry, values).map_err(refused)?;
    // SAFETY: passed on.
    let memory = unsafe { Memory::new(ranges, &module.variables) };
    let (mut published, started) = (Published::default(), Instant::now());
    let mut order = Sequence::new(geometry);
    let mut blocks: Vec<Block> = (0..RESIDENT.min(order.n)).map(|_| Block::default()).collect();
    let mut left = MAX_INSTRUCTIONS;
    loop {
        let mut is_idle = true;
        for block in &mut blocks {
            if !block.is_running {
                let Some(index) = order.next() else { continue };
                block.start(entry, geometry, values, index);
                if let Some(counter) = &mut counter {
                    counter.counts.warps += block.warps.len() as u64;
                }
            }
            is_idle = false;
            let mut budget = TURN.min(left);
            let given = budget;
            let mut around = Surroundings {
                entry,
                memory: &memory,
                shared: &mut block.shared,
                order: &mut block.order,
                published: &mut published,
                started,
                counter: counter.as_deref_mut(),
            };
            let done = run(&mut block.warps, &mut block.turn, &mut around, &mut budget);
            block.is_running = !done.map_err(|at| located(block.index, at))?;
            left -= given - budget;
            if left == 0 {
                let text = format!("{MAX_INSTRUCTIONS} instructions of warps were executed");
                return Err(located(
                    block.index,
                    Located { kind: FaultKind::Endless(text), line: 0, thread: 0 },
                ));
            }
        }
        if is_idle {
            return Ok(());
        }
    }
}

/// Runs the warps of a block in turn until the budget is used or a warp polls; true once all have
/// returned.
fn run(
    warps: &mut [Warp],
    turn: &mut usize,
    around: &mut Surroundings<'_>,
    budget: &mut u64,
) -> Result<bool, Located> {
    let n = warps.len();
    loop {
        let (mut n_returned, mut n_waiting) = (0, 0);
        for _ in 0..n {
            *turn = (*turn + 1) % n;
            let warp = &mut warps[*turn];
            if warp.is_at_barrier {
                n_waiting += 1;
                continue;
            }
            match warp.run(around, budget)? {
                Stop::Barrier => n_waiting += 1,
                Stop::Returned => n_returned += 1,
                Stop::Turn => {
                    if *budget > 0 {
                        std::thread::sleep(PAUSE);
                    }
                    return Ok(false);
                }
            }
        }
        if n_returned == n {
            return Ok(true);
        }
        if n_returned + n_waiting == n {
            around.shared.barrier();
            around.order.barrier();
            warps.iter_mut().filter(|warp| warp.is_at_barrier).for_each(Warp::pass_barrier);
        }
    }
}

/// Whether a launch fits a kernel.
fn check(entry: &Entry, geometry: &Geometry, values: &[u64]) -> Result<(), String> {
    let [threads, y, z] = geometry.block;
    if (y, z) != (1, 1) || threads == 0 || threads > 1024 {
        return Err(format!("blocks of {threads} x {y} x {z} threads"));
    }
    if let Some(most) = entry.max_threads.filter(|most| threads > *most) {
        return Err(format!("blocks of {threads} threads, and .maxntid is {most}"));
    }
    let shared = entry.shared + geometry.shared;
    if shared > MAX_SHARED {
        return Err(format!("{shared} bytes of shared memory"));
    }
    if values.len() != entry.parameters.len() {
        return Err(format!("{} arguments instead of {}", values.len(), entry.parameters.len()));
    }
    Ok(())
}

impl Block {
    fn start(&mut self, entry: &Entry, geometry: &Geometry, values: &[u64], index: [u32; 3]) {
        let n_threads = geometry.block[0];
        let n_warps = (n_threads as usize).div_ceil(LANES);
        self.warps.resize_with(n_warps, Warp::default);
        for (number, warp) in self.warps.iter_mut().enumerate() {
            warp.start(entry, number, n_threads);
            for &(special, register) in &entry.specials {
                for lane in 0..LANES {
                    let value =
                        value_of(special, geometry, values, index, (number * LANES + lane) as u32);
                    match register.class {
                        Class::Word => {
                            warp.registers.words[register.at as usize][lane] = value as u32
                        }
                        Class::Double => warp.registers.doubles[register.at as usize][lane] = value,
                        Class::Predicate => {}
                    }
                }
            }
        }
        self.shared.start(entry.shared + geometry.shared, n_warps);
        self.order.start(n_warps);
        (self.index, self.is_running) = (index, true);
        // Not always the first warp first.
        self.turn = (index[0] ^ index[1] ^ geometry.seed as u32) as usize % n_warps;
    }
}

fn value_of(
    special: Special,
    geometry: &Geometry,
    values: &[u64],
    index: [u32; 3],
    thread: u32,
) -> u64 {
    match special {
        Special::Parameter(number) => values[number],
        Special::Thread(0) => u64::from(thread),
        Special::Thread(_) => 0,
        Special::Block(axis) => u64::from(index[axis]),
        Special::BlockSize(axis) => u64::from(geometry.block[axis]),
        Special::GridSize(axis) => u64::from(geometry.grid[axis]),
        Special::Lane => u64::from(thread) % LANES as u64,
    }
}

/// The blocks of a launch: in order, or in a pseudo-random order that a seed selects.
struct Sequence {
    n: u64,
    grid: [u32; 3],
    given: u64,
    first: u64,
    /// Has no common divisor with `n`, so each block comes once.
    step: u64,
}

impl Sequence {
    fn new(geometry: &Geometry) -> Sequence {
        let n: u64 = geometry.grid.iter().map(|&n| u64::from(n)).product();
        let (mut first, mut step) = (0, 1);
        if geometry.seed != 0 && n > 1 {
            let random = geometry.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            first = random % n;
            step = (random >> 32) % n;
            while common_divisor(step, n) != 1 {
                step += 1;
            }
        }
        Sequence { n, grid: geometry.grid, given: 0, first, step }
    }
}

fn common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { common_divisor(b, a % b) }
}

impl Iterator for Sequence {
    type Item = [u32; 3];

    fn next(&mut self) -> Option<[u32; 3]> {
        if self.given == self.n {
            return None;
        }
        let number = (u128::from(self.given) * u128::from(self.step) + u128::from(self.first))
            % u128::from(self.n);
        self.given += 1;
        let (number, [x, y, _]) = (number as u64, self.grid.map(u64::from));
        Some([number % x, number / x % y, number / x / y].map(|index| index as u32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_block_comes_once() {
        for seed in [0, 1, 12345] {
            let geometry = Geometry { grid: [4, 3, 5], block: [64, 1, 1], shared: 0, seed };
            let mut found: Vec<[u32; 3]> = Sequence::new(&geometry).collect();
            found.sort_unstable();
            found.dedup();
            assert_eq!(found.len(), 60);
        }
    }
}
