//! A warp: 32 threads with one program counter each.
//!
//! Of the lanes that can go on, those with the lowest program counter run, together, until a branch
//! parts them or they reach the next lane. So lanes that parted meet again where the code joins. A
//! `.sync` instruction and a barrier wait for the lanes they name.

use std::sync::atomic::Ordering;

use crate::code::{Guard, Instruction, Kind};
use crate::fault::FaultKind;
use crate::launch::Surroundings;
use crate::module::Entry;
use crate::ops::Places;
use crate::registers::{Class, LANES, Registers, Value as _};

/// Why a warp stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// All its threads wait at a barrier or have returned.
    Barrier,
    Returned,
    /// Others get a turn.
    Turn,
}

#[derive(Debug, Default)]
pub(crate) struct Warp {
    pub(crate) number: usize,
    pub(crate) registers: Registers,
    /// Lanes that have not returned.
    live: u32,
    /// Lanes that wait at a `.sync` instruction or a barrier, at their program counter.
    waiting: u32,
    at: [u32; LANES],
    pub(crate) is_at_barrier: bool,
}

/// Where a fault happened.
#[derive(Debug)]
pub(crate) struct Located {
    pub(crate) kind: FaultKind,
    pub(crate) line: u32,
    /// Thread in the block.
    pub(crate) thread: u32,
}

/// What happens after an instruction.
enum Next {
    Go,
    Jump(u32),
    /// The lanes that run have changed.
    Choose,
    Yield,
}

/// The lowest lane of a mask.
pub(crate) fn first(lanes: u32) -> usize {
    lanes.trailing_zeros() as usize
}

/// The lanes of a mask.
pub(crate) fn each(lanes: u32) -> impl Iterator<Item = usize> {
    (0..LANES).filter(move |lane| lanes >> lane & 1 == 1)
}

impl Warp {
    /// Begins a block: all registers are unwritten.
    pub(crate) fn start(&mut self, entry: &Entry, number: usize, n_threads: u32) {
        let counts = entry.counts;
        let registers = &mut self.registers;
        registers.words.resize(counts.words as usize + entry.words.len(), [0; LANES]);
        registers.doubles.resize(counts.doubles as usize + entry.doubles.len(), [0; LANES]);
        registers.predicates.resize(counts.predicates as usize + entry.predicates.len(), 0);
        registers.written.clear();
        registers.written.resize(counts.total(), 0);
        for (to, &value) in registers.words[counts.words as usize..].iter_mut().zip(&entry.words) {
            *to = [value; LANES];
        }
        for (to, &value) in
            registers.doubles[counts.doubles as usize..].iter_mut().zip(&entry.doubles)
        {
            *to = [value; LANES];
        }
        registers.predicates[counts.predicates as usize..].copy_from_slice(&entry.predicates);
        let left = n_threads - (number * LANES) as u32;
        self.live = if left >= LANES as u32 { u32::MAX } else { (1 << left) - 1 };
        self.number = number;
        (self.waiting, self.at, self.is_at_barrier) = (0, [0; LANES], false);
    }

    /// Goes on behind a barrier.
    pub(crate) fn pass_barrier(&mut self) {
        self.is_at_barrier = false;
        self.waiting = 0;
        for at in &mut self.at {
            *at += 1;
        }
    }

