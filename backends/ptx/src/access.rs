//! Loads, stores and atomics of a warp.

use crate::code::{Access, Atomic, Instruction, Kind, Space};
use crate::fault::FaultKind;
use crate::launch::Surroundings;
use crate::registers::{LANES, Register};
use crate::shared::Use;
use crate::warp::{Warp, each, first};

/// Bytes of a line of the L2 cache.
const LINE: u64 = 128;

type Failure = (FaultKind, usize);

impl Warp {
    fn address(&self, register: Register, offset: i64, lane: usize) -> u64 {
        self.registers.address(register, lane).wrapping_add_signed(offset)
    }

    fn thread(&self, lane: usize) -> u16 {
        (self.number * LANES + lane) as u16
    }

    pub(crate) fn load(
        &mut self,
        around: &mut Surroundings<'_>,
        access: &Access,
        on: u32,
    ) -> Result<(), Failure> {
        match access.space {
            Space::Shared => return self.load_shared(around, access, on),
            Space::Global if access.is_relaxed => around.order.load_flag(self.number, on),
            Space::Global => {
                around.order.load(self.number, on).map_err(|kind| (kind, first(on)))?
            }
        }
        let size = access.bytes * access.registers.len();
        for lane in each(on) {
            let address = self.address(access.address, access.offset, lane);
            around
                .memory
                .check(address, size as u64)
                .map_err(|text| (FaultKind::Address(text), lane))?;
            for (i, &register) in access.registers.iter().enumerate() {
                let at = address + (i * access.bytes) as u64;
                let value = if access.is_relaxed {
                    around.memory.read_relaxed(at, access.bytes)
                } else {
                    around.memory.read(at, access.bytes)
                };
                self.registers.set(register, lane, value);
            }
            if let Some(counter) = &mut around.counter {
                counter.load(address, size);
            }
        }
        Ok(())
    }

    /// A card ignores a line outside of all memory; here it is an error.
    pub(crate) fn prefetch(
        &mut self,
        around: &Surroundings<'_>,
        register: Register,
        offset: i64,
        on: u32,
    ) -> Result<(), Failure> {
        for lane in each(on) {
            let address = self.address(register, offset, lane);
            let inside = around.memory.check(address, LINE);
            inside.map_err(|text| (FaultKind::Address(text), lane))?;
        }
        Ok(())
    }

    fn load_shared(
        &mut self,
        around: &mut Surroundings<'_>,
        access: &Access,
        on: u32,
    ) -> Result<(), Failure> {
        let size = access.bytes * access.registers.len();
        for lane in each(on) {
            let address = self.address(access.address, access.offset, lane);
            let thread = self.thread(lane);
            let shared = &mut *around.shared;
            let fault = |kind| (kind, lane);
            let offset = shared.check(address, size as u64).map_err(fault)?;
            for (i, &register) in access.registers.iter().enumerate() {
                let at = offset + i * access.bytes;
                shared.note(at, thread, Use::Read).map_err(fault)?;
                self.registers.set(register, lane, shared.read(at, access.bytes));
            }
        }
        Ok(())
    }

    pub(crate) fn store(
        &mut self,
        around: &mut Surroundings<'_>,
        access: &Access,
        on: u32,
    ) -> Result<(), Failure> {
        if access.space == Space::Global {
            if access.is_relaxed {
                let written = around.order.store_flag(self.number, on, around.published);
                written.map_err(|kind| (kind, first(on)))?;
            } else {
                around.order.store(self.number, on);
            }
        }
        let size = access.bytes * access.registers.len();
        for lane in each(on) {
            let address = self.address(access.address, access.offset, lane);
            let thread = self.thread(lane);
            match access.space {
                Space::Global => {
                    around
                        .memory
                        .check(address, size as u64)
                        .map_err(|text| (FaultKind::Address(text), lane))?;
                    for (i, &register) in access.registers.iter().enumerate() {
                        let value = self.registers.address(register, lane);
                        let at = address + (i * access.bytes) as u64;
                        if access.is_relaxed {
                            around.memory.write_relaxed(at, access.bytes, value);
                        } else {
                            around.memory.write(at, access.bytes, value);
                        }
                    }
                }
                Space::Shared => {
                    let fault = |kind| (kind, lane);
                    let offset = around.shared.check(address, size as u64).map_err(fault)?;
                    for (i, &register) in access.registers.iter().enumerate() {
                        let at = offset + i * access.bytes;
                        let value = self.registers.address(register, lane);
                        let is_same = around.shared.has(at, access.bytes, value);
                        let how = if is_same { Use::Rewrite } else { Use::Write };
                        around.shared.note(at, thread, how).map_err(fault)?;
                        around.shared.write(at, access.bytes, value);
                    }
                }
            }
        }
        Ok(())
    }

    pub(crate) fn atomic(
        &mut self,
        around: &mut Surroundings<'_>,
        instruction: &Instruction,
        on: u32,
    ) -> Result<(), Failure> {
        let Kind::Atomic { op, space, to, address, offset, value } = instruction.kind else {
            return Ok(());
        };
        if space == Space::Global {
            around.order.atomic(self.number, on, instruction.line, around.published);
        }
        for lane in each(on) {
            let address = self.address(address, offset, lane);
            let by = self.registers.address(value, lane) as u32;
            let changed = |old: u32| match op {
                Atomic::Add => old.wrapping_add(by),
                Atomic::Or => old | by,
            };
            let old = match space {
                Space::Global => {
                    around
                        .memory
                        .check(address, 4)
                        .map_err(|text| (FaultKind::Address(text), lane))?;
                    around.memory.change(address, changed)
                }
                Space::Shared => {
                    let fault = |kind| (kind, lane);
                    let at = around.shared.check(address, 4).map_err(fault)?;
                    around.shared.note(at, self.thread(lane), Use::Atomic).map_err(fault)?;
                    let old = around.shared.read(at, 4) as u32;
                    around.shared.write(at, 4, u64::from(changed(old)));
                    old
                }
            };
            self.registers.set(to, lane, u64::from(old));
        }
        Ok(())
    }
}
