//! The registers of a warp, lane by lane.

/// Threads of a warp.
pub(crate) const LANES: usize = 32;

/// Which file a register lives in. Registers of 16 bits (`.b16`, `%rs`) have one of 32 bits, whose
/// upper half is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Class {
    Word,
    Double,
    Predicate,
}

/// Where a register is in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Register {
    pub(crate) class: Class,
    pub(crate) at: u32,
}

/// Number of registers in each file; constants are not counted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) words: u32,
    pub(crate) doubles: u32,
    pub(crate) predicates: u32,
}

impl Counts {
    pub(crate) fn of(&mut self, class: Class) -> &mut u32 {
        match class {
            Class::Word => &mut self.words,
            Class::Double => &mut self.doubles,
            Class::Predicate => &mut self.predicates,
        }
    }

    /// Place of a register among all that can be uninitialised; `None` for a constant.
    pub(crate) fn written(&self, register: Register) -> Option<u32> {
        let (first, n) = match register.class {
            Class::Word => (0, self.words),
            Class::Double => (self.words, self.doubles),
            Class::Predicate => (self.words + self.doubles, self.predicates),
        };
        (register.at < n).then_some(first + register.at)
    }

    pub(crate) fn total(&self) -> usize {
        (self.words + self.doubles + self.predicates) as usize
    }
}

/// The register files of a warp. Constants follow the declared registers in each file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Registers {
    pub(crate) words: Vec<[u32; LANES]>,
    pub(crate) doubles: Vec<[u64; LANES]>,
    /// A bit for each lane.
    pub(crate) predicates: Vec<u32>,
    /// For each declared register, the lanes that have written it.
    pub(crate) written: Vec<u32>,
}

impl Registers {
    /// A lane's value of 32 or 64 bits, as an address.
    pub(crate) fn address(&self, register: Register, lane: usize) -> u64 {
        match register.class {
            Class::Word => u64::from(self.words[register.at as usize][lane]),
            Class::Double => self.doubles[register.at as usize][lane],
            Class::Predicate => 0,
        }
    }

    /// Writes a lane's value; the upper bits of a wider register are set to 0.
    pub(crate) fn set(&mut self, register: Register, lane: usize, value: u64) {
        match register.class {
            Class::Word => self.words[register.at as usize][lane] = value as u32,
            Class::Double => self.doubles[register.at as usize][lane] = value,
            Class::Predicate => {}
        }
    }
}

/// A value that a register file holds for each lane.
pub(crate) trait Value: Copy + Default + Send + Sync + 'static {
    const CLASS: Class;
    fn load(registers: &Registers, at: u32) -> [Self; LANES];
    fn store(registers: &mut Registers, at: u32, values: &[Self; LANES], lanes: u32);
}

/// Copies the values of `lanes`.
fn blend<T: Copy>(to: &mut [T; LANES], from: &[T; LANES], lanes: u32) {
    if lanes == u32::MAX {
        *to = *from;
        return;
    }
    for (lane, (to, from)) in to.iter_mut().zip(from).enumerate() {
        if lanes >> lane & 1 == 1 {
            *to = *from;
        }
    }
}

impl Value for u32 {
    const CLASS: Class = Class::Word;
    fn load(registers: &Registers, at: u32) -> [u32; LANES] {
        registers.words[at as usize]
    }
    fn store(registers: &mut Registers, at: u32, values: &[u32; LANES], lanes: u32) {
        blend(&mut registers.words[at as usize], values, lanes);
    }
}

impl Value for u64 {
    const CLASS: Class = Class::Double;
    fn load(registers: &Registers, at: u32) -> [u64; LANES] {
        registers.doubles[at as usize]
    }
    fn store(registers: &mut Registers, at: u32, values: &[u64; LANES], lanes: u32) {
        blend(&mut registers.doubles[at as usize], values, lanes);
    }
}

impl Value for bool {
    const CLASS: Class = Class::Predicate;
    fn load(registers: &Registers, at: u32) -> [bool; LANES] {
        let bits = registers.predicates[at as usize];
        std::array::from_fn(|lane| bits >> lane & 1 == 1)
    }
    fn store(registers: &mut Registers, at: u32, values: &[bool; LANES], lanes: u32) {
        let mut bits = 0;
        for (lane, &value) in values.iter().enumerate() {
            bits |= u32::from(value) << lane;
        }
        let to = &mut registers.predicates[at as usize];
        *to = *to & !lanes | bits & lanes;
    }
}
