//! Estimates the work of ops, so that no submission exceeds the operating system's time limit.

use hal::OpDesc;

/// Maximum number of multiplications per submission with more than one token. Windows resets a GPU
/// whose submission takes longer than two seconds, and slow GPUs do about 20 billion
/// multiplications per second. On a GPU that is 100 times as fast, such a submission takes 9 ms,
/// which is still much longer than the host's overhead.
pub(crate) const MAX_WORK: u64 = 1 << 34;

/// Upper bound of the multiplications of an op. It is 0 for a single token, whose time is that of
/// reading the weights, so that all layers are one submission.
pub(crate) fn work(op: &OpDesc) -> u64 {
    let work = op.work();
    if work.n_tokens > 1 { work.per_token.saturating_mul(work.n_tokens as u64) } else { 0 }
}

/// Adds up work and finds the dispatches before which a submission ends.
#[derive(Debug)]
pub(crate) struct Meter {
    limit: u64,
    used: u64,
}

impl Meter {
    pub(crate) fn new(limit: u64) -> Meter {
        Meter { limit, used: 0 }
    }

    /// Sets the count to 0 because a submission ends for another reason.
    pub(crate) fn reset(&mut self) {
        self.used = 0;
    }

    /// Whether a submission ends before dispatch `i` of an op with this work. If an op exceeds the
    /// limit, each of its dispatches is a submission.
    pub(crate) fn ends_before(&mut self, i: usize, work: u64) -> bool {
        let added = if work > self.limit || i == 0 { work.min(self.limit) } else { 0 };
        let ends = self.used > 0 && added > self.limit - self.used;
        self.used = if ends { added } else { self.used + added };
        ends
    }
}

#[cfg(test)]
mod tests {
    use hal::format::Format;
    use hal::op::MatMul;
    use hal::{Op, TensorDesc};

    use super::*;

    fn product(n_rows: usize, n_cols: usize, n_tokens: usize) -> u64 {
        work(&Op::MatMul(MatMul {
            w: TensorDesc::new(n_rows, n_cols, Format::Q4_0),
            x: TensorDesc::new(n_tokens, n_cols, Format::F32),
            bias: None,
            y: TensorDesc::new(n_tokens, n_rows, Format::F32),
        }))
    }

    /// First dispatch of each submission, for ops given as their work and number of dispatches.
    fn submission_starts(limit: u64, ops: &[(u64, usize)]) -> Vec<usize> {
        let mut meter = Meter::new(limit);
        let dispatches = ops.iter().flat_map(|&(work, n)| (0..n).map(move |i| (i, work)));
        let ends = dispatches.map(|(i, work)| meter.ends_before(i, work)).enumerate();
        ends.filter_map(|(at, ends)| ends.then_some(at)).collect()
    }

    #[test]
    fn one_token_is_one_submission() {
        assert_eq!(product(128_000, 16_384, 1), 0);
        assert_eq!(submission_starts(1, &[(0, 100); 400]), []);
    }

    #[test]
    fn submissions_end_at_the_work_limit() {
        assert_eq!(product(10, 64, 3), 1920);
        // Small ops share a submission, and are not split.
        assert_eq!(submission_starts(10, &[(5, 2), (5, 2), (5, 2), (0, 3), (6, 1)]), [4, 9]);
        // An op above the limit is split by dispatches; an op without work joins the last
        // submission.
        assert_eq!(submission_starts(10, &[(5, 1), (11, 3), (0, 1), (4, 1)]), [1, 2, 3, 5]);
        assert_eq!(submission_starts(u64::MAX, &[(u64::MAX, 1), (u64::MAX, 1)]), [1]);
    }
}
