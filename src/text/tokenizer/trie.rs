//! A trie, which finds the strings that a text begins with.

use std::collections::HashMap;

use super::merge::NONE;

#[derive(Debug)]
pub(super) struct Trie {
    /// Maps a node and a byte to the next node. The root is 0.
    next: HashMap<(u32, u8), u32>,
    /// The id of the string that ends at each node, or [`NONE`].
    ids: Vec<u32>,
}

impl Trie {
    pub(super) fn new() -> Trie {
        Trie { next: HashMap::new(), ids: vec![NONE] }
    }

    /// Adds a string. The total length must be below 2^32 bytes.
    pub(super) fn insert(&mut self, text: &[u8], id: u32) {
        let mut node = 0;
        for &byte in text {
            let new = u32::try_from(self.ids.len()).expect("the number of bytes was checked");
            node = *self.next.entry((node, byte)).or_insert(new);
            if node == new {
                self.ids.push(NONE);
            }
        }
        self.ids[node as usize] = id;
    }

    /// Length in bytes and id of each string that `text` begins with, the shortest first.
    pub(super) fn prefixes(&self, text: &[u8]) -> impl Iterator<Item = (usize, u32)> {
        self.walk(text).filter(|&(_, id)| id != NONE)
    }

    /// Length in bytes of the longest prefix of `text` that is also a prefix of some string.
    pub(super) fn reach(&self, text: &[u8]) -> usize {
        self.walk(text).last().map_or(0, |(len, _)| len)
    }

    fn walk(&self, text: &[u8]) -> impl Iterator<Item = (usize, u32)> {
        let nodes = text.iter().scan(0, |node, &byte| {
            *node = *self.next.get(&(*node, byte))?;
            Some(self.ids[*node as usize])
        });
        (1..).zip(nodes)
    }
}
