//! Seeded random numbers: the same case draws the same data on every machine.

/// SplitMix64. Source: Steele, Lea and Flood, 2014.
#[derive(Clone, Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    /// A seed derived from a name (FNV-1a).
    pub(crate) fn seed_of(name: &str) -> u64 {
        let mix =
            |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        name.bytes().fold(0xcbf2_9ce4_8422_2325, mix)
    }

    pub(crate) fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.word() % n as u64) as usize
    }

    /// True with this probability.
    pub(crate) fn chance(&mut self, probability: f32) -> bool {
        self.float().abs() < probability
    }

    /// A float in -1..1.
    pub(crate) fn float(&mut self) -> f32 {
        (self.word() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    /// `n` floats in -1..1.
    pub(crate) fn floats(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.float()).collect()
    }

    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
    }

    /// `n` distinct numbers below `limit`, ascending.
    pub(crate) fn choose(&mut self, n: usize, limit: usize) -> Vec<u32> {
        let mut numbers: Vec<u32> = (0..limit as u32).collect();
        self.shuffle(&mut numbers);
        numbers.truncate(n);
        numbers.sort_unstable();
        numbers
    }
}
