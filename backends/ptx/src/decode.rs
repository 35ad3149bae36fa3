//! Decodes the body of a kernel.

use std::collections::HashMap;

use crate::code::{Access, Atomic, Guard, Instruction, Kind, Space, Special};
use crate::module::{Entry, SHARED_BASE, Symbols};
use crate::ops::{Compute, Matrix, find};
use crate::registers::{Class, Counts, Register};
use crate::syntax::{self, Operand, Statement};

/// What a kernel declares, and the constants found so far.
pub(crate) struct Decoder<'a> {
    symbols: Symbols<'a>,
    /// By prefix: class, first register, number.
    banks: HashMap<&'a str, (Class, u32, u32)>,
    counts: Counts,
    shared: u64,
    parameters: HashMap<&'a str, (usize, u32)>,
    constants: HashMap<(Class, u64), Register>,
    specials: Vec<(Special, Register)>,
    words: Vec<u32>,
    doubles: Vec<u64>,
    predicates: Vec<u32>,
    labels: HashMap<&'a str, u32>,
    code: Vec<Instruction>,
}

/// An instruction whose operands are being resolved.
struct Operands<'d, 'a> {
    decoder: &'d mut Decoder<'a>,
    reads: Vec<u32>,
    writes: Vec<u32>,
}

type Failure = (u32, String);

