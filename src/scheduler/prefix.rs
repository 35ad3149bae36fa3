//! Idle sequences that stay in the KV cache, evicted in least recently used order.

use engine::Sequence;

/// Maximum number of idle sequences: each reserves host memory for the tokens of a whole context.
const MAX_IDLE: usize = 64;

#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) sequence: Sequence,
    /// The slot that ran the sequence; `None` if that slot has a newer sequence.
    pub(crate) slot: Option<usize>,
    used: u64,
}

#[derive(Debug, Default)]
pub(crate) struct IdleSequences {
    entries: Vec<Entry>,
    clock: u64,
}

/// Length of the longest common prefix.
pub(crate) fn common_prefix_len(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

impl IdleSequences {
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.entries.len() >= MAX_IDLE
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter()
    }

    pub(crate) fn get(&self, index: usize) -> &Entry {
        &self.entries[index]
    }

    /// Marks an entry as used now.
    pub(crate) fn touch(&mut self, index: usize) {
        self.clock += 1;
        self.entries[index].used = self.clock;
    }

    pub(crate) fn take(&mut self, index: usize) -> Entry {
        self.entries.remove(index)
    }

    /// Drops the entries for which `unwanted` returns `true`.
    pub(crate) fn drop_if(&mut self, mut unwanted: impl FnMut(&Sequence) -> bool) {
        self.entries.retain(|entry| !unwanted(&entry.sequence));
    }

    /// Adds a sequence as the latest one of `slot`.
    pub(crate) fn add(&mut self, sequence: Sequence, slot: Option<usize>) {
        self.release_slot(slot);
        self.clock += 1;
        self.entries.push(Entry { sequence, slot, used: self.clock });
    }

    /// Makes an existing entry the latest sequence of `slot`.
    pub(crate) fn assign(&mut self, index: usize, slot: Option<usize>) {
        self.release_slot(slot);
        self.entries[index].slot = slot.or(self.entries[index].slot);
        self.touch(index);
    }

    /// Detaches the sequence of this slot from the slot.
    pub(crate) fn release_slot(&mut self, slot: Option<usize>) {
        for entry in self.entries.iter_mut().filter(|entry| slot.is_some() && entry.slot == slot) {
            entry.slot = None;
        }
    }

    /// The latest sequence of a slot.
    pub(crate) fn of_slot(&self, slot: usize) -> Option<&Sequence> {
        self.entries.iter().find(|entry| entry.slot == Some(slot)).map(|entry| &entry.sequence)
    }

    pub(crate) fn take_of_slot(&mut self, slot: usize) -> Option<Sequence> {
        let index = self.entries.iter().position(|entry| entry.slot == Some(slot))?;
        Some(self.take(index).sequence)
    }

    /// Removes and returns the least recently used sequence.
    pub(crate) fn take_oldest(&mut self) -> Option<Sequence> {
        let entries = self.entries.iter().enumerate();
        let (index, _) = entries.min_by_key(|(_, entry)| entry.used)?;
        Some(self.take(index).sequence)
    }
}
