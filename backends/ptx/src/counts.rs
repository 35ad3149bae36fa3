//! What a launch executed, for tests of what kernels cost.
//!
//! Instructions are those of PTX, once for each warp that executes them, since that is what takes a
//! place in the schedule of a multiprocessor: lanes that are off cost as much as lanes that compute.
//! NVIDIA's assembler makes about as many machine instructions of them, but not the same.

use fakes::Range;

use crate::code::{Instruction, Kind, Space};
use crate::module::{Entry, Parameter};

/// Widths of a load by one thread: 1, 2, 4, 8 and 16 bytes.
pub const LOAD_WIDTHS: usize = 5;

/// Counts of a launch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Warps of all blocks.
    pub warps: u64,
    /// Executed instructions, each once per warp.
    pub instructions: u64,
    /// Executed `bar.sync`, each once per warp.
    pub barriers: u64,
    /// Executed `membar`, each once per warp.
    pub fences: u64,
    /// For each parameter, the bytes that threads loaded from its memory, which reaches to the address
    /// of another parameter or the end of the allocation: by loads of `1 << i` bytes. Zeros for a
    /// number.
    pub loaded: Vec<[u64; LOAD_WIDTHS]>,
}

impl Counts {
    /// Bytes loaded from memory of one of these parameters, by loads of `1 << i` bytes.
    #[must_use]
    pub fn loaded_from(&self, parameters: &[usize]) -> [u64; LOAD_WIDTHS] {
        let mut sums = [0; LOAD_WIDTHS];
        for widths in parameters.iter().filter_map(|&at| self.loaded.get(at)) {
            sums.iter_mut().zip(widths).for_each(|(sum, bytes)| *sum += bytes);
        }
        sums
    }
}

/// A launch of a kernel, and what it executed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Unit, such as `matmul_few.q4_0 (sm_75)`.
    pub unit: String,
    /// Kernel, such as `matmul_one`.
    pub kernel: String,
    /// Blocks in x, y and z.
    pub grid: [u32; 3],
    /// Threads per block.
    pub threads: u32,
    /// The most bytes that a thread has in flight from global memory, in the order of the text.
    pub in_flight: usize,
    /// What it executed.
    pub counts: Counts,
}

/// The most bytes that a thread has in flight from global memory, in the order of the text: of loads
/// that follow each other before anything reads one of their registers. The text is read from top to
/// bottom, whatever branches do. NVIDIA's assembler may move loads.
pub(crate) fn in_flight(code: &[Instruction]) -> usize {
    let (mut pending, mut bytes, mut most) = (Vec::new(), 0, 0);
    for instruction in code {
        if instruction.reads.iter().any(|register| pending.contains(register)) {
            pending.clear();
            bytes = 0;
        }
        if let Kind::Load(access) = &instruction.kind
            && access.space == Space::Global
        {
            pending.extend_from_slice(&instruction.writes);
            bytes += access.bytes * access.registers.len();
            most = most.max(bytes);
        }
    }
    most
}

/// Counts while a kernel runs.
#[derive(Debug)]
pub(crate) struct Counter {
    pub(crate) counts: Counts,
    /// Memory from the address of each parameter to the next, or to the end of its allocation.
    parts: Vec<Part>,
    /// The part of the last load: the next is mostly in the same.
    last: usize,
}

#[derive(Clone, Copy, Debug)]
struct Part {
    begin: u64,
    end: u64,
    parameter: usize,
}

impl Counter {
    /// Counts nothing yet.
    pub(crate) fn new(entry: &Entry, values: &[u64], ranges: &[Range]) -> Counter {
        let all = entry.parameters.iter().zip(values).enumerate();
        let part = |(parameter, (declared, &begin)): (usize, (&Parameter, &u64))| {
            let is_in = |range: &&Range| range.at <= begin && begin - range.at < range.len;
            let range = ranges.iter().find(is_in).filter(|_| declared.bytes == 8)?;
            Some(Part { begin, end: range.at + range.len, parameter })
        };
        let mut parts: Vec<Part> = all.filter_map(part).collect();
        parts.sort_unstable_by_key(|part| (part.begin, part.parameter));
        for next in 1..parts.len() {
            parts[next - 1].end = parts[next - 1].end.min(parts[next].begin);
        }
        let loaded = vec![[0; LOAD_WIDTHS]; values.len()];
        Counter { counts: Counts { loaded, ..Counts::default() }, parts, last: 0 }
    }

    /// A warp executes an instruction, with some or no lanes.
    #[inline]
    pub(crate) fn execute(&mut self, kind: &Kind) {
        self.counts.instructions += 1;
        self.counts.barriers += u64::from(matches!(kind, Kind::Barrier));
        self.counts.fences += u64::from(matches!(kind, Kind::Fence));
    }

    /// A thread loads `bytes` (a power of two up to 16) from global memory.
    #[inline]
    pub(crate) fn load(&mut self, address: u64, bytes: usize) {
        let holds = |part: &Part| part.begin <= address && address < part.end;
        if !self.parts.get(self.last).is_some_and(holds) {
            let found = self.parts.iter().position(holds);
            // A variable of the module belongs to no parameter.
            let Some(found) = found else { return };
            self.last = found;
        }
        let parameter = self.parts[self.last].parameter;
        self.counts.loaded[parameter][bytes.trailing_zeros() as usize] += bytes as u64;
    }
}
