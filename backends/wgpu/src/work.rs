//! How much an op computes, so that no submission lasts longer than systems let one.

use hal::{KV_BLOCK, Op, OpDesc, TensorDesc};

/// Multiplications of a submission, unless it is for a single token. Windows takes a device for hung that works on one
/// for two seconds, and slow graphics units multiply some 20 billion times in a second. On one that is a hundred times as
/// fast such a submission takes 8 ms, beside which what the host does for it is little.
pub(crate) const MOST_WORK: u64 = 1 << 34;

fn values(desc: &TensorDesc) -> u64 {
    (desc.n_rows as u64).saturating_mul(desc.n_cols as u64)
}

/// Multiplications of an op, at most. None for a single token: a run of layers is one submission then, and reading the
/// weights takes longer than multiplying. None either for what only moves values.
pub(crate) fn work(op: &OpDesc) -> u64 {
    let (n_tokens, of_a_token) = match op {
        Op::MatMul(op) => (op.x.n_rows, values(&op.w)),
        Op::SparseFfn(op) => {
            let gate = op.gate.as_ref().map_or(0, values);
            (op.x.n_rows, gate + values(&op.up) + values(&op.down))
        }
        Op::Predict(op) => {
            let fc1 = op.fc1.as_ref().map_or(0, values);
            (op.x.n_rows, fc1 + values(&op.fc2))
        }
        Op::Attention(op) => {
            let positions = (op.batch.shape.max_blocks * KV_BLOCK) as u64;
            let positions = op.window.map_or(positions, |window| positions.min(window as u64));
            (op.q.n_rows, positions.saturating_mul((op.q.n_cols + op.y.n_cols) as u64))
        }
        Op::GetRows(_) | Op::AddPositions(_) | Op::Gather(_) | Op::Norm(_) | Op::Rope(_) => {
            return 0;
        }
        Op::CopyHeads(_) | Op::StoreKv(_) | Op::Add(_) | Op::SoftCap(_) | Op::Route(_) => return 0,
        Op::ShortConv(_) | Op::GatedDelta(_) | Op::SsmScan(_) => return 0,
        Op::Post(_) | Op::Merge(_) => return 0,
    };
    if n_tokens > 1 { of_a_token.saturating_mul(n_tokens as u64) } else { 0 }
}

/// Finds the dispatches before which a submission ends.
#[derive(Debug)]
pub(crate) struct Meter {
    most: u64,
    so_far: u64,
}

impl Meter {
    pub(crate) fn new(most: u64) -> Meter {
        Meter { most, so_far: 0 }
    }

    /// A submission ends here for another reason.
    pub(crate) fn reset(&mut self) {
        self.so_far = 0;
    }

    /// Whether a submission ends before dispatch `i` of an op of so much work. An op that is too much for one gives
    /// each of its dispatches a submission.
    pub(crate) fn ends_before(&mut self, i: usize, work: u64) -> bool {
        let here = if work > self.most || i == 0 { work.min(self.most) } else { 0 };
        let ends = self.so_far > 0 && here > self.most - self.so_far;
        self.so_far = if ends { here } else { self.so_far + here };
        ends
    }
}

#[cfg(test)]
mod tests {
    use hal::format::Format;
    use hal::op::MatMul;

    use super::*;

    fn product(n_rows: usize, n_cols: usize, n_tokens: usize) -> u64 {
        work(&Op::MatMul(MatMul {
            w: TensorDesc::new(n_rows, n_cols, Format::Q4_0),
            x: TensorDesc::new(n_tokens, n_cols, Format::F32),
            bias: None,
            y: TensorDesc::new(n_tokens, n_rows, Format::F32),
        }))
    }

    /// Where submissions begin, of ops given as their work and number of dispatches.
    fn begins(most: u64, ops: &[(u64, usize)]) -> Vec<usize> {
        let mut meter = Meter::new(most);
        let dispatches = ops.iter().flat_map(|&(work, n)| (0..n).map(move |i| (i, work)));
        let ends = dispatches.map(|(i, work)| meter.ends_before(i, work)).enumerate();
        ends.filter_map(|(at, ends)| ends.then_some(at)).collect()
    }

    #[test]
    fn one_token_is_one_submission() {
        assert_eq!(product(128_000, 16_384, 1), 0);
        assert_eq!(begins(1, &[(0, 100); 400]), []);
    }

    #[test]
    fn work_is_bounded() {
        assert_eq!(product(10, 64, 3), 1920);
        // Small ones go together, in whole ops.
        assert_eq!(begins(10, &[(5, 2), (5, 2), (5, 2), (0, 3), (6, 1)]), [4, 9]);
        // Too large a one goes dispatch by dispatch; what computes nothing goes with the last.
        assert_eq!(begins(10, &[(5, 1), (11, 3), (0, 1), (4, 1)]), [1, 2, 3, 5]);
        assert_eq!(begins(u64::MAX, &[(u64::MAX, 1), (u64::MAX, 1)]), [1]);
    }
}
