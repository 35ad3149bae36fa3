//! Row lists whose length is known only on the device.

/// The rows selected for a step, in ascending order of their neurons, with their count and the
/// tokens that need each row.
///
/// | field | shape, U32 | holds |
/// |---|---|---|
/// | `ids` | `[1, capacity]` | row numbers (slots) of the op's weight tensors |
/// | `count` | `[1, 1]` | number of valid rows in `ids` |
/// | `members` | `[capacity, words]` | bit `t % 32` of word `t / 32` of row `i`: `t` needs `ids[i]` |
///
/// The membership bits keep tokens of a batch independent: a row that only one token needs
/// contributes to that token alone.
#[derive(Clone, Debug)]
pub struct RowSet<T> {
    /// Row numbers.
    pub ids: T,
    /// Number of rows.
    pub count: T,
    /// Membership bits: which tokens need each row.
    pub members: T,
}

impl<T> RowSet<T> {
    /// The same set with operands of another type.
    pub fn map<U>(&self, f: &mut dyn FnMut(&T) -> U) -> RowSet<U> {
        RowSet { ids: f(&self.ids), count: f(&self.count), members: f(&self.members) }
    }
}

/// The rows that an op computes.
#[derive(Clone, Debug)]
pub enum Rows<T> {
    /// Every row of the tensors, for every token.
    All,
    /// The rows of a set.
    Active(RowSet<T>),
}

impl<T> Rows<T> {
    /// The same rows with operands of another type.
    pub fn map<U>(&self, f: &mut dyn FnMut(&T) -> U) -> Rows<U> {
        match self {
            Rows::All => Rows::All,
            Rows::Active(set) => Rows::Active(set.map(f)),
        }
    }
}

/// A set in host memory: the content of a mailbox and the input of CPU kernels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostRowSet {
    /// Row numbers, in ascending order of their neurons.
    pub ids: Vec<u32>,
    /// Membership bits: `words` words for each row.
    pub members: Vec<u32>,
    /// Words of membership per row: `ceil(n_tokens / 32)`.
    pub words: usize,
}

impl HostRowSet {
    /// Whether token `token` needs the row at `index`.
    #[must_use]
    pub fn token_needs(&self, index: usize, token: usize) -> bool {
        self.members[index * self.words + token / 32] >> (token % 32) & 1 == 1
    }
}

/// Where a neuron's rows are stored: an entry of the slot table, by which [`crate::op::Predict`]
/// splits the active neurons.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slot {
    /// In this slot of the device's own pack.
    Resident(u32),
    /// In this row of the pack at the other end of the hand-off.
    Absent(u32),
}

const ABSENT: u32 = 1 << 31;

impl Slot {
    /// The table word; the top bit means absent.
    #[must_use]
    pub fn encode(self) -> u32 {
        match self {
            Slot::Resident(slot) => slot,
            Slot::Absent(row) => row | ABSENT,
        }
    }

    /// Decodes a table word.
    #[must_use]
    pub fn decode(word: u32) -> Slot {
        match word & ABSENT {
            0 => Slot::Resident(word),
            _ => Slot::Absent(word & !ABSENT),
        }
    }
}
