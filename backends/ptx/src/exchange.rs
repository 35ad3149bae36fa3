//! Instructions by which the lanes of a warp exchange values.

use crate::code::{Instruction, Kind};
use crate::fault::FaultKind;
use crate::registers::LANES;
use crate::warp::{Warp, each};

impl Warp {
    /// The lanes that execute a `.sync` instruction with this one.
    pub(crate) fn members(&self, instruction: &Instruction, lane: usize) -> u32 {
        if let Kind::Shuffle { members, .. } | Kind::Ballot { members, .. } = instruction.kind {
            self.registers.words[members as usize][lane]
        } else {
            // `.aligned`: the whole warp.
            u32::MAX
        }
    }

    /// Executes a `.sync` instruction for lanes that have all arrived.
    pub(crate) fn exchange(
        &mut self,
        instruction: &Instruction,
        members: u32,
    ) -> Result<(), (FaultKind, usize)> {
        if let Kind::Matrix(matrix, places) = &instruction.kind {
            let text = "an operand is not a TF32 number";
            let wrong = |lane| (FaultKind::Operand(text.to_owned()), lane);
            return matrix.run(&mut self.registers, places).map_err(wrong);
        }
        if let Kind::Ballot { to, predicate, .. } = instruction.kind {
            let bits = self.registers.predicates[predicate as usize] & members;
            each(members).for_each(|lane| self.registers.words[to as usize][lane] = bits);
        }
        let Kind::Shuffle { to, has_source, value, offset, clamp, .. } = instruction.kind else {
            return Ok(());
        };
        let registers = &mut self.registers;
        let [values, offsets, clamps] =
            [value, offset, clamp].map(|at| registers.words[at as usize]);
        for lane in each(members) {
            let (source, found) = butterfly(lane, offsets[lane], clamps[lane]);
            if members >> source & 1 == 0 {
                let text =
                    format!("a shuffle reads lane {source}, which its mask {members:#010x} lacks");
                return Err((FaultKind::Mask(text), lane));
            }
            registers.words[to as usize][lane] = values[source];
            if let Some(predicate) = has_source {
                let bits = &mut registers.predicates[predicate as usize];
                *bits = *bits & !(1 << lane) | u32::from(found) << lane;
            }
        }
        Ok(())
    }
}

/// The lane whose value `shfl.sync.bfly` gives a lane, and whether it is inside the lane's segment;
/// if not, the lane keeps its own value. `clamp` has the segment's mask in bits 8 to 12.
fn butterfly(lane: usize, offset: u32, clamp: u32) -> (usize, bool) {
    let own = lane as u32;
    let segment = clamp >> 8 & 31;
    let last = own & segment | clamp & 31 & !segment;
    let source = own ^ offset & 31;
    if source <= last { (source as usize % LANES, true) } else { (lane, false) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_stay_in_their_segment() {
        assert_eq!(butterfly(5, 16, 31), (21, true));
        assert_eq!(butterfly(21, 16, 31), (5, true));
        // Segments of 8 lanes, as __shfl_xor_sync(..., 8) has them.
        assert_eq!(butterfly(5, 4, 0x181f), (1, true));
        assert_eq!(butterfly(5, 8, 0x181f), (5, false));
    }
}
