//! Faults planted in the built-in PTX: the suite must fail, by the interpreter's report or by wrong
//! values.

use std::sync::Arc;

use ptx::FaultKind;

use crate::{capability, device, interpreter};

/// Changes every line.
const ALL: usize = usize::MAX;

/// The device that runs changed kernels.
const FAULTY: usize = 3;

/// How a planted fault shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shows {
    /// The interpreter reports it.
    Race,
    Mask,
    Order,
    Shared,
    Address,
    Uninitialised,
    /// The outputs differ from the oracle's, or the guards around them are overwritten.
    Values,
    /// The unit does not load.
    Load,
}

/// A change of one instruction of a unit.
struct Plant {
    what: &'static str,
    /// Kernel file and variant.
    unit: &'static str,
    /// Cases that run the kernel.
    cases: &'static [&'static str],
    /// Text that the line contains, and how many such lines come before it; `ALL`: each of them.
    line: (&'static str, usize),
    change: fn(&str) -> String,
    shows: &'static [Shows],
}

/// The operands of an instruction with this one replaced.
fn with_operand(line: &str, number: usize, text: &str) -> String {
    let (opcode, operands) =
        line.trim().trim_end_matches(';').split_once(char::is_whitespace).expect("operands");
    let mut operands: Vec<&str> = operands.split(',').map(str::trim).collect();
    operands[number] = text;
    format!("{opcode} {};", operands.join(", "))
}

#[rustfmt::skip]
const PLANTS: &[Plant] = &[
    Plant {
        what: "a shuffle takes another lane", unit: "norm", cases: &["Norm/"],
        line: ("shfl.sync.bfly", ALL), change: |line| with_operand(line, 2, "1"), shows: &[Shows::Values],
    },
    Plant {
        what: "a shuffle's mask lacks the upper half", unit: "norm", cases: &["Norm/"],
        line: ("shfl.sync.bfly", ALL), change: |line| with_operand(line, 4, "65535"), shows: &[Shows::Mask],
    },
    Plant {
        what: "a barrier is missing", unit: "norm", cases: &["Norm/"],
        line: ("bar.sync", ALL), change: |_| String::new(), shows: &[Shows::Race, Shows::Shared],
    },
    Plant {
        what: "a barrier in a loop is missing", unit: "matmul_many.q4_0", cases: &["MatMul/Q4_0/45x"],
        line: ("bar.sync", 1), change: |_| String::new(), shows: &[Shows::Race, Shows::Shared],
    },
    Plant {
        what: "shared memory is too small", unit: "norm", cases: &["Norm/"],
        line: (".shared .align", 0), change: |line| format!("{}[4];", line.split('[').next().expect("a name")),
        shows: &[Shows::Shared, Shows::Race],
    },
    Plant {
        what: "no fence before the flag for the host", unit: "post", cases: &["HandOff"],
        line: ("membar.sys", 3), change: |_| String::new(), shows: &[Shows::Order],
    },
    Plant {
        what: "no fence behind the flag of the host", unit: "merge", cases: &["HandOff"],
        line: ("membar.sys", 0), change: |_| String::new(), shows: &[Shows::Order],
    },
    Plant {
        what: "words of an mma fragment are exchanged", unit: "matmul_many.q4_0", cases: &["MatMul/Q4_0/45x"],
        line: ("mma.sync.aligned.m16n8k32", 0),
        change: |line| {
            let mut parts: Vec<&str> = line.split('}').collect();
            let words: Vec<&str> = parts[1].split(['{', ',']).map(str::trim).filter(|word| !word.is_empty()).collect();
            let exchanged = format!(", {{{}, {}, {}, {}", words[0], words[2], words[1], words[3]);
            parts[1] = &exchanged;
            parts.join("}")
        },
        shows: &[Shows::Values],
    },
    Plant {
        what: "bytes of a product are permuted", unit: "matmul_few.q4_0", cases: &["MatMul/Q4_0/3x", "MatMul/Q4_0/67x"],
        line: ("dp4a.s32", 0), change: |line| line.replace("dp4a.s32.s32", "mad.lo.s32"), shows: &[Shows::Values],
    },
    Plant {
        what: "a bound is off by one", unit: "add", cases: &["Add/"],
        line: ("setp.ge", 0), change: |line| line.replace("setp.ge", "setp.gt"), shows: &[Shows::Values, Shows::Address],
    },
    Plant {
        what: "an address is misaligned", unit: "add", cases: &["Add/"],
        line: ("ld.global.f32", 0), change: |line| line.replace(']', "+2]"), shows: &[Shows::Address],
    },
    Plant {
        what: "a register is not written", unit: "add", cases: &["Add/"],
        line: ("add.rn.f32", 0), change: |_| String::new(), shows: &[Shows::Uninitialised],
    },
    Plant {
        what: "an instruction is unknown", unit: "add", cases: &["Add/"],
        line: ("add.rn.f32", 0), change: |line| line.replace("add.rn", "add.rx"), shows: &[Shows::Load],
    },
];

impl Plant {
    /// The unit with the changed line.
    fn apply(&self, text: &str) -> Option<String> {
        let first = text.lines().next().unwrap_or("");
        if first != format!("// unit {}", self.unit) {
            return None;
        }
        let (part, before) = self.line;
        let mut found = 0;
        let mut lines: Vec<String> = Vec::new();
        for line in text.lines() {
            let is_it = line.contains(part) && (found == before || before == ALL);
            found += usize::from(line.contains(part));
            lines.push(if is_it { (self.change)(line) } else { line.to_owned() });
        }
        assert!(
            found > before || before == ALL,
            "{}: {} lines with `{part}` in {}",
            self.what,
            found,
            self.unit
        );
        lines.push(String::new());
        Some(lines.join("\n"))
    }
}

fn shown(kind: &FaultKind) -> Option<Shows> {
    match kind {
        FaultKind::Race(_) => Some(Shows::Race),
        FaultKind::Mask(_) => Some(Shows::Mask),
        FaultKind::Order(_) => Some(Shows::Order),
        FaultKind::Shared(_) => Some(Shows::Shared),
        FaultKind::Address(_) => Some(Shows::Address),
        FaultKind::Uninitialised(_) => Some(Shows::Uninitialised),
        FaultKind::Barrier(_)
        | FaultKind::Operand(_)
        | FaultKind::Endless(_)
        | FaultKind::Geometry(_) => None,
    }
}

#[test]
fn planted_faults_are_found() {
    let Some((fake, interpreter)) = interpreter() else { return };
    let mut missed = Vec::new();
    for plant in PLANTS {
        let apply = |text: &str| plant.apply(text);
        interpreter.change(FAULTY as i32, Some(Arc::new(apply)));
        let report = {
            let device = device(FAULTY);
            conformance::run_in_parallel(&[device], &conformance::matching(plant.cases))
        };
        interpreter.change(FAULTY as i32, None);
        let faults = interpreter.take_faults(FAULTY as i32);
        fake.set(&format!("{FAULTY}:reset=1 {}", capability(FAULTY)));
        let shows = match faults.first() {
            Some(fault) => shown(&fault.kind),
            None if report.n_failed() == 0 => None,
            None if report.to_string().contains("unknown instruction") => Some(Shows::Load),
            None => Some(Shows::Values),
        };
        let fault = faults.first().map(ToString::to_string).unwrap_or_default();
        let line = format!("{}: {shows:?} {fault}", plant.what);
        println!("{line}");
        if !shows.is_some_and(|shows| plant.shows.contains(&shows)) {
            missed.push(format!("{line}\n{report}"));
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}