    /// Runs until the warp stops, and takes the number of instructions from `budget`.
    pub(crate) fn run(
        &mut self,
        around: &mut Surroundings<'_>,
        budget: &mut u64,
    ) -> Result<Stop, Located> {
        let entry = around.entry;
        let code = &entry.code;
        loop {
            let ready = self.live & !self.waiting;
            if ready == 0 {
                return self.stop(around);
            }
            let mut at = each(ready).map(|lane| self.at[lane]).min().unwrap_or(0);
            let lanes = each(ready)
                .filter(|&lane| self.at[lane] == at)
                .fold(0, |lanes, lane| lanes | 1 << lane);
            // Where other lanes are, which these meet.
            let until = each(ready & !lanes).map(|lane| self.at[lane]).min().unwrap_or(u32::MAX);
            loop {
                let instruction = &code[at as usize];
                let next = self.step(around, instruction, at, lanes);
                let next = next.map_err(|(kind, lane)| Located {
                    kind,
                    line: instruction.line,
                    thread: (self.number * LANES + lane) as u32,
                })?;
                *budget = budget.saturating_sub(1);
                let mut yields = *budget == 0;
                match next {
                    Next::Go => at += 1,
                    Next::Jump(to) => at = to,
                    Next::Choose if yields => return Ok(Stop::Turn),
                    Next::Choose => break,
                    Next::Yield => {
                        at += 1;
                        yields = true;
                    }
                }
                if yields || at >= until {
                    for lane in each(lanes) {
                        self.at[lane] = at;
                    }
                    if yields {
                        return Ok(Stop::Turn);
                    }
                    break;
                }
            }
        }
    }

    /// No lane can go on.
    fn stop(&mut self, around: &Surroundings<'_>) -> Result<Stop, Located> {
        if self.live == 0 {
            return Ok(Stop::Returned);
        }
        let code = &around.entry.code;
        let lane = first(self.live);
        let at = self.at[lane];
        let (instruction, together) =
            (&code[at as usize], each(self.live).all(|lane| self.at[lane] == at));
        if together && matches!(instruction.kind, Kind::Barrier) {
            self.is_at_barrier = true;
            return Ok(Stop::Barrier);
        }
        let mut lines: Vec<u32> =
            each(self.live).map(|lane| code[self.at[lane] as usize].line).collect();
        lines.dedup();
        let text = format!("the threads of a warp wait for each other at the lines {lines:?}");
        let is_barrier = matches!(instruction.kind, Kind::Barrier);
        let kind = if is_barrier { FaultKind::Barrier(text) } else { FaultKind::Mask(text) };
        Err(Located { kind, line: instruction.line, thread: (self.number * LANES + lane) as u32 })
    }

    /// Executes one instruction. An error has the lane.
    fn step(
        &mut self,
        around: &mut Surroundings<'_>,
        instruction: &Instruction,
        at: u32,
        lanes: u32,
    ) -> Result<Next, (FaultKind, usize)> {
        let on = match instruction.guard {
            None => lanes,
            Some(Guard { predicate, is_negated, register }) => {
                self.check_written(register, lanes)?;
                let value = self.registers.predicates[predicate as usize];
                lanes & if is_negated { !value } else { value }
            }
        };
        for &register in &instruction.reads {
            self.check_written(register, on)?;
        }
        around.entry.executed[at as usize].store(true, Ordering::Relaxed);
        if let Some(counter) = &mut around.counter {
            counter.execute(&instruction.kind);
        }
        let next = match &instruction.kind {
            Kind::Compute(compute, places) => {
                if let Some(divisor) = compute.divisor {
                    self.check_divisor(compute.classes[divisor], places, divisor, on)?;
                }
                (compute.run)(&mut self.registers, places, on);
                Next::Go
            }
            Kind::Branch(target) => return Ok(self.branch(at, *target, lanes, on)),
            Kind::Exit => {
                around.order.exit(self.number, on).map_err(|kind| (kind, first(on)))?;
                self.live &= !on;
                if on == lanes {
                    return Ok(Next::Choose);
                }
                return Ok(self.branch(at, at, lanes, on));
            }
            Kind::Barrier | Kind::Shuffle { .. } | Kind::Ballot { .. } | Kind::Matrix(..) => {
                return self.meet(around, instruction, at, lanes, on);
            }
            Kind::Fence => {
                around.order.fence(self.number, on);
                Next::Go
            }
            Kind::Sleep => Next::Yield,
            Kind::Timer(to) => {
                let now = around.started.elapsed().as_nanos() as u64;
                for lane in each(on) {
                    self.registers.set(*to, lane, now);
                }
                Next::Go
            }
            Kind::Load(access) => {
                self.load(around, access, on)?;
                Next::Go
            }
            Kind::Store(access) => {
                self.store(around, access, on)?;
                Next::Go
            }
            Kind::Prefetch(register, offset) => {
                self.prefetch(around, *register, *offset, on)?;
                Next::Go
            }
            Kind::Atomic { .. } => {
                self.atomic(around, instruction, on)?;
                Next::Go
            }
        };
        for &register in &instruction.writes {
            self.registers.written[register as usize] |= on;
        }
        Ok(next)
    }