impl<'a> Decoder<'a> {
    pub(crate) fn new(symbols: Symbols<'a>) -> Decoder<'a> {
        Decoder {
            symbols,
            banks: HashMap::new(),
            counts: Counts::default(),
            shared: 0,
            parameters: HashMap::new(),
            constants: HashMap::new(),
            specials: Vec::new(),
            words: Vec::new(),
            doubles: Vec::new(),
            predicates: Vec::new(),
            labels: HashMap::new(),
            code: Vec::new(),
        }
    }

    pub(crate) fn parameter(&mut self, name: &'a str, number: usize, bytes: u32) {
        self.parameters.insert(name, (number, bytes));
    }

    /// `.reg .type %name<N>`; `None` if it is not understood.
    pub(crate) fn registers(&mut self, text: &'a str) -> Option<()> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let [_, kind, name] = words[..] else { return None };
        let class = match kind {
            ".pred" => Class::Predicate,
            ".b16" | ".u16" | ".s16" | ".b32" | ".u32" | ".s32" | ".f32" => Class::Word,
            ".b64" | ".u64" | ".s64" => Class::Double,
            _ => return None,
        };
        let (prefix, n) = name.strip_suffix('>')?.split_once('<')?;
        let n = n.parse().ok()?;
        let count = self.counts.of(class);
        self.banks.insert(prefix, (class, *count, n));
        *count += n;
        Some(())
    }

    pub(crate) fn shared(&mut self, name: &'a str, align: u64, size: u64) {
        self.shared = self.shared.next_multiple_of(align.max(1));
        self.symbols.addresses.insert(name, SHARED_BASE + self.shared);
        self.shared += size;
    }

    /// Dynamic shared memory begins behind the declared shared memory.
    pub(crate) fn place_dynamic(&mut self) {
        if !self.symbols.dynamic.is_empty() {
            self.shared = self.shared.next_multiple_of(16);
        }
        for name in &self.symbols.dynamic {
            self.symbols.addresses.insert(name, SHARED_BASE + self.shared);
        }
    }

    pub(crate) fn decode(&mut self, body: &[Statement<'a>]) -> Result<(), Failure> {
        let mut n = 0;
        for statement in body {
            match statement.text.strip_suffix(':') {
                Some(label) => drop(self.labels.insert(label, n)),
                None if is_instruction(statement.text) => n += 1,
                None => {}
            }
        }
        for statement in body.iter().filter(|statement| is_instruction(statement.text)) {
            let Statement { line, text } = *statement;
            self.instruction(line, text).map_err(|why| (line, format!("{why} in `{text}`")))?;
        }
        let ends = |code: &Instruction| {
            matches!(code.kind, Kind::Exit | Kind::Branch(_)) && code.guard.is_none()
        };
        if !self.code.last().is_some_and(ends) {
            return Err((
                body.last().map_or(0, |s| s.line),
                "the kernel does not end with `ret`".to_owned(),
            ));
        }
        Ok(())
    }

    pub(crate) fn finish(self) -> Entry {
        Entry {
            name: String::new(),
            parameters: Vec::new(),
            max_threads: None,
            shared: self.shared,
            counts: self.counts,
            words: self.words,
            doubles: self.doubles,
            predicates: self.predicates,
            specials: self.specials,
            code: self.code,
            executed: Vec::new(),
        }
    }

    fn instruction(&mut self, line: u32, text: &'a str) -> Result<(), String> {
        let syntax::Instruction { guard, opcode, operands } = syntax::instruction(text)?;
        let mut operand = Operands { decoder: self, reads: Vec::new(), writes: Vec::new() };
        let guard = match guard {
            None => None,
            Some((name, is_negated)) => {
                let predicate = operand.read(&Operand::Name(name), Class::Predicate)?;
                let register = operand.reads.pop().ok_or("a guard is not a register")?;
                Some(Guard { predicate, is_negated, register })
            }
        };
        let kind = operand.kind(opcode, &operands)?;
        let Operands { mut reads, writes, .. } = operand;
        reads.sort_unstable();
        reads.dedup();
        self.code.push(Instruction { guard, kind, reads, writes, line });
        Ok(())
    }

    /// The register of a constant.
    fn constant(&mut self, class: Class, bits: u64) -> Register {
        if let Some(&register) = self.constants.get(&(class, bits)) {
            return register;
        }
        let register = self.new_constant(class, bits);
        self.constants.insert((class, bits), register);
        register
    }

    fn new_constant(&mut self, class: Class, bits: u64) -> Register {
        let behind = match class {
            Class::Word => {
                self.words.push(bits as u32);
                self.words.len()
            }
            Class::Double => {
                self.doubles.push(bits);
                self.doubles.len()
            }
            Class::Predicate => {
                self.predicates.push(if bits == 0 { 0 } else { u32::MAX });
                self.predicates.len()
            }
        };
        Register { class, at: *self.counts.of(class) + behind as u32 - 1 }
    }

    /// The register of a constant that is known at the launch.
    fn special(&mut self, class: Class, special: Special) -> Register {
        let same =
            |(found, register): &&(Special, Register)| *found == special && register.class == class;
        if let Some((_, register)) = self.specials.iter().find(same) {
            return *register;
        }
        let register = self.new_constant(class, 0);
        self.specials.push((special, register));
        register
    }

    fn declared(&self, name: &str) -> Option<Register> {
        let digits = name.find(|c: char| c.is_ascii_digit())?;
        let &(class, first, n) = self.banks.get(&name[..digits])?;
        let number: u32 = name[digits..].parse().ok()?;
        (number < n).then_some(Register { class, at: first + number })
    }
}

/// Whether a statement of a body is neither a label nor a directive.
fn is_instruction(text: &str) -> bool {
    !text.ends_with(':')
        && !text.starts_with(".reg")
        && !text.starts_with(".shared")
        && !text.starts_with(".pragma")
}

fn special_of(name: &str) -> Option<Special> {
    let axis = |text: &str| ["x", "y", "z"].iter().position(|axis| *axis == text);
    match name.split_once('.') {
        None if name == "%laneid" => Some(Special::Lane),
        Some(("%tid", text)) => axis(text).map(Special::Thread),
        Some(("%ctaid", text)) => axis(text).map(Special::Block),
        Some(("%ntid", text)) => axis(text).map(Special::BlockSize),
        Some(("%nctaid", text)) => axis(text).map(Special::GridSize),
        _ => None,
    }
}

impl<'a> Operands<'_, 'a> {
    fn kind(&mut self, opcode: &str, operands: &[Operand<'a>]) -> Result<Kind, String> {
        match (opcode, operands) {
            ("bra" | "bra.uni", [Operand::Name(label)]) => {
                let target = self.decoder.labels.get(label);
                target
                    .map(|&target| Kind::Branch(target))
                    .ok_or_else(|| format!("no label `{label}`"))
            }
            ("ret", []) => Ok(Kind::Exit),
            ("bar.sync", [Operand::Number(0)]) => Ok(Kind::Barrier),
            ("membar.sys", []) => Ok(Kind::Fence),
            ("prefetch.global.L2", [address]) => {
                self.address(address).map(|(register, offset)| Kind::Prefetch(register, offset))
            }
            ("nanosleep.u32", [time]) => self.read(time, Class::Word).map(|_| Kind::Sleep),
            ("mov.u64", [to, Operand::Name("%globaltimer")]) => {
                let at = self.write(to, Class::Double)?;
                Ok(Kind::Timer(Register { class: Class::Double, at }))
            }
            ("shfl.sync.bfly.b32", [to, value, offset, clamp, members]) => {
                self.shuffle(to, [value, offset, clamp, members])
            }
            ("vote.sync.ballot.b32", [to, predicate, members]) => Ok(Kind::Ballot {
                to: self.write(to, Class::Word)?,
                predicate: self.read(predicate, Class::Predicate)?,
                members: self.read(members, Class::Word)?,
            }),
            ("mov.b32", [to, Operand::Vector(halves)]) => {
                let compute = find("mov.b32.pack").ok_or("unknown instruction")?;
                let all: Vec<Operand<'a>> =
                    std::iter::once(to.clone()).chain(halves.clone()).collect();
                self.compute(compute, &all)
            }
            _ if opcode.starts_with("mma.sync") => self.matrix(opcode, operands),
            _ if opcode.starts_with("ld.param.") => self.load_parameter(opcode, operands),
            _ if opcode.starts_with("ld.") || opcode.starts_with("st.") => {
                self.access(opcode, operands)
            }
            _ if opcode.starts_with("atom.") => self.atomic(opcode, operands),
            _ => {
                let compute =
                    find(opcode).ok_or_else(|| format!("unknown instruction `{opcode}`"))?;
                self.compute(compute, operands)
            }
        }
    }

    fn compute(&mut self, compute: Compute, operands: &[Operand<'a>]) -> Result<Kind, String> {
        if operands.len() != compute.classes.len() {
            return Err(format!(
                "{} operands instead of {}",
                operands.len(),
                compute.classes.len()
            ));
        }
        let mut places = [0; 5];
        for (i, (operand, &class)) in operands.iter().zip(compute.classes).enumerate() {
            places[i] =
                if i == 0 { self.write(operand, class)? } else { self.read(operand, class)? };
        }
        Ok(Kind::Compute(compute, places))
    }

    fn shuffle(&mut self, to: &Operand<'a>, from: [&Operand<'a>; 4]) -> Result<Kind, String> {
        let (to, has_source) = if let Operand::Pair(to, predicate) = to {
            (Operand::Name(to), Some(Operand::Name(predicate)))
        } else {
            (to.clone(), None)
        };
        let to = self.write(&to, Class::Word)?;
        let has_source = has_source.map(|name| self.write(&name, Class::Predicate)).transpose()?;
        let mut at = [0; 4];
        for (at, operand) in at.iter_mut().zip(from) {
            *at = self.read(operand, Class::Word)?;
        }
        let [value, offset, clamp, members] = at;
        Ok(Kind::Shuffle { to, has_source, value, offset, clamp, members })
    }

    fn matrix(&mut self, opcode: &str, operands: &[Operand<'a>]) -> Result<Kind, String> {
        let matrix =
            Matrix::find(opcode).ok_or_else(|| format!("unknown instruction `{opcode}`"))?;
        let counts = matrix.counts();
        if operands.len() != counts.len() {
            return Err(format!("{} operands", operands.len()));
        }
        let mut places = Vec::new();
        for (i, (operand, n)) in operands.iter().zip(counts).enumerate() {
            let Operand::Vector(parts) = operand else {
                return Err("an operand is not a vector".to_owned());
            };
            if parts.len() != n {
                return Err(format!("a vector of {} registers instead of {n}", parts.len()));
            }
            for part in parts {
                places.push(if i == 0 {
                    self.write(part, Class::Word)?
                } else {
                    self.read(part, Class::Word)?
                });
            }
        }
        Ok(Kind::Matrix(matrix, places))
    }

    fn load_parameter(&mut self, opcode: &str, operands: &[Operand<'a>]) -> Result<Kind, String> {
        let [to, Operand::Address(name, 0)] = operands else {
            return Err("unknown operands".to_owned());
        };
        let &(number, bytes) = self.decoder.parameters.get(name).ok_or("no such parameter")?;
        let size = match opcode {
            "ld.param.u32" | "ld.param.f32" => 4,
            "ld.param.u64" => 8,
            _ => return Err(format!("unknown instruction `{opcode}`")),
        };
        if size != bytes {
            return Err(format!("reads {size} bytes of a parameter of {bytes}"));
        }
        // A register may be wider than the parameter, as for all loads.
        let class = self.class_of(to, size as usize)?;
        let from = self.decoder.special(class, Special::Parameter(number));
        let mov = if class == Class::Word { "mov.u32" } else { "mov.u64" };
        let compute = find(mov).ok_or("unknown instruction")?;
        Ok(Kind::Compute(compute, [self.write(to, class)?, from.at, 0, 0, 0]))
    }

    /// The class of a register that a load writes, or a store reads: that of the register, which may
    /// be wider than the element, or for a number that of the element.
    fn class_of(&self, operand: &Operand<'a>, bytes: usize) -> Result<Class, String> {
        let declared =
            if let Operand::Name(name) = operand { self.decoder.declared(name) } else { None };
        let class = declared.map(|register| register.class);
        let class = class.unwrap_or(if bytes == 8 { Class::Double } else { Class::Word });
        if class == Class::Predicate || bytes == 8 && class == Class::Word {
            return Err("a register is too small".to_owned());
        }
        Ok(class)
    }

    /// `ld` and `st`: a state space, hints, a vector length, a type.
    fn access(&mut self, opcode: &str, operands: &[Operand<'a>]) -> Result<Kind, String> {
        let unknown = || format!("unknown instruction `{opcode}`");
        let mut words = opcode.split('.');
        let is_load = words.next() == Some("ld");
        let (mut space, mut n, mut bytes, mut is_relaxed) = (Space::Global, 1, None, false);
        for word in words {
            match word {
                "global" => {}
                "shared" => space = Space::Shared,
                // Hints for caches; the conditions of `.nc` are those of every kernel of the backend.
                "nc" | "L1::no_allocate" if is_load => {}
                "relaxed" => is_relaxed = true,
                "sys" if is_relaxed => {}
                "v2" => n = 2,
                "v4" => n = 4,
                "u16" => bytes = Some(2),
                "u32" | "f32" => bytes = Some(4),
                "u64" => bytes = Some(8),
                _ => return Err(unknown()),
            }
        }
        let bytes = bytes.ok_or_else(unknown)?;
        let (address, value) = match operands {
            [value, address @ Operand::Address(..)] if is_load => (address, value),
            [address @ Operand::Address(..), value] if !is_load => (address, value),
            _ => return Err("unknown operands".to_owned()),
        };
        let (address, offset) = self.address(address)?;
        let parts =
            if let Operand::Vector(parts) = value { parts.clone() } else { vec![value.clone()] };
        if parts.len() != n {
            return Err(format!("{} registers instead of {n}", parts.len()));
        }
        let mut registers = Vec::new();
        for part in &parts {
            let class = self.class_of(part, bytes)?;
            let at = if is_load { self.write(part, class)? } else { self.read(part, class)? };
            registers.push(Register { class, at });
        }
        let access = Access { space, bytes, is_relaxed, address, offset, registers };
        Ok(if is_load { Kind::Load(access) } else { Kind::Store(access) })
    }

    fn atomic(&mut self, opcode: &str, operands: &[Operand<'a>]) -> Result<Kind, String> {
        let (space, op) = match opcode {
            "atom.global.add.u32" => (Space::Global, Atomic::Add),
            "atom.shared.add.u32" => (Space::Shared, Atomic::Add),
            "atom.shared.or.b32" => (Space::Shared, Atomic::Or),
            _ => return Err(format!("unknown instruction `{opcode}`")),
        };
        let [to, address, value] = operands else { return Err("unknown operands".to_owned()) };
        let (address, offset) = self.address(address)?;
        let word = |at| Register { class: Class::Word, at };
        let value = word(self.read(value, Class::Word)?);
        let to = word(self.write(to, Class::Word)?);
        Ok(Kind::Atomic { op, space, to, address, offset, value })
    }

    /// The register with an address, and the offset from it.
    fn address(&mut self, operand: &Operand<'a>) -> Result<(Register, i64), String> {
        let Operand::Address(name, offset) = operand else { return Err("no address".to_owned()) };
        let class = self.decoder.declared(name).map_or(Class::Double, |register| register.class);
        let at = self.read(&Operand::Name(name), class)?;
        Ok((Register { class, at }, *offset))
    }

    fn write(&mut self, operand: &Operand<'a>, class: Class) -> Result<u32, String> {
        let Operand::Name(name) = operand else {
            return Err(format!("the result {operand:?} is not a register"));
        };
        let register =
            self.decoder.declared(name).ok_or_else(|| format!("no register `{name}`"))?;
        if register.class != class {
            return Err(format!("the register `{name}` has the wrong size"));
        }
        self.writes.extend(self.decoder.counts.written(register));
        Ok(register.at)
    }

    fn read(&mut self, operand: &Operand<'a>, class: Class) -> Result<u32, String> {
        let register = match operand {
            Operand::Number(bits) => {
                let bits = if class == Class::Word { u64::from(*bits as u32) } else { *bits };
                self.decoder.constant(class, bits)
            }
            Operand::Name(name) => {
                if let Some(register) = self.decoder.declared(name) {
                    self.reads.extend(self.decoder.counts.written(register));
                    register
                } else if let Some(special) = special_of(name) {
                    self.decoder.special(Class::Word, special)
                } else if let Some(&address) = self.decoder.symbols.addresses.get(name) {
                    self.decoder.constant(class, address)
                } else {
                    return Err(format!("no register or symbol `{name}`"));
                }
            }
            Operand::Address(..) | Operand::Vector(_) | Operand::Pair(..) => {
                return Err(format!("unexpected operand {operand:?}"));
            }
        };
        if register.class != class {
            return Err(format!("the operand {operand:?} has the wrong size"));
        }
        Ok(register.at)
    }
}
