//! The two ends of a hand-off: what is copied to the host, and how its answer is added.

use hal::op::{Merge, Post};
use hal::{Operand, Result, Tensor};

use crate::buffer::{Span, plain};
use crate::lowering::Lowering;
use crate::mailbox::WgpuMailbox;
use crate::shader::Source;

/// The copies that put a post into its mailbox.
#[derive(Debug)]
pub(crate) struct PostCopies {
    pub(crate) mailbox: WgpuMailbox,
    /// The mailbox's number in its program.
    pub(crate) index: usize,
    /// Rows of x: the most tokens of this program.
    pub(crate) n_rows: usize,
    /// Whether a list is sent.
    pub(crate) has_rows: bool,
    /// From where, to which byte of the mailbox.
    copies: Vec<(Span, u64)>,
}

impl PostCopies {
    pub(crate) fn new(op: &Post<Tensor>, mailbox: &WgpuMailbox) -> Result<PostCopies> {
        let at = mailbox.places();
        let mut copies = vec![(plain(&op.batch.words)?.part(0, 4), at.n_tokens)];
        copies.push((plain(&op.x)?, at.x));
        if let Some(weights) = &op.weights {
            copies.push((plain(weights)?, at.weights));
        }
        if let Some(set) = &op.rows {
            let (members, words) = (plain(&set.members)?, 4 * mailbox.words() as u64);
            copies.push((plain(&set.count)?, at.count));
            copies.push((plain(&set.ids)?, at.ids));
            let held = 4 * set.members.desc().n_cols as u64;
            if held == words {
                copies.push((members, at.members));
            } else {
                // A list with room for another number of tokens than its mailbox.
                for row in 0..set.members.desc().n_rows as u64 {
                    let part = members.part(row * held, held.min(words));
                    copies.push((part, at.members + row * words));
                }
            }
        }
        Ok(PostCopies {
            mailbox: mailbox.clone(),
            index: op.mailbox,
            n_rows: op.x.desc().n_rows,
            has_rows: op.rows.is_some(),
            copies,
        })
    }

    pub(crate) fn encode(&self, encoder: &mut wgpu::CommandEncoder) {
        for (from, to) in self.copies.iter().filter(|(from, _)| from.size > 0) {
            let out = &self.mailbox.out;
            encoder.copy_buffer_to_buffer(&from.buffer, from.offset, out, *to, from.size);
        }
    }
}

/// Adds an answer.
pub(crate) fn merge(
    op: &Merge<Tensor>,
    mailbox: &WgpuMailbox,
    out: &mut Lowering<'_>,
) -> Result<()> {
    let desc = op.y.desc();
    let flat = out.facts().tuning.flat;
    let source = Source::new("merge").set("FLAT", flat);
    let grid = out.facts().grid((desc.n_rows * desc.n_cols).div_ceil(flat as usize));
    let spans = [mailbox.answer(), plain(&op.batch.words)?, plain(&op.y)?];
    let numbers = [desc.n_rows as u32, desc.n_cols as u32, u32::from(op.accumulate)];
    out.dispatch(&source, &spans, &numbers, grid)
}
