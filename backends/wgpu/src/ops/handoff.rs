//! The two ops of a hand-off: a post copies to the host, and a merge writes or adds the host's
//! answer.

use hal::op::{Merge, Post};
use hal::{Operand, Result, Tensor};

use crate::buffer::{Span, plain};
use crate::lowering::Lowering;
use crate::mailbox::WgpuMailbox;
use crate::shader::Source;

#[derive(Debug)]
pub(crate) struct PostCopies {
    pub(crate) mailbox: WgpuMailbox,
    /// Index of the mailbox in its program.
    pub(crate) index: usize,
    /// Rows of x: the maximum number of tokens of this program.
    pub(crate) n_rows: usize,
    /// Membership words per row of the posted list; `None` if no list is posted.
    pub(crate) row_words: Option<usize>,
    /// Source, and destination offset in the mailbox in bytes.
    copies: Vec<(Span, u64)>,
}

/// The copies of the first `sent` of `held` membership words of each row: source offset,
/// destination offset and length, in bytes. If all words are sent, one copy is enough; a copy
/// command per neuron would cost more than the rest of a step.
fn member_copies(n_rows: usize, held: usize, sent: usize) -> impl Iterator<Item = [u64; 3]> {
    let (n_rows, n) = if held == sent { (1, n_rows * sent) } else { (n_rows, sent) };
    (0..n_rows).map(move |row| [row * held, row * sent, n].map(|words| 4 * words as u64))
}

impl PostCopies {
    pub(crate) fn new(op: &Post<Tensor>, mailbox: &WgpuMailbox) -> Result<PostCopies> {
        let at = mailbox.offsets();
        let mut copies = vec![(plain(&op.batch.words)?.part(0, 4), at.n_tokens)];
        copies.push((plain(&op.x)?, at.x));
        if let Some(weights) = &op.weights {
            copies.push((plain(weights)?, at.weights));
        }
        let mut row_words = None;
        if let Some(set) = &op.rows {
            let (members, desc) = (plain(&set.members)?, set.members.desc());
            copies.push((plain(&set.count)?, at.count));
            copies.push((plain(&set.ids)?, at.ids));
            let sent = desc.n_cols.min(mailbox.words());
            let member_copies = member_copies(desc.n_rows, desc.n_cols, sent);
            copies.extend(
                member_copies.map(|[from, to, n]| (members.part(from, n), at.members + to)),
            );
            row_words = Some(sent);
        }
        Ok(PostCopies {
            mailbox: mailbox.clone(),
            index: op.mailbox,
            n_rows: op.x.desc().n_rows,
            row_words,
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

/// Writes an answer to `y`, or adds it if the op accumulates.
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

#[cfg(test)]
mod tests {
    use super::member_copies;

    /// The engine's row lists have as many words per row as their program needs, and its mailboxes
    /// have as many as the largest program needs.
    #[test]
    fn a_list_that_fits_its_mailbox_is_one_copy() {
        assert_eq!(member_copies(14_336, 1, 1).collect::<Vec<_>>(), [[0, 0, 4 * 14_336]]);
        assert_eq!(member_copies(3, 2, 2).collect::<Vec<_>>(), [[0, 0, 24]]);
        assert_eq!(member_copies(3, 2, 1).collect::<Vec<_>>(), [[0, 0, 4], [8, 4, 4], [16, 8, 4]]);
    }
}
