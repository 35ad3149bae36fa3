//! Programs: the ops of a step, recorded once and replayed for every step.

use std::sync::Arc;

use crate::op::HandOff;
use crate::{Bytes, Device, DeviceId, Error, Mailbox, Op, Plan, RawProgram, Result};

/// Records the ops of a program and checks each op when it is pushed.
#[derive(Debug)]
pub struct Recorder {
    device: Device,
    label: String,
    ops: Vec<Op>,
    /// Index of the first op of each timed part except part 0, which begins with the program.
    cuts: Vec<usize>,
    mailboxes: Vec<Mailbox>,
    workspace: Bytes,
    slow: Vec<String>,
}

/// A program ready for replay.
#[derive(Clone, Debug)]
pub struct Program {
    pub(crate) raw: Arc<dyn RawProgram>,
    pub(crate) device: DeviceId,
    pub(crate) mailboxes: Arc<[Mailbox]>,
    pub(crate) cuts: Arc<[usize]>,
    slow: Arc<[String]>,
}

impl Program {
    /// Reasons why ops of this program run slowly, one sentence per slow op.
    #[must_use]
    pub fn slow_reasons(&self) -> &[String] {
        &self.slow
    }

    /// The kernel files that this program runs; empty if the backend does not compile kernels.
    #[must_use]
    pub fn units(&self) -> Vec<String> {
        self.raw.units()
    }
}

impl Recorder {
    pub(crate) fn new(device: Device, label: &str) -> Recorder {
        Recorder {
            device,
            label: label.to_owned(),
            ops: Vec::new(),
            cuts: Vec::new(),
            mailboxes: Vec::new(),
            workspace: Bytes(0),
            slow: Vec::new(),
        }
    }

    /// Begins a new timed part with the next op. A timed run ([`crate::Queue::replay_timed`])
    /// measures when each part ran. Part 0 begins with the program.
    pub fn begin_part(&mut self) {
        self.cuts.push(self.ops.len());
    }

    /// Registers a mailbox with this program and returns its index for `Post` and `Merge`.
    ///
    /// # Errors
    /// [`Error::ForeignBuffer`] for another device's mailbox.
    pub fn mailbox(&mut self, mailbox: &Mailbox) -> Result<usize> {
        if mailbox.device != self.device.id() {
            return Err(self.foreign_device_error("Post", "mailbox"));
        }
        self.mailboxes.push(mailbox.clone());
        Ok(self.mailboxes.len() - 1)
    }

    fn foreign_device_error(&self, op: &'static str, operand: &'static str) -> Error {
        Error::ForeignBuffer { op, operand, device: self.device.info().name.clone() }
    }

    /// Appends an op.
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::Aliasing`], [`Error::ForeignBuffer`] or [`Error::Unsupported`];
    /// the program is then unchanged.
    pub fn push(&mut self, op: impl Into<Op>) -> Result<()> {
        let op = op.into();
        op.check()?;
        op.check_aliasing()?;
        let mut foreign = None;
        op.visit(&mut |operand, _, tensor| {
            if tensor.device() != self.device.id() {
                foreign = Some(operand);
            }
        });
        if let Some(operand) = foreign {
            return Err(self.foreign_device_error(op.name(), operand));
        }
        self.check_hand_off(&op)?;
        match self.device.plan(&op.to_desc()) {
            Plan::Yes { workspace, slow } => {
                self.workspace = self.workspace.max(workspace);
                self.slow.extend(slow);
            }
            Plan::No(reason) => {
                let device = self.device.info().name.clone();
                return Err(Error::Unsupported { op: op.name(), device, reason });
            }
        }
        self.ops.push(op);
        Ok(())
    }

    /// Checks that a post fits its mailbox, and that the program posts to each mailbox once and
    /// then merges it once.
    fn check_hand_off(&self, op: &Op) -> Result<()> {
        let (name, mailbox, desc, rows, weights) = match op.hand_off() {
            Some(HandOff::Post(op)) => {
                let rows = op.rows.as_ref().map_or(0, |set| set.ids.desc.n_cols);
                let weights = op.weights.as_ref().map_or(0, |weights| weights.desc.n_cols);
                ("Post", op.mailbox, op.x.desc, rows, weights)
            }
            Some(HandOff::Merge(op)) => ("Merge", op.mailbox, op.y.desc, 0, 0),
            None => return Ok(()),
        };
        let Some(shape) = self.mailboxes.get(mailbox).map(Mailbox::shape) else {
            let expected = format!("below {}", self.mailboxes.len());
            return Err(Error::shape(name, "mailbox", expected, mailbox));
        };
        let posted = self.ops.iter().any(|op| matches!(op, Op::Post(p) if p.mailbox == mailbox));
        let merged = self.ops.iter().any(|op| matches!(op, Op::Merge(m) if m.mailbox == mailbox));
        let in_order = if name == "Post" { !posted } else { posted && !merged };
        if !in_order {
            return Err(Error::shape(
                name,
                "mailbox",
                "one post, then one merge",
                "used in another order",
            ));
        }
        if name == "Post" && self.ops.iter().any(|op| self.occupies_memory_of(op, mailbox)) {
            let expected = "a post after the mailboxes that share its memory are merged";
            return Err(Error::shape(name, "mailbox", expected, "posted to too early"));
        }
        let floats = if name == "Post" { shape.n_in } else { shape.n_out };
        let fits = desc.n_rows <= shape.max_tokens && desc.n_cols == floats;
        if !fits || rows > shape.max_rows || (name == "Post" && weights != shape.n_weights) {
            let got = format!("{desc} with {rows} rows and {weights} weights");
            return Err(Error::shape(name, "mailbox", format!("{shape:?}"), got));
        }
        Ok(())
    }

    /// Whether `op` posts to a mailbox that shares memory with `mailbox` and is not merged yet.
    fn occupies_memory_of(&self, op: &Op, mailbox: usize) -> bool {
        let Op::Post(post) = op else { return false };
        let merged = |op: &Op| matches!(op, Op::Merge(m) if m.mailbox == post.mailbox);
        self.mailboxes[post.mailbox].shares_memory_with(&self.mailboxes[mailbox])
            && !self.ops.iter().any(merged)
    }

    /// Compiles the recorded ops.
    ///
    /// # Errors
    /// [`Error::Shape`] if a post is never merged, [`Error::OutOfMemory`] for the workspace,
    /// errors of the backend.
    pub fn finish(self) -> Result<Program> {
        let merges = self.ops.iter().filter(|op| matches!(op, Op::Merge(_))).count();
        let posts = self.ops.iter().filter(|op| matches!(op, Op::Post(_))).count();
        if merges != posts {
            return Err(Error::shape("Merge", "mailbox", format!("{posts} merges"), merges));
        }
        let workspace = match self.workspace {
            Bytes(0) => None,
            bytes => self.device.workspace(bytes)?,
        };
        let raw_boxes: Vec<_> = self.mailboxes.iter().map(|m| Arc::clone(&m.raw)).collect();
        let raw =
            self.device.backend.compile(&self.label, &self.ops, &raw_boxes, workspace.as_ref())?;
        Ok(Program {
            raw,
            device: self.device.id(),
            mailboxes: self.mailboxes.into(),
            cuts: self.cuts.into(),
            slow: self.slow.into(),
        })
    }
}