    #[inline]
    fn check_written(&self, register: u32, lanes: u32) -> Result<(), (FaultKind, usize)> {
        let missing = lanes & !self.registers.written[register as usize];
        if missing == 0 {
            return Ok(());
        }
        let text = "a register is read that this thread has not written";
        Err((FaultKind::Uninitialised(text.to_owned()), first(missing)))
    }

    fn check_divisor(
        &self,
        class: Class,
        places: &Places,
        divisor: usize,
        on: u32,
    ) -> Result<(), (FaultKind, usize)> {
        let is_zero = |lane: usize| match class {
            Class::Word => u32::load(&self.registers, places[divisor])[lane] == 0,
            Class::Double => u64::load(&self.registers, places[divisor])[lane] == 0,
            Class::Predicate => false,
        };
        match each(on).find(|&lane| is_zero(lane)) {
            None => Ok(()),
            Some(lane) => Err((FaultKind::Operand("a division by zero".to_owned()), lane)),
        }
    }

    /// `on` of `lanes` go to `target`.
    fn branch(&mut self, at: u32, target: u32, lanes: u32, on: u32) -> Next {
        if on == lanes {
            return Next::Jump(target);
        }
        if on == 0 {
            return Next::Go;
        }
        for lane in each(lanes) {
            self.at[lane] = if on >> lane & 1 == 1 { target } else { at + 1 };
        }
        Next::Choose
    }

    /// An instruction that several lanes execute together: those that arrive wait for the others.
    fn meet(
        &mut self,
        around: &mut Surroundings<'_>,
        instruction: &Instruction,
        at: u32,
        lanes: u32,
        on: u32,
    ) -> Result<Next, (FaultKind, usize)> {
        for lane in each(lanes) {
            self.at[lane] = if on >> lane & 1 == 1 { at } else { at + 1 };
        }
        let here = on
            | each(self.waiting)
                .filter(|&lane| self.at[lane] == at)
                .fold(0, |lanes, lane| lanes | 1 << lane);
        self.waiting |= here;
        if matches!(instruction.kind, Kind::Barrier) {
            return Ok(Next::Choose);
        }
        let mut left = here;
        while left != 0 {
            let lane = first(left);
            let members = self.members(instruction, lane);
            if members >> lane & 1 == 0 {
                return Err((
                    FaultKind::Mask(format!("the mask {members:#010x} lacks its own lane")),
                    lane,
                ));
            }
            if members & !self.live != 0 {
                let text = format!(
                    "the mask {members:#010x} names lanes that have returned: {:#010x}",
                    members & !self.live
                );
                return Err((FaultKind::Mask(text), lane));
            }
            left &= !(members & here);
            if members & !here != 0 {
                continue;
            }
            if let Some(other) =
                each(members).find(|&other| self.members(instruction, other) != members)
            {
                let text = format!(
                    "masks differ: {members:#010x} in lane {lane}, another in lane {other}"
                );
                return Err((FaultKind::Mask(text), lane));
            }
            self.exchange(instruction, members)?;
            if members == u32::MAX {
                around.shared.exchange(self.number);
            }
            for &register in &instruction.writes {
                self.registers.written[register as usize] |= members;
            }
            self.waiting &= !members;
            for lane in each(members) {
                self.at[lane] = at + 1;
            }
        }
        if on == lanes && self.waiting & here == 0 && here == lanes {
            Ok(Next::Go)
        } else {
            Ok(Next::Choose)
        }
    }
}
